// fi_domain(3): opening, binding, overriding, closing.
#include <rdma/fi_ext.h>
#include <string.h>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

FI_CASE("domain.open", kAll) {
  Ground ground;
  int mine = 0;
  Fid<fid_domain> domain;
  Need(fi_domain(ground.fabric, ground.info.get(), domain.Out(), &mine), "fi_domain");
  Expect(domain->fid.context == &mine, "the fid does not keep the context");
  Expect(domain->fid.fclass == FI_CLASS_DOMAIN, "fclass %zu", domain->fid.fclass);
  Expect(domain->ops->size >= sizeof(fi_ops_domain) - sizeof(void*), "ops of size %zu",
         domain->ops->size);
  Need(domain.Close(), "fi_close");
}

FI_CASE("domain.domain2_without_flags", kOnce) {
  Ground ground;
  int mine = 0;
  Fid<fid_domain> domain;
  Need(fi_domain2(ground.fabric, ground.info.get(), domain.Out(), 0, &mine), "fi_domain2");
  Expect(domain->fid.context == &mine, "the fid does not keep the context");
}

FI_CASE("domain.domain2_unknown_flag", kOnce) {
  Ground ground;
  Fid<fid_domain> domain;
  const int result =
      fi_domain2(ground.fabric, ground.info.get(), domain.Out(), 1ULL << 62, nullptr);
  Expect(result == -FI_EINVAL || result == -FI_EBADFLAGS, "%s, not -FI_EINVAL",
         NameOf(result).c_str());
}

// The key of memory registered through the peer domain opens that memory at the owner's endpoint.
FI_CASE("domain.domain2_peer", kOnce) {
  Wish wish = {.caps = FI_MSG | FI_RMA};
  Info info;
  if (TryGetInfo(wish, &info) != 0) wish.caps = FI_MSG;
  Ground ground(wish);
  struct {
    size_t size;
    fid_domain* domain;
  } context = {sizeof(context), ground.domain};
  Fid<fid_domain> peer;
  const int result = fi_domain2(ground.fabric, ground.info.get(), peer.Out(), FI_PEER, &context);
  if (result == -FI_EINVAL) Refuse("-FI_EINVAL, as of who does not support peer domains");
  Expect(result == 0, "%s; who does not support it says -FI_EINVAL", NameOf(result).c_str());
  ExpectError(fi_close(ground.domain.Base()), -FI_EBUSY, "closing the owner under its peer");
  std::vector<uint8_t> bytes(4096);
  Fid<fid_mr> mr;
  Need(fi_mr_reg(peer, bytes.data(), bytes.size(), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, NextKey(),
                 0, mr.Out(), nullptr),
       "fi_mr_reg of the peer domain");
  Expect(fi_mr_key(mr) != FI_KEY_NOTAVAIL, "the peer domain's memory has no key");
  Need(mr.Close(), "fi_close of the memory");
  Need(peer.Close(), "fi_close of the peer domain");
}

FI_CASE("domain.domain2_peer_bad_context", kOnce) {
  Ground ground;
  Fid<fid_domain> peer;
  struct {
    size_t size;
    fid_domain* domain;
  } context = {0, nullptr};
  const int result = fi_domain2(ground.fabric, ground.info.get(), peer.Out(), FI_PEER, &context);
  ExpectError(result, -FI_EINVAL, "FI_PEER without an owner");
}

FI_CASE("domain.open_ops", kOnce) {
  static const char* const kNames[] = {"verbena_domain_ops_1", "dynamic_rbuf", "ofix_flow_ctrl"};
  Ground ground;
  for (const char* name : kNames) {
    void* ops = nullptr;
    if (fi_open_ops(ground.domain.Base(), name, 0, &ops, nullptr) != 0) continue;
    Expect(ops != nullptr, "'%s' opens to NULL", name);
    Note("'%s'", name);
    return;
  }
  Refuse("no provider-specific interface");
}

FI_CASE("domain.open_ops_unknown", kOnce) {
  Ground ground;
  void* ops = nullptr;
  const int result = fi_open_ops(ground.domain.Base(), "nobody has this", 0, &ops, nullptr);
  Expect(result == -FI_ENOSYS || result == -FI_EINVAL || result == -FI_EOPNOTSUPP,
         "an unknown name: %s", NameOf(result).c_str());
}

FI_CASE("domain.set_ops_unknown", kOnce) {
  Ground ground;
  int ops = 0;
  ExpectError(fi_set_ops(ground.domain.Base(), "nobody has this", 0, &ops, nullptr), -FI_ENOSYS,
              "an unknown name");
}

FI_CASE("domain.bind_eq_is_default", kMsg) {
  // The endpoint is bound to no EQ of its own; what becomes of it is told to the domain's.
  const Listener listener;
  Peer peer({});
  Need(fi_domain_bind(peer.domain, peer.eq->Base(), 0), "fi_domain_bind");
  peer.OpenEndpoint();
  Need(fi_ep_bind(peer.ep, peer.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind");
  Need(fi_ep_bind(peer.ep, peer.rx_cq.Base(), FI_RECV), "fi_ep_bind");
  peer.Enable();
  Need(fi_connect(peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  const Info asks(request.info);
  Need(fi_reject(listener.pep, asks->handle, nullptr, 0), "fi_reject");
  const Event told = NextEvent(*peer.eq);
  Expect(told.error != 0, "the rejection does not come to the domain's EQ");
  Expect(told.fid == peer.ep.Base(), "the error is not of the endpoint");
}

FI_CASE("domain.bind_eq_endpoints_may_differ", kMsg) {
  const Listener listener;
  Peer peer({});
  const Fid<fid_eq> of_domain = OpenEq(peer.fabric);
  Need(fi_domain_bind(peer.domain, of_domain.Base(), 0), "fi_domain_bind");
  peer.Start();
  Need(fi_connect(peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  const Info asks(request.info);
  Need(fi_reject(listener.pep, asks->handle, nullptr, 0), "fi_reject");
  Expect(NextEvent(*peer.eq).error != 0, "the rejection does not come to the endpoint's own EQ");
  Expect(NextEvent(of_domain, 50).result == -FI_EAGAIN, "it comes to the domain's EQ, too");
}

void RegisterByEvent(bool is_asynchronous) {
  Ground ground({.caps = RmaCaps()});
  const Fid<fid_eq> other = OpenEq(ground.fabric);
  if (is_asynchronous) {
    Need(fi_domain_bind(ground.domain, other.Base(), FI_REG_MR), "fi_domain_bind");
  }
  std::vector<uint8_t> bytes(3 * 4096);
  Fid<fid_mr> mr[3];
  for (int i = 0; i < 3; ++i) {
    Need(fi_mr_reg(ground.domain, &bytes[i * 4096], 4096, FI_REMOTE_READ, 0, NextKey(), 0,
                   mr[i].Out(), ContextOf(i)),
         "fi_mr_reg");
  }
  for (int i = 0; i < 3 && is_asynchronous; ++i) {
    uint32_t event = 0;
    fi_eq_entry entry = {};
    ssize_t got = 0;
    WaitUntil([&] {
      got = fi_eq_read(other, &event, &entry, sizeof(entry), 0);
      return got != -FI_EAGAIN;
    });
    Expect(got == sizeof(entry) && event == FI_MR_COMPLETE, "event %u, %s, not FI_MR_COMPLETE",
           event, NameOf(got).c_str());
    bool is_known = false;
    for (int k = 0; k < 3; ++k) {
      is_known |= entry.fid == mr[k].Base() && entry.context == ContextOf(k);
    }
    Expect(is_known, "FI_MR_COMPLETE carries the fid of class %zu and context %p",
           entry.fid == nullptr ? 0 : entry.fid->fclass, entry.context);
  }
  for (const auto& one : mr) Expect(fi_mr_key(one) != FI_KEY_NOTAVAIL, "no key");
  uint32_t event = 0;
  fi_eq_entry entry = {};
  Expect(fi_eq_read(other, &event, &entry, sizeof(entry), 0) == -FI_EAGAIN, "one event too many");
}

FI_CASE("domain.bind_reg_mr", kAll) { RegisterByEvent(true); }
FI_CASE("domain.reg_mr_is_synchronous_unbound", kAll) { RegisterByEvent(false); }

FI_CASE("domain.bind_reg_mr_failed_has_no_event", kAll) {
  Ground ground({.caps = RmaCaps()});
  Need(fi_domain_bind(ground.domain, ground.eq->Base(), FI_REG_MR), "fi_domain_bind");
  uint8_t bytes[64];
  Fid<fid_mr> mr;
  Expect(fi_mr_reg(ground.domain, bytes, sizeof(bytes), FI_REMOTE_READ, 0, NextKey(), 1ULL << 62,
                   mr.Out(), nullptr) != 0,
         "an unknown flag is accepted");
  uint32_t event = 0;
  fi_eq_entry entry = {};
  ExpectError(fi_eq_read(*ground.eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN,
              "an event of a registration that failed");
}

FI_CASE("domain.bind_wrong_object", kOnce) {
  Ground ground;
  const Fid<fid_cq> cq = OpenCq(ground.domain);
  Expect(fi_domain_bind(ground.domain, cq.Base(), 0) < 0, "a CQ can be bound to a domain");
}

FI_CASE("domain.bind_unknown_flag", kOnce) {
  Ground ground;
  const int result = fi_domain_bind(ground.domain, ground.eq->Base(), 1ULL << 62);
  Expect(result < 0, "an unknown flag is accepted");
  Note("%s", NameOf(result).c_str());
}

// --- closing -----------------------------------------------------------------------------------

// The domain says that it is busy, works on, and closes when the object is gone.
template <typename Open>
void StaysUsable(Open open, uint64_t caps = FI_MSG) {
  Ground ground({.caps = caps});
  {
    auto held = open(ground);
    for (int i = 0; i < 2; ++i) {
      ExpectError(ground.domain.Close(), -FI_EBUSY, "closing the busy domain");
    }
    const Fid<fid_cq> another = OpenCq(ground.domain);
  }
  const int result = ground.domain.Close();
  Expect(result == 0, "closing it when nothing is left: %s", NameOf(result).c_str());
}

FI_CASE("domain.busy_cq", kAll) {
  StaysUsable([](Ground& ground) { return OpenCq(ground.domain); });
}
FI_CASE("domain.busy_cntr", kAll) {
  StaysUsable([](Ground& ground) { return OpenCntr(ground.domain); });
}
FI_CASE("domain.busy_av", kAddressed) {
  StaysUsable([](Ground& ground) { return OpenAv(ground.domain); });
}
FI_CASE("domain.busy_ep", kAll) {
  StaysUsable([](Ground& ground) {
    Fid<fid_ep> ep;
    Need(fi_endpoint(ground.domain, ground.info.get(), ep.Out(), nullptr), "fi_endpoint");
    return ep;
  });
}
FI_CASE("domain.busy_mr", kAll) {
  static uint8_t bytes[4096];
  StaysUsable(
      [](Ground& ground) {
        Fid<fid_mr> mr;
        Need(Register(ground, bytes, sizeof(bytes), FI_REMOTE_READ, mr.Out()), "fi_mr_reg");
        return mr;
      },
      RmaCaps());
}
FI_CASE("domain.busy_srx", kReliable) {
  StaysUsable([](Ground& ground) {
    Fid<fid_ep> srx;
    Need(fi_srx_context(ground.domain, ground.info->rx_attr, srx.Out(), nullptr), "fi_srx_context");
    return srx;
  });
}
FI_CASE("domain.busy_poll_set", kAll) {
  StaysUsable([](Ground& ground) {
    Fid<fid_poll> poll_set;
    fi_poll_attr attr = {};
    Need(fi_poll_open(ground.domain, &attr, poll_set.Out()), "fi_poll_open");
    return poll_set;
  });
}

FI_CASE("fabric.busy_domain", kOnce) {
  Ground ground;
  ExpectError(fi_close(ground.fabric.Base()), -FI_EBUSY, "closing the fabric under a domain");
  const Fid<fid_eq> another = OpenEq(ground.fabric);
}

template <typename T>
void BusyUnderEndpoint(T get) {
  Pair pair;
  ExpectError(fi_close(get(pair.a())), -FI_EBUSY, "closing it under an endpoint");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(1);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(1, 64), "wrong bytes afterwards");
}
FI_CASE("cq.busy", kAll) {
  BusyUnderEndpoint([](Peer& peer) { return peer.tx_cq.Base(); });
}
FI_CASE("av.busy", kAddressed) {
  BusyUnderEndpoint([](Peer& peer) { return peer.av.Base(); });
}
FI_CASE("eq.busy", kMsg) {
  BusyUnderEndpoint([](Peer& peer) { return peer.eq->Base(); });
}

}  // namespace
}  // namespace verbena::fi_test

// Attributes of a domain that are numbers, keys and classes: what is said must be so.
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
// Beyond that many, opening would measure the machine's memory and descriptors.
constexpr size_t kEnough = 2000;

void AllowDescriptors() {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Opens as many as are said to be there (or enough of them).
template <typename T>
void Opens(size_t said, const std::function<int(T**)>& open) {
  AllowDescriptors();
  if (said == 0) Refuse("said to be 0");
  std::vector<Fid<T>> all;
  const size_t wanted = std::min(said, kEnough);
  for (size_t i = 0; i < wanted; ++i) {
    all.emplace_back();
    const int result = open(all.back().Out());
    Expect(result == 0, "%zu of %zu: %s", i, said, NameOf(result).c_str());
  }
  Note("%zu of %zu opened", wanted, said);
}

FI_CASE("count.cq", kAll, 30) {
  Ground ground;
  Opens<fid_cq>(ground.info->domain_attr->cq_cnt, [&](fid_cq** out) {
    fi_cq_attr attr = {};
    attr.format = FI_CQ_FORMAT_DATA;
    return fi_cq_open(ground.domain, &attr, out, nullptr);
  });
}
FI_CASE("count.cntr", kAll, 30) {
  Ground ground;
  Opens<fid_cntr>(ground.info->domain_attr->cntr_cnt, [&](fid_cntr** out) {
    fi_cntr_attr attr = {};
    return fi_cntr_open(ground.domain, &attr, out, nullptr);
  });
}
FI_CASE("count.mr", kReliable, 30) {
  Ground ground({.caps = FI_MSG | FI_RMA});
  static uint8_t bytes[64];
  Opens<fid_mr>(ground.info->domain_attr->mr_cnt,
                [&](fid_mr** out) { return Register(ground, bytes, sizeof(bytes), kRemote, out); });
}
FI_CASE("count.ep", kAll, 60) {
  Peer peer({});
  const size_t said = peer.info->domain_attr->ep_cnt;
  AllowDescriptors();
  std::vector<Fid<fid_ep>> all;
  const size_t wanted = std::min<size_t>(said, 300);
  for (size_t i = 0; i < wanted; ++i) {
    all.emplace_back();
    int result = fi_endpoint(peer.domain, peer.info.get(), all.back().Out(), nullptr);
    Expect(result == 0, "fi_endpoint, %zu of %zu: %s", i, said, NameOf(result).c_str());
    Need(fi_ep_bind(all.back(), IsConnected() ? peer.eq->Base() : peer.av.Base(), 0), "fi_ep_bind");
    Need(fi_ep_bind(all.back(), peer.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind");
    Need(fi_ep_bind(all.back(), peer.rx_cq.Base(), FI_RECV), "fi_ep_bind");
    result = fi_enable(all.back());
    Expect(result == 0, "fi_enable, %zu of %zu: %s", i, said, NameOf(result).c_str());
  }
  Note("%zu of %zu opened", wanted, said);
}
FI_CASE("count.tx_and_rx_contexts", kAll) {
  const Info info = GetInfo({});
  const fi_domain_attr& domain = *info->domain_attr;
  Expect(domain.tx_ctx_cnt >= 1 && domain.rx_ctx_cnt >= 1, "no contexts");
  Expect(info->ep_attr->tx_ctx_cnt <= domain.max_ep_tx_ctx &&
             info->ep_attr->rx_ctx_cnt <= domain.max_ep_rx_ctx,
         "an endpoint has more contexts than it may");
  Note("%zu and %zu", domain.tx_ctx_cnt, domain.rx_ctx_cnt);
}
FI_CASE("count.scalable_endpoints", kAddressed) {
  Ground ground;
  if (ground.info->domain_attr->max_ep_tx_ctx <= 1) Refuse("max_ep_tx_ctx is 1");
  ground.info->ep_attr->tx_ctx_cnt = ground.info->ep_attr->rx_ctx_cnt = 2;
  Fid<fid_ep> scalable, context;
  Need(fi_scalable_ep(ground.domain, ground.info.get(), scalable.Out(), nullptr), "fi_scalable_ep");
  Need(fi_tx_context(scalable, 1, nullptr, context.Out(), nullptr), "fi_tx_context");
}
FI_CASE("count.shared_tx_contexts", kAll) {
  Ground ground;
  Fid<fid_stx> context;
  const int result = fi_stx_context(ground.domain, ground.info->tx_attr, context.Out(), nullptr);
  if (ground.info->domain_attr->max_ep_stx_ctx == 0) {
    Expect(result < 0, "max_ep_stx_ctx is 0, and one opens");
    Refuse("max_ep_stx_ctx is 0");
  }
  Need(result, "fi_stx_context");
}
FI_CASE("count.shared_rx_contexts", kReliable) {
  Ground ground;
  if (ground.info->domain_attr->max_ep_srx_ctx == 0) {
    Fid<fid_ep> context;
    Expect(fi_srx_context(ground.domain, ground.info->rx_attr, context.Out(), nullptr) < 0,
           "max_ep_srx_ctx is 0, and one opens");
    Refuse("max_ep_srx_ctx is 0");
  }
  Note("%zu", ground.info->domain_attr->max_ep_srx_ctx);
}

// --- who can be reached ------------------------------------------------------------------------

FI_CASE("caps.local_comm", kAll) {
  Wish wish = {.caps = FI_MSG | FI_LOCAL_COMM};
  Info info = GetInfo(wish);
  Expect((info->domain_attr->caps & FI_LOCAL_COMM) != 0, "the domain does not say so");
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(1);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(1, 64), "wrong bytes");
}
FI_CASE("caps.remote_comm", kAll) {
  // That it is true is for two hosts to show; here only what is said.
  const Info info = GetInfo({.caps = FI_MSG | FI_REMOTE_COMM});
  Expect((info->domain_attr->caps & FI_REMOTE_COMM) != 0, "the domain does not say so");
}
FI_CASE("caps.shared_av", kAddressed) {
  const Info info = GetInfo({.caps = FI_MSG | FI_SHARED_AV});
  Expect((info->domain_attr->caps & FI_SHARED_AV) != 0, "the domain does not say so");
}
FI_CASE("caps.one_endpoint_to_itself", kAddressed) {
  Peer peer({});
  peer.Start();
  const auto own = peer.Address();
  Expect(fi_av_insert(peer.av, own.data(), 1, &peer.other, 0, nullptr) == 1, "fi_av_insert");
  Memory out(peer, 64), in(peer, 64);
  out.Fill(1);
  Receive(peer, in);
  Send(peer, out);
  Await(peer.rx_cq, "the receive");
  Expect(in.Has(1, 64), "wrong bytes");
}

FI_CASE("restricted_comp.clear_means_shared", kReliable) {
  // Without the mode bit endpoints of different capabilities share a CQ.
  Wish message, both = {.caps = FI_MSG | FI_RMA};
  message.hints = [](fi_info* hints) { hints->domain_attr->mode = FI_RESTRICTED_COMP; };
  const Info info = GetInfo(message);
  if ((info->domain_attr->mode & FI_RESTRICTED_COMP) != 0) DoesNotApply("the bit is set");
  const Info other = GetInfo(both);
  Ground ground(both);
  const Fid<fid_cq> cq = OpenCq(ground.domain);
  Fid<fid_ep> eps[2];
  int place = 0;
  for (fi_info* of : {info.get(), other.get()}) {
    Need(fi_endpoint(ground.domain, of, eps[place].Out(), nullptr), "fi_endpoint");
    Need(fi_ep_bind(eps[place], cq.Base(), FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    ++place;
  }
}

// --- authorization -----------------------------------------------------------------------------

Wish Keyed(uint8_t value, bool of_domain, uint64_t caps, uint32_t version = FI_VERSION(1, 17)) {
  constexpr size_t kKeyBytes = 16;
  Wish wish = {.caps = caps};
  wish.version = version;
  if (version < FI_VERSION(1, 5)) wish.mr_mode = FI_MR_SCALABLE;
  wish.hints = [=](fi_info* hints) {
    auto*& key = of_domain ? hints->domain_attr->auth_key : hints->ep_attr->auth_key;
    key = static_cast<uint8_t*>(malloc(kKeyBytes));
    memset(key, value, kKeyBytes);
    (of_domain ? hints->domain_attr->auth_key_size : hints->ep_attr->auth_key_size) = kKeyBytes;
  };
  return wish;
}

void NeedKey(const Wish& wish, bool of_domain) {
  const Info info = GetInfo(wish);
  const size_t size = of_domain ? info->domain_attr->auth_key_size : info->ep_attr->auth_key_size;
  Expect(size == 16, "the output's auth_key_size is %zu: the key is dropped silently", size);
}

// One message from a to b: whether it arrived. `times`: of the time that is as a rule enough.
bool Arrives(Pair& pair, int times) {
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(1);
  Receive(pair.b(), in);
  const long posted = Post(
      [&] {
        return fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(1));
      },
      1000 * times);
  if (posted != 0) return false;
  const auto got = AwaitAny(pair.b().rx_cq, 700 * times);
  return got && got->error == 0;
}

void SameKeyTalks(bool of_domain) {
  const Wish wish = Keyed(7, of_domain, FI_MSG);
  NeedKey(wish, of_domain);
  Pair pair(wish);
  Expect(Arrives(pair, Patience()), "the same key, and nothing arrives");
}
FI_CASE("auth.domain_key_same", kAll) { SameKeyTalks(true); }
FI_CASE("auth.endpoint_key_same", kAll) { SameKeyTalks(false); }

void OtherKeyDoesNot(bool of_domain) {
  const Wish one = Keyed(7, of_domain, FI_MSG), two = Keyed(8, of_domain, FI_MSG);
  NeedKey(one, of_domain);
  if (!IsConnected()) {
    Pair pair(one, two);
    Expect(!Arrives(pair, 1), "different keys, and a message arrives");
    return;
  }
  const Listener listener(two);
  Peer peer(one);
  peer.Start();
  if (fi_connect(peer.ep, listener.address.data(), nullptr, 0) != 0) return;
  const Event request = NextEvent(*listener.eq, 1500);
  if (request.info == nullptr) return;
  Peer server(two);
  server.request.reset(request.info);
  if (fi_endpoint(server.domain, request.info, server.ep.Out(), nullptr) != 0) return;
  server.Bind();
  if (fi_enable(server.ep) != 0 || fi_accept(server.ep, nullptr, 0) != 0) return;
  const Event told = NextEvent(*peer.eq, 1500);
  if (told.kind != FI_CONNECTED) return;
  Memory out(peer, 64), in(server, 64);
  Receive(server, in);
  Post([&] { return fi_send(peer.ep, out.data(), 64, out.desc(), peer.other, ContextOf(1)); }, 500);
  const auto got = AwaitAny(server.rx_cq, 700);
  Expect(!got || got->error != 0, "different keys, and a message arrives");
}
// What FI_OPT_CM_DATA_SIZE says can be sent, beside a key of the domain's.
FI_CASE("auth.domain_key_leaves_cm_data", kMsg) {
  const Wish wish = Keyed(7, true, FI_MSG);
  NeedKey(wish, true);
  const Listener listener(wish);
  Peer peer(wish);
  free(peer.info->ep_attr->auth_key);  // the domain's is for endpoints that have none
  peer.info->ep_attr->auth_key = nullptr;
  peer.info->ep_attr->auth_key_size = 0;
  peer.Start();
  size_t size = 0, length = sizeof(size);
  Need(fi_getopt(peer.ep.Base(), FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length),
       "FI_OPT_CM_DATA_SIZE");
  const std::vector<uint8_t> data(size, 5);
  Need(fi_connect(peer.ep, listener.address.data(), data.data(), data.size()), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  const Info asks(request.info);
  Expect(request.data.size() >= size && memcmp(request.data.data(), data.data(), size) == 0,
         "%zu of %zu B arrived", request.data.size(), size);
  Need(fi_reject(listener.pep, asks->handle, nullptr, 0), "fi_reject");
  Note("%zu B", size);
}

FI_CASE("auth.domain_key_other", kAll) { OtherKeyDoesNot(true); }
FI_CASE("auth.endpoint_key_other", kAll) { OtherKeyDoesNot(false); }

FI_CASE("auth.memory_key_other", kReliable) {
  const Wish wish = Keyed(7, true, FI_MSG | FI_RMA);
  NeedKey(wish, true);
  Pair pair(wish);
  std::vector<uint8_t> bytes(64);
  uint8_t other[16];
  memset(other, 9, sizeof(other));
  const iovec place = {bytes.data(), bytes.size()};
  fi_mr_attr attr = {};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = kRemote;
  attr.requested_key = NextKey();
  attr.auth_key = other;
  attr.auth_key_size = sizeof(other);
  Fid<fid_mr> mr;
  Need(fi_mr_regattr(pair.b().domain, &attr, 0, mr.Out()), "fi_mr_regattr with another key");
  Memory out(pair.a(), 64, 0, 5);
  const uint64_t base = (pair.b().info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0
                            ? reinterpret_cast<uint64_t>(bytes.data())
                            : 0;
  Need(Post([&] {
         return fi_write(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, base,
                         fi_mr_key(mr), ContextOf(1));
       }),
       "fi_write");
  AwaitError(pair.a().tx_cq, "a write to memory of another authorization key");
  Expect(bytes[0] == 0, "the memory has changed");
}

FI_CASE("auth.ignored_before_1_5", kReliable) {
  Pair pair(Keyed(7, true, FI_MSG, FI_VERSION(1, 4)), Keyed(8, true, FI_MSG, FI_VERSION(1, 4)));
  Expect(Arrives(pair, Patience()), "keys count before 1.5");
}

// --- traffic class, sizes ----------------------------------------------------------------------

FI_CASE("tclass.endpoint_inherits", kAll) {
  Wish wish;
  wish.hints = [](fi_info* hints) { hints->domain_attr->tclass = FI_TC_LOW_LATENCY; };
  Info info = GetInfo(wish);
  Expect(info->domain_attr->tclass == FI_TC_LOW_LATENCY, "domain tclass %#x",
         info->domain_attr->tclass);
  Expect(info->tx_attr->tclass == FI_TC_LOW_LATENCY || info->tx_attr->tclass == FI_TC_UNSPEC,
         "tx tclass %#x", info->tx_attr->tclass);
  Pair pair(wish);
  Expect(Arrives(pair, Patience()), "nothing arrives");
}
// What is on the wire then, the integration tests look at.
FI_CASE("tclass.endpoints_own", kAll) {
  Wish wish;
  wish.hints = [](fi_info* hints) {
    hints->domain_attr->tclass = FI_TC_LOW_LATENCY;
    hints->tx_attr->tclass = fi_tc_dscp_set(26);
  };
  const Info info = GetInfo(wish);
  Expect(info->tx_attr->tclass == fi_tc_dscp_set(26), "tx tclass %#x", info->tx_attr->tclass);
  Pair pair(wish);
  Expect(Arrives(pair, Patience()), "nothing arrives");
}
FI_CASE("tclass.unknown", kAll) {
  Wish wish;
  wish.hints = [](fi_info* hints) { hints->domain_attr->tclass = 0x7FFF'0000; };
  Info info;
  const int result = TryGetInfo(wish, &info);
  Expect(result == -FI_ENODATA || info->domain_attr->tclass != 0x7FFF'0000,
         "a class that nobody has");
}
FI_CASE("cq_data_size", kAll) {
  const Info info = GetInfo({});
  const size_t size = info->domain_attr->cq_data_size;
  if (size == 0) Refuse("0");
  Expect(size >= 4, "%zu B, at least 4 are demanded", size);
  Note("%zu B", size);
}
FI_CASE("mr_iov_limit", kReliable) {
  const Info info = GetInfo({.caps = FI_MSG | FI_RMA});
  Expect(info->domain_attr->mr_iov_limit >= 1, "0");
  Note("%zu", info->domain_attr->mr_iov_limit);
}

// --- FI_SET_OPS_HMEM_OVERRIDE ------------------------------------------------------------------

size_t g_from_bytes, g_to_bytes;
fi_hmem_iface g_from_iface;

ssize_t CopyFrom(void* to, size_t size, fi_hmem_iface iface, uint64_t, const iovec* from,
                 size_t count, uint64_t offset) {
  size_t done = 0;
  g_from_iface = iface;
  for (size_t i = 0; i < count && done < size; ++i) {
    if (offset >= from[i].iov_len) {
      offset -= from[i].iov_len;
      continue;
    }
    const size_t bytes = std::min(size - done, from[i].iov_len - offset);
    memcpy(static_cast<uint8_t*>(to) + done, static_cast<uint8_t*>(from[i].iov_base) + offset,
           bytes);
    offset = 0;
    done += bytes;
  }
  g_from_bytes += done;
  return static_cast<ssize_t>(done);
}

ssize_t CopyTo(fi_hmem_iface, uint64_t, const iovec* to, size_t count, uint64_t offset,
               const void* from, size_t size) {
  size_t done = 0;
  for (size_t i = 0; i < count && done < size; ++i) {
    if (offset >= to[i].iov_len) {
      offset -= to[i].iov_len;
      continue;
    }
    const size_t bytes = std::min(size - done, to[i].iov_len - offset);
    memcpy(static_cast<uint8_t*>(to[i].iov_base) + offset, static_cast<const uint8_t*>(from) + done,
           bytes);
    offset = 0;
    done += bytes;
  }
  g_to_bytes += done;
  return static_cast<ssize_t>(done);
}

void SetOverride(fid_domain* domain) {
  static fi_hmem_override_ops ops = {sizeof(ops), CopyFrom, CopyTo};
  Need(fi_set_ops(&domain->fid, FI_SET_OPS_HMEM_OVERRIDE, 0, &ops, nullptr), "fi_set_ops");
}

FI_CASE("domain.set_ops_hmem_messages", kAll) {
  Wish wish;
  wish.cq_attr = [](fi_cq_attr&, Ground& ground) { SetOverride(ground.domain); };
  Pair pair(wish);
  for (const size_t bytes : {1UL, 1000UL, 70'000UL}) {
    if (bytes > pair.a().info->ep_attr->max_msg_size) continue;
    Memory out(pair.a(), bytes), in(pair.b(), bytes);
    out.Fill(3);
    g_from_bytes = g_to_bytes = 0;
    Receive(pair.b(), in);
    Send(pair.a(), out);
    Await(pair.b().rx_cq, "the receive");
    Await(pair.a().tx_cq, "the send");
    Expect(in.Has(3, bytes), "wrong bytes of %zu", bytes);
    Expect(g_from_bytes >= bytes && g_to_bytes >= bytes,
           "of %zu B the functions moved %zu out and %zu in", bytes, g_from_bytes, g_to_bytes);
  }
}

FI_CASE("domain.set_ops_hmem_rma", kReliable) {
  Wish wish = {.caps = FI_MSG | FI_RMA};
  wish.cq_attr = [](fi_cq_attr&, Ground& ground) { SetOverride(ground.domain); };
  Pair pair(wish);
  constexpr size_t kBytes = 50'000;
  Memory local(pair.a(), kBytes), target(pair.b(), kBytes, kRemote);
  local.Fill(4);
  g_from_bytes = g_to_bytes = 0;
  Need(Write(pair.a(), local, target, 1, FI_DELIVERY_COMPLETE), "fi_writemsg");
  Await(pair.a().tx_cq, "the write");
  Expect(target.Has(4, kBytes), "wrong bytes");
  Expect(g_from_bytes >= kBytes && g_to_bytes >= kBytes,
         "a write: the functions moved %zu out and %zu in", g_from_bytes, g_to_bytes);
  memset(local.data(), 0, kBytes);
  g_from_bytes = g_to_bytes = 0;
  Need(Post([&] {
         return fi_read(pair.a().ep, local.data(), kBytes, local.desc(), pair.a().other,
                        target.Remote(), target.key(), ContextOf(2));
       }),
       "fi_read");
  Await(pair.a().tx_cq, "the read");
  Expect(local.Has(4, kBytes), "wrong bytes");
  Expect(g_from_bytes >= kBytes && g_to_bytes >= kBytes,
         "a read: the functions moved %zu out and %zu in", g_from_bytes, g_to_bytes);
}

// A region of a device's memory stays one when another of the same bytes, said to be the system's,
// is closed.
FI_CASE("domain.set_ops_hmem_same_range", kAll) {
  Wish wish = {.caps = FI_MSG | FI_HMEM, .mr_mode = kAnyMrMode | FI_MR_HMEM};
  wish.cq_attr = [](fi_cq_attr&, Ground& ground) { SetOverride(ground.domain); };
  Pair pair(wish);
  Memory out(pair.a(), 1000), in(pair.b(), 1000);
  const iovec place = {out.data(), out.size()};
  fi_mr_attr attr = {};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = FI_SEND;
  attr.requested_key = NextKey();
  attr.iface = FI_HMEM_CUDA;
  Fid<fid_mr> of_device, of_system;
  Need(fi_mr_regattr(pair.a().domain, &attr, 0, of_device.Out()), "fi_mr_regattr");
  attr.requested_key = NextKey();
  attr.iface = FI_HMEM_SYSTEM;
  Need(fi_mr_regattr(pair.a().domain, &attr, 0, of_system.Out()), "fi_mr_regattr");
  Need(of_system.Close(), "fi_close");
  g_from_iface = FI_HMEM_SYSTEM;
  Receive(pair.b(), in);
  Need(Post([&] {
         return fi_send(pair.a().ep, out.data(), 1000, fi_mr_desc(of_device), pair.a().other,
                        ContextOf(1));
       }),
       "fi_send");
  Await(pair.b().rx_cq, "the receive");
  Expect(g_from_iface == FI_HMEM_CUDA, "the function is told that it is memory of kind %d",
         g_from_iface);
}

FI_CASE("domain.set_ops_hmem_bad", kOnce) {
  Ground ground;
  SetOverride(ground.domain);
  fi_hmem_override_ops half = {sizeof(half), CopyFrom, nullptr};
  Expect(fi_set_ops(ground.domain.Base(), FI_SET_OPS_HMEM_OVERRIDE, 0, &half, nullptr) < 0,
         "a field that is NULL is accepted");
  fi_hmem_override_ops small = {8, CopyFrom, CopyTo};
  Expect(fi_set_ops(ground.domain.Base(), FI_SET_OPS_HMEM_OVERRIDE, 0, &small, nullptr) < 0,
         "a size of 8 is accepted");
}

}  // namespace
}  // namespace verbena::fi_test

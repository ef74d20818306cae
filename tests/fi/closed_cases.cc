// What outlives a closed object, what does not, and what refused calls leave as it was.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include <vector>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

// Until there is an event, which stays.
void AwaitUnread(fid_eq* eq, uint32_t wanted) {
  uint32_t kind = 0;
  alignas(fi_eq_cm_entry) uint8_t raw[1024];
  Expect(WaitUntil([&] { return fi_eq_read(eq, &kind, raw, sizeof(raw), FI_PEEK) > 0; }),
         "no event comes");
  Expect(kind == wanted, "event %u, not %u", kind, wanted);
}

void ExpectNoEvent(fid_eq* eq, const char* what) {
  const Event event = NextEvent(eq, 50);
  Expect(event.result == -FI_EAGAIN, "%s: event %u, error %d", what, event.kind, event.error);
}

// An address for documentation: no host has it.
sockaddr_in Nobodys() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = inet_addr("192.0.2.1");
  return address;
}

void NeedIpv4() {
  if (GetInfo({})->src_addrlen != sizeof(sockaddr_in)) DoesNotApply("no IPv4 addresses");
}

// --- events ------------------------------------------------------------------------------------

// fi_eq(3): the fid of an event is that of an object that is there.
FI_CASE("eq.forgets_a_closed_endpoint", kMsg) {
  Pair pair;
  Need(fi_shutdown(pair.a().ep, 0), "fi_shutdown");
  AwaitUnread(*pair.b().eq, FI_SHUTDOWN);
  Need(pair.b().ep.Close(), "fi_close");
  ExpectNoEvent(*pair.b().eq, "of an endpoint that is closed");
}

FI_CASE("eq.forgets_a_closed_listener", kMsg) {
  Listener listener;
  Peer caller({});
  caller.Start();
  Need(fi_connect(caller.ep, listener.address.data(), nullptr, 0), "fi_connect");
  AwaitUnread(*listener.eq, FI_CONNREQ);
  Need(listener.pep.Close(), "fi_close");
  ExpectNoEvent(*listener.eq, "of a listener that is closed");
  Expect(NextEvent(*caller.eq).error != 0, "who asked is not refused");
}

// What was written by the program itself is its own, whatever it looks like.
FI_CASE("eq.keeps_what_the_program_wrote", kMsg) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_UNSPEC, FI_WRITE);
  Fid<fid_pep> pep;
  Need(fi_passive_ep(ground.fabric, ground.info.get(), pep.Out(), nullptr), "fi_passive_ep");
  Need(fi_pep_bind(pep, eq.Base(), 0), "fi_pep_bind");
  fi_eq_entry entry = {};
  entry.fid = pep.Base();
  Need(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0) < 0 ? -FI_EOTHER : 0, "fi_eq_write");
  Need(pep.Close(), "fi_close");
  uint32_t kind = 0;
  Expect(fi_eq_read(eq, &kind, &entry, sizeof(entry), 0) == sizeof(entry) && kind == FI_NOTIFY,
         "it is gone");
}

FI_CASE("domain.mr_complete_of_no_closed_region", kAll) {
  Ground ground({.caps = RmaCaps()});
  const Fid<fid_eq> eq = OpenEq(ground.fabric);
  Need(fi_domain_bind(ground.domain, eq.Base(), FI_REG_MR), "fi_domain_bind");
  std::vector<uint8_t> bytes(4096);
  Fid<fid_mr> mr;
  const auto reg = [&](size_t context) {
    Need(fi_mr_reg(ground.domain, bytes.data(), bytes.size(), FI_REMOTE_READ, 0, NextKey(), 0,
                   mr.Out(), ContextOf(context)),
         "fi_mr_reg");
    AwaitUnread(eq, FI_MR_COMPLETE);
  };
  reg(1);
  Need(mr.Close(), "fi_close");
  reg(2);
  uint32_t kind = 0;
  fi_eq_entry entry = {};
  Expect(fi_eq_read(eq, &kind, &entry, sizeof(entry), 0) == sizeof(entry), "no event");
  Expect(entry.context == ContextOf(2), "it is the closed one's");
  ExpectNoEvent(eq, "one event too many");
}

// --- requests for connections ------------------------------------------------------------------

FI_CASE("cm.request_outlives_its_listener", kMsg) {
  Listener listener;
  Peer callers[] = {Peer({}), Peer({})};
  for (Peer& caller : callers) {
    caller.Start();
    Need(fi_connect(caller.ep, listener.address.data(), nullptr, 0), "fi_connect");
  }
  Info requests[2];
  for (Info& request : requests) {
    request.reset(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  }
  Need(listener.pep.Close(), "fi_close");
  for (Info& request : requests) {
    Peer server({});
    server.request = std::move(request);
    server.Start();
    Need(fi_accept(server.ep, nullptr, 0), "fi_accept");
    AwaitEvent(*server.eq, FI_CONNECTED, "the passive side's");
    Need(fi_shutdown(server.ep, 0), "fi_shutdown");
  }
  for (Peer& caller : callers) {
    AwaitEvent(*caller.eq, FI_CONNECTED, "the active side's");
    AwaitEvent(*caller.eq, FI_SHUTDOWN, "the active side's");
  }
}

// fi_cm(3), Notes: what does not fit is cut off.
FI_CASE("cm.data_too_long_is_cut_off", kMsg) {
  constexpr uint8_t kFill = 0x5a;
  const std::vector<uint8_t> data(4096, kFill);
  const auto is_part_of_it = [&](const std::vector<uint8_t>& got, const char* whose) {
    Expect(!got.empty() && got.size() < data.size(), "%zu B of %s", got.size(), whose);
    Expect(std::vector<uint8_t>(got.size(), kFill) == got, "%s are wrong", whose);
  };
  const Listener listener;
  for (const bool accepts : {true, false}) {
    Peer caller({});
    caller.Start();
    Need(fi_connect(caller.ep, listener.address.data(), data.data(), data.size()), "fi_connect");
    Event asked = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
    Info request(asked.info);
    is_part_of_it(asked.data, "fi_connect's data");
    if (!accepts) {
      Need(fi_reject(listener.pep, request->handle, data.data(), data.size()), "fi_reject");
      is_part_of_it(NextEvent(*caller.eq).data, "fi_reject's data");
      continue;
    }
    Peer server({});
    server.request = std::move(request);
    server.Start();
    Need(fi_accept(server.ep, data.data(), data.size()), "fi_accept");
    is_part_of_it(AwaitEvent(*caller.eq, FI_CONNECTED, "the active side's").data,
                  "fi_accept's data");
  }
}

// --- names and objects -------------------------------------------------------------------------

// fi_cm(3), fi_setname: an address that can't be assigned is an error, and changes nothing.
FI_CASE("ep.refused_name_changes_nothing", kRdm) {
  NeedIpv4();
  Peer peer({});
  peer.OpenEndpoint();
  peer.Bind();
  sockaddr_in nobodys = Nobodys();
  const int result = fi_setname(peer.ep.Base(), &nobodys, sizeof(nobodys));
  Expect(result < 0, "an address that no host has is taken");
  peer.Enable();
  sockaddr_in own, wanted;
  memcpy(&own, peer.Address().data(), sizeof(own));
  memcpy(&wanted, peer.info->src_addr, sizeof(wanted));
  Expect(own.sin_addr.s_addr == wanted.sin_addr.s_addr, "it has another address than before");
  Note("%s", NameOf(result).c_str());
}

FI_CASE("cm.refused_name_of_a_listener", kMsg) {
  NeedIpv4();
  const Info info = GetInfo({});
  Fid<fid_fabric> fabric;
  Need(fi_fabric(info->fabric_attr, fabric.Out(), nullptr), "fi_fabric");
  const PumpedEq eq(OpenEq(fabric));
  Fid<fid_pep> pep;
  Need(fi_passive_ep(fabric, info.get(), pep.Out(), nullptr), "fi_passive_ep");
  Need(fi_pep_bind(pep, eq.Base(), 0), "fi_pep_bind");
  sockaddr_in nobodys = Nobodys();
  const int result = fi_setname(pep.Base(), &nobodys, sizeof(nobodys));
  Expect(result < 0, "an address that no host has is taken");
  Need(fi_listen(pep), "fi_listen");
  Note("%s", NameOf(result).c_str());
}

// fi_fabric(3): fabric_attr.fabric.
FI_CASE("getinfo.fabric_object", kOnce) {
  const Info before = GetInfo({});
  Expect(before->fabric_attr->fabric == nullptr, "a fabric, though none is open");
  Fid<fid_fabric> fabric, second;
  Need(fi_fabric(before->fabric_attr, fabric.Out(), nullptr), "fi_fabric");
  Need(fi_fabric(before->fabric_attr, second.Out(), nullptr), "fi_fabric");
  Expect(GetInfo({})->fabric_attr->fabric == fabric, "it does not name the first that is open");
  Wish wish;
  fid_fabric* wanted = second;
  wish.hints = [&](fi_info* hints) { hints->fabric_attr->fabric = wanted; };
  Expect(GetInfo(wish)->fabric_attr->fabric == second, "it does not name the one asked for");
  fid_fabric foreign = {};
  foreign.fid.fclass = FI_CLASS_FABRIC;
  wanted = &foreign;
  Info none;
  ExpectError(TryGetInfo(wish, &none), -FI_ENODATA, "fi_getinfo for a fabric that is not open");
}

// fi_endpoint(3): counters of what peers do need FI_RMA_EVENT.
FI_CASE("rma.event_counter_needs_its_capability", kReliable) {
  Peer peer({.caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE});
  if ((peer.info->caps & FI_RMA_EVENT) != 0) DoesNotApply("it has FI_RMA_EVENT unasked");
  peer.OpenEndpoint();
  const Fid<fid_cntr> cntr = OpenCntr(peer.domain);
  const int result = fi_ep_bind(peer.ep, cntr.Base(), FI_REMOTE_WRITE);
  Expect(result < 0, "a counter is bound that would count nothing");
  Note("%s", NameOf(result).c_str());
}

}  // namespace
}  // namespace verbena::fi_test

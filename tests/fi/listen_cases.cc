// fi_cm(3), fi_eq(3): what a listener's requests say, and what becomes of those that nobody reads.
#include <malloc.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <utility>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

void ListenEverywhere(fi_info* info) {
  free(info->src_addr);
  info->src_addr = nullptr;
  info->src_addrlen = 0;
}

// A listener on all addresses has requests by several domains: FI_CONNREQ says by which.
FI_CASE("cm.request_names_its_domain", kMsg) {
  const Info all = GetInfo({});
  const std::string first = all->domain_attr->name;
  const fi_info* second = all->next;
  while (second != nullptr &&
         (first == second->domain_attr->name || second->addr_format != all->addr_format)) {
    second = second->next;
  }
  if (second == nullptr) DoesNotApply("one domain alone");
  if (second->src_addrlen != sizeof(sockaddr_in)) DoesNotApply("no IPv4 addresses");
  Wish wish;
  wish.chosen = ListenEverywhere;
  const Listener listener(wish);
  sockaddr_in to, at;
  memcpy(&to, listener.address.data(), sizeof(to));
  memcpy(&at, second->src_addr, sizeof(at));
  to.sin_addr = at.sin_addr;
  Peer caller(Info(fi_dupinfo(second)), {});
  caller.Start();
  Need(fi_connect(caller.ep, &to, nullptr, 0), "fi_connect");
  Info request(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  const char* named = request->domain_attr->name;
  Expect(named != nullptr && strcmp(named, second->domain_attr->name) == 0,
         "the request names %s, and came to %s", named, second->domain_attr->name);
  const fid_nic* nic = request->nic;
  Expect(nic == nullptr || second->nic == nullptr ||
             strcmp(nic->device_attr->name, second->nic->device_attr->name) == 0,
         "the request has the attributes of another NIC");
  Peer other({});  // of the first domain
  Fid<fid_ep> wrong;
  Need(fi_endpoint(other.domain, request.get(), wrong.Out(), nullptr), "fi_endpoint");
  Need(fi_ep_bind(wrong, other.eq->Base(), 0), "fi_ep_bind EQ");
  Need(fi_ep_bind(wrong, other.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(wrong, other.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  ExpectError(fi_accept(wrong, nullptr, 0), -FI_EHOSTUNREACH, "fi_accept by another domain's");
  // As usual: all is opened of the request's info.
  Peer server(Info(fi_dupinfo(request.get())), {});
  server.request = std::move(request);
  server.Start();
  Need(fi_accept(server.ep, nullptr, 0), "fi_accept");
  AwaitEvent(*caller.eq, FI_CONNECTED, "the active side's");
  AwaitEvent(*server.eq, FI_CONNECTED, "the passive side's");
  Memory out(caller, 64), in(server, 64);
  Receive(server, in);
  Send(caller, out);
  Await(server.rx_cq, "the receive");
}

// A request that nobody reads of goes with its EQ, whether or not somebody has looked at it and
// rejected it.
FI_CASE("cm.unread_requests_cost_nothing", kMsg, 30) {
  constexpr size_t kWarmUp = 16, kRounds = 256, kBytesOfOne = 24;
  Ground ground;
  size_t before = 0;
  for (size_t i = 0; i < kWarmUp + kRounds; ++i) {
    if (i == kWarmUp) before = mallinfo2().uordblks;
    const Listener listener;
    Peer caller({});
    caller.Start();
    Need(fi_connect(caller.ep, listener.address.data(), nullptr, 0), "fi_connect");
    uint32_t kind = 0;
    alignas(fi_eq_cm_entry) uint8_t raw[512];
    fi_eq_cm_entry request;
    Expect(WaitUntil([&] {
             // Too small for the event, which stays.
             return fi_eq_read(*listener.eq, &kind, raw, 1, 0) == -FI_ETOOSMALL;
           }),
           "no request comes");
    if (i % 4 == 0) continue;
    Expect(fi_eq_read(*listener.eq, &kind, raw, sizeof(raw), FI_PEEK) > 0, "nothing to peek at");
    memcpy(&request, raw, sizeof(request));
    if (i % 4 == 1) continue;
    Need(fi_reject(listener.pep, request.info->handle, nullptr, 0), "fi_reject");
    if (i % 4 == 2) continue;
    const Info read(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  }
  const size_t after = mallinfo2().uordblks;
  Expect(after < before + kRounds * kBytesOfOne, "%zu B are left of %zu requests", after - before,
         kRounds);
  Note("%ld B", static_cast<long>(after - before));
}

}  // namespace
}  // namespace verbena::fi_test

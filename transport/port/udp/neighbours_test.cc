// Routes and neighbours of a network made for it.
#include "transport/port/udp/neighbours.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>

#include <cerrno>

#include "transport/port/udp/network_namespace.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

constexpr int kPatience = 20'000;

Gid Local6(uint8_t host) {
  Gid gid;
  gid.raw[0] = 0xfd;
  gid.raw[15] = host;
  return gid;
}

// The far end of the cable has no address: nobody answers.
bool MakeNetwork() {
  return Run("ip link set lo up") && Run("ip link add near type veth peer name far") &&
         Run("ip addr add 10.9.0.1/24 dev near") && Run("ip link set near up") &&
         Run("ip link set far up");
}

// Waits until `hop` is known, as the NIC does: by what the kernel tells of neighbours.
bool BecomesKnown(const NextHop& hop, int events, int patience_ms) {
  while (!IsKnown(hop)) {
    pollfd wait{.fd = events, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, patience_ms) != 1) return false;
    DrainNeighbourEvents(events);
  }
  return true;
}

int LooksForItsWay() {
  if (!MakeNetwork()) return kNotAllowed;
  NextHop hop;
  // Nothing leads there.
  REQUIRE(FindNextHop(V4(10, 9, 0, 1), V4(192, 0, 2, 1), 0, &hop) == ENETUNREACH);
  REQUIRE(Run("ip route add unreachable 192.0.2.0/24"));
  REQUIRE(FindNextHop(V4(10, 9, 0, 1), V4(192, 0, 2, 1), 0, &hop) == EHOSTUNREACH);
  // Here.
  REQUIRE(FindNextHop(V4(10, 9, 0, 1), V4(10, 9, 0, 1), 0, &hop) == 0);
  REQUIRE(hop.is_here && IsKnown(hop));
  REQUIRE(FindNextHop(V4(127, 0, 0, 1), V4(127, 5, 5, 5), 0, &hop) == 0);
  REQUIRE(hop.is_here);

  const int events = OpenNeighbourEvents();
  REQUIRE(events >= 0);
  // Next to us, and nobody answers.
  REQUIRE(FindNextHop(V4(10, 9, 0, 1), V4(10, 9, 0, 2), 0, &hop) == 0);
  REQUIRE(!hop.is_here && hop.gid == V4(10, 9, 0, 2));
  REQUIRE(hop.interface_index == if_nametoindex("near"));
  REQUIRE(!IsKnown(hop));
  Solicit(V4(10, 9, 0, 1), V4(10, 9, 0, 2), 0);
  REQUIRE(!IsKnown(hop));
  // Somebody does: as the administrator says.
  REQUIRE(Run("ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev near"));
  REQUIRE(BecomesKnown(hop, events, kPatience));
  // By a gateway it is the gateway that has to be known.
  REQUIRE(Run("ip route add default via 10.9.0.3"));
  REQUIRE(FindNextHop(V4(10, 9, 0, 1), V4(198, 51, 100, 1), 0, &hop) == 0);
  REQUIRE(hop.gid == V4(10, 9, 0, 3) && !IsKnown(hop));
  REQUIRE(Run("ip neigh replace 10.9.0.3 lladdr 02:00:00:00:00:03 dev near"));
  REQUIRE(BecomesKnown(hop, events, kPatience));

  if (!Run("ip addr add fd00::1/64 dev near nodad")) return 0;  // no IPv6
  REQUIRE(FindNextHop(Local6(1), Local6(2), 0, &hop) == 0);
  REQUIRE(hop.gid == Local6(2) && !IsKnown(hop));
  REQUIRE(Run("ip neigh replace fd00::2 lladdr 02:00:00:00:00:02 dev near"));
  REQUIRE(BecomesKnown(hop, events, kPatience));
  Gid far = Local6(2);
  far.raw[1] = 0x99;
  REQUIRE(FindNextHop(Local6(1), far, 0, &hop) == ENETUNREACH);
  close(events);
  return 0;
}

TEST(NeighboursTest, AreLookedForWhereARouteLeads) {
  const int result = RunInNamespace(LooksForItsWay);
  if (result == kNotAllowed) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace verbena::transport

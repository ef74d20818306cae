// What the simulated network itself promises; what devices make of it is in tests/simulation.
#include "transport/port/sim/sim_network.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace verbena::transport::sim {
namespace {

Gid GidOf(uint8_t host) { return Gid::FromIpv4(0x0a000000u | host); }

// The numbers of the packets that have come to `port`.
std::vector<int> Take(SimNetworkPort& port, Instant now) {
  std::vector<int> numbers;
  for (InPacket packet; port.Receive(now, &packet);) {
    numbers.push_back(std::to_integer<int>(packet.bytes[0]));
  }
  return numbers;
}

TEST(SimNetwork, AWireThatBecomesFasterKeepsTheOrder) {
  SimNetworkOptions slow;
  slow.wire_ps_per_byte = 100'000;
  SimNetwork network(1, slow);
  SimNetworkPort* from = network.AddPort({GidOf(1)});
  SimNetworkPort* to = network.AddPort({GidOf(2)});
  const auto send = [&](int number, uint32_t bytes) {
    const std::vector<std::byte> payload(bytes, static_cast<std::byte>(number));
    OutPacket packet;
    packet.address.source = GidOf(1);
    packet.address.destination = GidOf(2);
    packet.bytes = payload.data();
    packet.length = bytes;
    EXPECT_TRUE(from->Send(Instant{0}, packet));
  };
  send(1, 1000);
  send(2, 1000);
  network.set_options({});
  send(3, 100);
  Instant last{0};
  while (!network.NextArrival().IsNever()) {
    last = network.NextArrival();
    network.Advance(last);
  }
  EXPECT_EQ(Take(*to, last), (std::vector{1, 2, 3}));
}

}  // namespace
}  // namespace verbena::transport::sim

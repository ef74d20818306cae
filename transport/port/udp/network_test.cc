// Networks that the loopback interface is not: link-local addresses and groups over a pair of
// interfaces, and a link slow enough to fill the send buffer.
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "transport/port/udp/interfaces.h"
#include "transport/port/udp/network_namespace.h"
#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

class NetworkTest : public testing::TestWithParam<NetIo> {};

Gid LinkLocal(uint8_t host) {
  Gid gid;
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[15] = host;
  return gid;
}

int TalkOverLinkLocalAddresses(NetIo net_io) {
  if (!Run("ip link add left type veth peer name right")) return kNotAllowed;
  for (const char* name : {"left", "right"}) {
    REQUIRE(Run(std::string("ip link set ") + name + " addrgenmode none mtu 4300"));
    REQUIRE(Run(std::string("ip link set ") + name + " up"));
  }
  if (!Run("ip addr add fe80::1/64 dev left nodad")) return kNotAllowed;  // no IPv6
  REQUIRE(Run("ip addr add fe80::2/64 dev right nodad"));

  UdpPortError error;
  // The first finds its interface by itself, the second is told.
  auto a = OpenUdpPort({.addresses = {{LinkLocal(1)}}}, net_io, &error);
  if (a == nullptr) return kNotAllowed;
  auto b = OpenUdpPort({.addresses = {{LinkLocal(2), if_nametoindex("right")}}}, net_io, &error);
  REQUIRE(b != nullptr);
  InterfaceList list;
  REQUIRE(ReadInterfaces(&list));
  const InterfaceAddress* left = list.LinkLocalOf(if_nametoindex("left"));
  REQUIRE(left != nullptr && left->gid == LinkLocal(1));
  REQUIRE(PathMtuFor(list.Find(left->interface_index)->mtu) == 4096);

  Gid group;
  group.raw = {0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  REQUIRE(b->JoinGroup(group) == 0);
  wire::PacketAddress address;
  address.source = LinkLocal(1);
  for (const Gid& to : {LinkLocal(2), group}) {
    address.destination = to;
    for (uint32_t i = 0; i < 20; ++i) {
      const auto bytes = MakePacket(4108, i);
      const OutPacket packet{.address = address, .bytes = bytes.data(), .length = 4108};
      while (!a->Send({}, packet)) a->Flush({});
    }
    a->Flush({});
    for (uint32_t i = 0; i < 20; ++i) {
      Received got;
      REQUIRE(ReceiveOne(b.get(), &got));
      REQUIRE(got.check == wire::IcrcCheck::kExact);
      REQUIRE(got.bytes == MakePacket(4108, i));
      REQUIRE(got.address.source == LinkLocal(1) && got.address.destination == to);
    }
  }
  // The address goes, and with it what is sent from it; the port stays.
  REQUIRE(Run("ip link set left down"));
  const auto bytes = MakePacket(100, 1);
  address.destination = LinkLocal(2);
  a->Send({}, {.address = address, .bytes = bytes.data(), .length = 100});
  a->Flush({});
  REQUIRE(a->counters().send_errors == 1);
  REQUIRE(Run("ip link set left up") && Run("ip addr replace fe80::1/64 dev left nodad"));
  Received got;
  REQUIRE(a->Send({}, {.address = address, .bytes = bytes.data(), .length = 100}));
  a->Flush({});
  REQUIRE(ReceiveOne(b.get(), &got));
  return 0;
}

TEST_P(NetworkTest, LinkLocalAddressesAndGroupsOverAPairOfInterfaces) {
  const int result = RunInNamespace([] { return TalkOverLinkLocalAddresses(GetParam()); });
  if (result == kNotAllowed) GTEST_SKIP() << "no namespaces, iproute2, IPv6 or such a port here";
  EXPECT_EQ(result, 0);
}

// More than the send buffer holds, over a link slower than any sender here: the port says when
// there is room.
int FillTheSendBuffer(NetIo net_io) {
  if (!Run("ip link set lo up") ||
      !Run("tc qdisc add dev lo root tbf rate 100mbit burst 64kb limit 200mb")) {
    return kNotAllowed;
  }
  UdpPortError error;
  const Gid a = V4(127, 0, 0, 1), b = V4(127, 0, 0, 2);
  auto from = OpenUdpPort({.addresses = {{a}}, .socket_buffer_bytes = 1 << 20}, net_io, &error);
  if (from == nullptr) return kNotAllowed;
  // Room for all of it, however long this process may not run.
  auto to = OpenUdpPort({.addresses = {{b}}, .socket_buffer_bytes = 256 << 20}, net_io, &error);
  REQUIRE(to != nullptr);
  if (to->receive_buffer_bytes() < 256 << 20) return kNotAllowed;
  wire::PacketAddress address;
  address.source = a;
  address.destination = b;
  const uint32_t total = (12u << 20) / 4112;  // three times what the port and its socket hold
  uint32_t sent = 0, received = 0, refused = 0;
  std::vector<std::byte> bytes = MakePacket(4108, 1);
  while (received < total) {
    while (sent < total) {
      memcpy(bytes.data(), &sent, sizeof sent);
      if (!from->Send({}, {.address = address, .bytes = bytes.data(), .length = 4108})) break;
      ++sent;
    }
    if (sent < total) ++refused;
    from->Flush({});
    InPacket packet;
    REQUIRE(!from->Receive({}, &packet));
    while (to->Receive({}, &packet)) {
      uint16_t ip_id = 0;
      REQUIRE(wire::VerifyIcrc(packet.address, packet.expected_ip_id, packet.bytes, packet.length,
                               &ip_id) == wire::IcrcCheck::kExact);
      uint32_t number = 0;
      memcpy(&number, packet.bytes, sizeof number);
      REQUIRE(number == received);  // in order, none lost
      ++received;
    }
    if (!from->PrepareToSleep() || !to->PrepareToSleep()) continue;
    pollfd wait[] = {{.fd = from->poll_fd(), .events = POLLIN, .revents = 0},
                     {.fd = to->poll_fd(), .events = POLLIN, .revents = 0}};
    REQUIRE(received == total || poll(wait, 2, kPatienceMs) > 0);
  }
  REQUIRE(refused > 0);
  REQUIRE(from->counters().send_errors == 0);
  return 0;
}

TEST_P(NetworkTest, AFullSendBufferHoldsPacketsBackInOrder) {
  const int result = RunInNamespace([] { return FillTheSendBuffer(GetParam()); });
  if (result == kNotAllowed) GTEST_SKIP() << "no namespaces, iproute2, tbf or such a port here";
  EXPECT_EQ(result, 0);
}

// A queueing discipline that is full, which the kernel tells those who ask (IP_RECVERR).
int MeetAFullQueue(NetIo net_io) {
  if (!Run("ip link set lo up") || !Run("tc qdisc add dev lo root pfifo limit 0")) {
    return kNotAllowed;
  }
  UdpPortError error;
  const Gid a = V4(127, 0, 0, 1);
  // More batches than are sent together.
  std::vector<Gid> hosts;
  UdpPortConfig peer{.addresses = {}};
  for (uint8_t i = 2; i < 8; ++i) {
    hosts.push_back(V4(127, 0, 0, i));
    peer.addresses.push_back({hosts.back()});
  }
  auto from = OpenUdpPort({.addresses = {{a}}}, net_io, &error);
  if (from == nullptr) return kNotAllowed;
  const int on = 1;
  for (int fd = 3; fd < 64; ++fd) setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
  auto to = OpenUdpPort(peer, net_io, &error);
  REQUIRE(to != nullptr);
  wire::PacketAddress address;
  address.source = a;
  const auto bytes = MakePacket(100, 1);
  for (const Gid& host : hosts) {
    address.destination = host;
    REQUIRE(from->Send({}, {.address = address, .bytes = bytes.data(), .length = 100}));
  }
  from->Flush({});
  // Tried once a turn, and kept.
  REQUIRE(from->counters().sent_packets == 0);
  REQUIRE(from->counters().send_errors == 0);
  for (int i = 0; i < 4; ++i) REQUIRE(!from->PrepareToSleep());
  REQUIRE(from->counters().send_errors == 0);
  REQUIRE(Run("tc qdisc del dev lo root"));
  REQUIRE(from->PrepareToSleep());
  for (size_t i = 0; i < hosts.size(); ++i) {
    Received got;
    REQUIRE(ReceiveOne(to.get(), &got));
    REQUIRE(got.bytes == bytes);
  }
  // Full for good: lost, counted, and the port goes on.
  REQUIRE(Run("tc qdisc add dev lo root pfifo limit 0"));
  for (const Gid& host : hosts) {
    address.destination = host;
    REQUIRE(from->Send({}, {.address = address, .bytes = bytes.data(), .length = 100}));
  }
  from->Flush({});
  while (!from->PrepareToSleep()) {
  }
  REQUIRE(from->counters().send_errors == hosts.size());
  REQUIRE(from->counters().errors[PortError::kNoSendMemory] == hosts.size());
  REQUIRE(Run("tc qdisc del dev lo root"));
  REQUIRE(from->Send({}, {.address = address, .bytes = bytes.data(), .length = 100}));
  from->Flush({});
  Received got;
  REQUIRE(ReceiveOne(to.get(), &got));
  return 0;
}

TEST_P(NetworkTest, AFullQueueOfTheInterfaceIsTriedOnceATurn) {
  const int result = RunInNamespace([] { return MeetAFullQueue(GetParam()); });
  if (result == kNotAllowed) GTEST_SKIP() << "no namespaces, iproute2, pfifo or such a port here";
  EXPECT_EQ(result, 0);
}

bool MakeInterface() {
  return Run("ip link add roce0 type veth peer name far0") && Run("ip link set far0 up") &&
         Run("ip link set roce0 up") && Run("ip addr add 10.99.0.1/24 dev roce0") &&
         Run("ip addr add fd99::1/64 dev roce0 nodad");
}

// What it sends to its own groups comes back to a port, by way of its interface.
int JoinOnAnInterfaceMadeAnew(NetIo net_io) {
  if (!MakeInterface()) return kNotAllowed;
  Gid ipv6, group6;
  ipv6.raw = {0xfd, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  group6.raw = {0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  const Gid addresses[] = {V4(10, 99, 0, 1), ipv6};
  const Gid groups[] = {V4(239, 9, 9, 9), group6};
  const uint32_t before = if_nametoindex("roce0");
  UdpPortError error;
  auto port = OpenUdpPort({.addresses = {{addresses[0], before}, {ipv6, before}}}, net_io, &error);
  if (port == nullptr) return kNotAllowed;
  for (const Gid& group : groups) REQUIRE(port->JoinGroup(group) == 0);
  const auto talk = [&](uint32_t seed) {
    for (size_t i = 0; i < 2; ++i) {
      wire::PacketAddress address;
      address.source = addresses[i];
      address.destination = groups[i];
      const auto bytes = MakePacket(100, seed + static_cast<uint32_t>(i));
      port->Send({}, {.address = address, .bytes = bytes.data(), .length = 100});
      port->Flush({});
      Received got;
      REQUIRE(ReceiveOne(port.get(), &got));
      REQUIRE(got.bytes == bytes && got.address.destination == groups[i]);
    }
    return 0;
  };
  REQUIRE(talk(0) == 0);
  REQUIRE(Run("ip link del roce0") && MakeInterface());
  const uint32_t after = if_nametoindex("roce0");
  REQUIRE(after != before);
  for (const Gid& address : addresses) port->FollowInterface({address, after});
  REQUIRE(talk(10) == 0);
  for (const Gid& group : groups) port->LeaveGroup(group);
  return 0;
}

TEST_P(NetworkTest, GroupsAreJoinedOnAnInterfaceMadeAnew) {
  const int result = RunInNamespace([] { return JoinOnAnInterfaceMadeAnew(GetParam()); });
  if (result == kNotAllowed) GTEST_SKIP() << "no namespaces, iproute2, IPv6 or such a port here";
  EXPECT_EQ(result, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NetworkTest, testing::Values(NetIo::kEpoll, NetIo::kUring),
                         [](const auto& info) {
                           return info.param == NetIo::kEpoll ? "epoll" : "uring";
                         });

}  // namespace
}  // namespace verbena::transport

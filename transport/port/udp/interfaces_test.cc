// Interfaces and their changes, in a network namespace of the test's own where that is allowed.
#include "transport/port/udp/interfaces.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "transport/port/udp/network_namespace.h"
#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

using Kind = InterfaceChange::Kind;

TEST(InterfacesTest, TheLoopbackInterfaceHoldsAll127) {
  InterfaceList list;
  if (!ReadInterfaces(&list)) GTEST_SKIP() << "no netlink here";
  const uint32_t index = list.IndexOf(V4(127, 0, 0, 1));
  if (index == 0) GTEST_SKIP() << "the loopback interface is down";
  const Interface* loopback = list.Find(index);
  ASSERT_NE(loopback, nullptr);
  EXPECT_TRUE(loopback->loopback);
  EXPECT_GE(loopback->mtu, 1280u);
  EXPECT_FALSE(loopback->name.empty());
  EXPECT_EQ(list.IndexOf(V4(127, 200, 3, 4)), index);
  EXPECT_EQ(list.IndexOf(V4(198, 51, 100, 77)), 0u);
  EXPECT_EQ(list.Find(0), nullptr);
}

TEST(InterfacesTest, PathMtuLeavesRoomForTheLongestHeaders) {
  // 1024 at 1500 and 4096 at 4200, as kernel rxe has it.
  const struct {
    uint32_t mtu, path_mtu;
  } rows[] = {{0, 0},       {339, 0},     {340, 256},   {1280, 1024}, {1500, 1024}, {2131, 1024},
              {2132, 2048}, {4179, 2048}, {4180, 4096}, {4200, 4096}, {9000, 4096}, {65536, 4096}};
  for (const auto& row : rows) EXPECT_EQ(PathMtuFor(row.mtu), row.path_mtu) << row.mtu;
}

// --- In a namespace of its own, a process of its own ---------------------------------------------

bool SetUp(bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  strcpy(request.ifr_name, "lo");
  bool done = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags =
      static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return done;
}

bool SetMtu(int mtu) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  strcpy(request.ifr_name, "lo");
  request.ifr_mtu = mtu;
  const bool done = ioctl(fd, SIOCSIFMTU, &request) == 0;
  close(fd);
  return done;
}

bool SetMac(char last) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  strcpy(request.ifr_name, "lo");
  request.ifr_hwaddr.sa_family = ARPHRD_LOOPBACK;
  request.ifr_hwaddr.sa_data[0] = 2;
  request.ifr_hwaddr.sa_data[5] = last;
  const bool done = ioctl(fd, SIOCSIFHWADDR, &request) == 0;
  close(fd);
  return done;
}

bool Saw(const std::vector<InterfaceChange>& changes, Kind kind) {
  return std::any_of(changes.begin(), changes.end(), [&](const InterfaceChange& change) {
    return change.kind == kind && change.interface_name == "lo";
  });
}

// Waits for a change of this kind.
bool WaitFor(InterfaceWatcher* watcher, Kind kind, std::vector<InterfaceChange>* changes) {
  changes->clear();
  while (!Saw(*changes, kind)) {
    pollfd wait{.fd = watcher->fd(), .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, kPatienceMs) <= 0) return false;
    watcher->Poll(changes);
  }
  return true;
}

int WatchTheLoopbackInterface() {
  InterfaceWatcher watcher;
  REQUIRE(watcher.Open());
  REQUIRE(watcher.list().IndexOf(V4(127, 0, 0, 1)) == 0);
  std::vector<InterfaceChange> changes;
  watcher.Poll(&changes);
  REQUIRE(changes.empty());

  REQUIRE(SetUp(true));
  REQUIRE(WaitFor(&watcher, Kind::kLinkUp, &changes));
  if (!Saw(changes, Kind::kAddressAdded)) {
    REQUIRE(WaitFor(&watcher, Kind::kAddressAdded, &changes));
  }
  REQUIRE(watcher.list().IndexOf(V4(127, 0, 0, 1)) != 0);

  REQUIRE(SetMtu(1500));
  REQUIRE(WaitFor(&watcher, Kind::kMtuChanged, &changes));
  REQUIRE(changes.back().mtu == 1500);

  REQUIRE(SetMac(7));
  REQUIRE(WaitFor(&watcher, Kind::kMacChanged, &changes));
  REQUIRE(watcher.list().Find(changes.back().interface_index)->mac[5] == 7);

  REQUIRE(SetUp(false));
  REQUIRE(WaitFor(&watcher, Kind::kLinkDown, &changes));
  REQUIRE(!Saw(changes, Kind::kLinkUp));
  return 0;
}

TEST(InterfaceWatcherTest, TellsLinkMtuAndAddresses) {
  const int result = RunInNamespace(WatchTheLoopbackInterface);
  if (result == kNotAllowed) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(result, 0);
}

// An interface shrinks below our packets: those are lost and counted by name, smaller ones go on.
int SendPastTheMtu(NetIo net_io) {
  REQUIRE(SetUp(true));
  REQUIRE(SetMtu(1500));
  UdpPortError error;
  const Gid a = V4(127, 0, 0, 1), b = V4(127, 0, 0, 2);
  auto from = OpenUdpPort({.addresses = {{a}}}, net_io, &error);
  if (from == nullptr) return kNotAllowed;  // no io_uring; kernel rxe
  auto to = OpenUdpPort({.addresses = {{b}}}, net_io, &error);
  REQUIRE(to != nullptr);
  wire::PacketAddress address;
  address.source = a;
  address.destination = b;
  auto send = [&](uint32_t length) {
    const auto bytes = MakePacket(length, length);
    return from->Send({}, {.address = address, .bytes = bytes.data(), .length = length});
  };
  for (int i = 0; i < 4; ++i) REQUIRE(send(4108));
  for (int i = 0; i < 4; ++i) REQUIRE(send(1036));
  from->Flush({});
  Received got;
  for (int i = 0; i < 4; ++i) {
    REQUIRE(ReceiveOne(to.get(), &got));
    REQUIRE(got.bytes == MakePacket(1036, 1036));
    REQUIRE(got.check == wire::IcrcCheck::kExact);
  }
  REQUIRE(from->counters().errors[PortError::kTooLong] == 4);
  REQUIRE(from->counters().send_errors == 4);
  return 0;
}

class PastTheMtuTest : public testing::TestWithParam<NetIo> {};

TEST_P(PastTheMtuTest, TooLongPacketsAreLostAndCounted) {
  const int result = RunInNamespace([] { return SendPastTheMtu(GetParam()); });
  if (result == kNotAllowed) GTEST_SKIP() << "no network namespaces, or no such port, here";
  EXPECT_EQ(result, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PastTheMtuTest, testing::Values(NetIo::kEpoll, NetIo::kUring),
                         [](const auto& info) {
                           return info.param == NetIo::kEpoll ? "epoll" : "uring";
                         });

}  // namespace
}  // namespace verbena::transport

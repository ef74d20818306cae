// A kernel that refuses batches: the port sends packet by packet, with the ICRCs that takes.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/port/epoll/epoll_port.h"
#include "transport/port/udp/socket_error.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

// Sockets without UDP checksums, for which no kernel takes UDP_SEGMENT.
class UnbatchedPort final : public UdpPort {
 public:
  explicit UnbatchedPort(const UdpPortConfig& config) : UdpPort(config) {
    opened_ = OpenSockets(&error_);
  }
  bool opened() const { return opened_; }
  const char* name() const override { return "unbatched"; }
  void Flush(Instant now) override {
    collector().CloseAll();
    OnBatchesReady();
  }
  bool Receive(Instant now, InPacket* out) override { return false; }

 private:
  int OnSocketOpened(size_t index) override {
    const int on = 1;
    return setsockopt(endpoints()[index].fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof on) == 0 ? 0
                                                                                           : errno;
  }
  void OnSocketClosing(size_t index) override {}
  void OnBatchesReady() override {
    while (SendBatch* batch = TakeReady()) {
      EXPECT_EQ(Transmit(batch), Progress::kDone);
    }
  }

  UdpPortError error_;
  bool opened_ = false;
};

TEST(SendFallbackTest, ARefusedBatchGoesPacketByPacketWithIdentificationZero) {
  const auto run = static_cast<uint32_t>(getpid());
  const Gid a = V4(127, 99, static_cast<uint8_t>(run >> 8), static_cast<uint8_t>(run | 1));
  const Gid b = V4(127, 98, static_cast<uint8_t>(run >> 8), static_cast<uint8_t>(run | 1));
  const uint16_t udp_port = 24'991;
  UnbatchedPort from({.addresses = {{a}}, .port = udp_port});
  ASSERT_TRUE(from.opened());
  UdpPortError error;
  auto to = EpollPort::Open({.addresses = {{b}}, .port = udp_port}, &error);
  ASSERT_NE(to, nullptr) << error.text;
  wire::PacketAddress address;
  address.source = a;
  address.destination = b;
  address.destination_port = udp_port;
  // The second batch is not even tried as one.
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < 10; ++i) {
      const auto bytes = MakePacket(200, i);
      ASSERT_TRUE(from.Send({}, {.address = address, .bytes = bytes.data(), .length = 200}));
    }
    from.Flush({});
    for (uint32_t i = 0; i < 10; ++i) {
      Received got;
      ASSERT_TRUE(ReceiveOne(to.get(), &got));
      EXPECT_EQ(got.bytes, MakePacket(200, i));
      EXPECT_EQ(got.check, wire::IcrcCheck::kExact);
      EXPECT_EQ(got.ip_id, 0);
    }
  }
  EXPECT_EQ(from.counters().errors[PortError::kBatchRefused], 1u);
  EXPECT_EQ(from.counters().sent_packets, 20u);
  EXPECT_EQ(from.counters().send_errors, 0u);
}

// What ICMP says, to a socket that asks for it, comes with the next call: it is no packet.
TEST(ReceiveErrorTest, WhatTheNetworkSaysIsCountedAndToldOnce) {
  const auto run = static_cast<uint32_t>(getpid());
  const Gid own = V4(127, 95, static_cast<uint8_t>(run >> 8), static_cast<uint8_t>(run | 1));
  UdpPortError error;
  auto port = EpollPort::Open({.addresses = {{own}}, .port = 24'995}, &error);
  ASSERT_NE(port, nullptr) << error.text;
  const int on = 1;
  for (int fd = 3; fd < 64; ++fd) setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
  std::vector<std::pair<PortError, int>> told;
  port->OnFirstError([&](PortError kind, int number) { told.push_back({kind, number}); });
  wire::PacketAddress address;
  address.source = own;
  address.destination = own;
  address.destination.raw[13] = 94;  // nobody listens there
  const auto bytes = MakePacket(100, 1);
  for (uint64_t times = 1; times <= 3; ++times) {
    ASSERT_TRUE(port->Send({}, {.address = address, .bytes = bytes.data(), .length = 100}));
    port->Flush({});
    InPacket packet;
    EXPECT_FALSE(port->Receive({}, &packet));
    EXPECT_EQ(port->counters().errors[PortError::kAboutSent], times);
  }
  EXPECT_EQ(told, (std::vector{std::pair(PortError::kAboutSent, ECONNREFUSED)}));
  EXPECT_EQ(port->counters().send_errors, 0u);
}

TEST(SocketErrorTest, EachErrnoHasItsMeaning) {
  constexpr SendOutcome kAgain = SendOutcome::kAgain, kNoMemory = SendOutcome::kNoMemory,
                        kOneByOne = SendOutcome::kOneByOne, kLost = SendOutcome::kLost;
  const struct {
    int error;
    SendOutcome batch, single;
    PortError lost;      // if it is, at the end of all tries
    PortError received;  // of recvmsg
  } rows[] = {
      {EINTR, kAgain, kAgain, PortError::kOtherSend, PortError::kOtherReceive},
      {ECONNREFUSED, kAgain, kAgain, PortError::kRefused, PortError::kAboutSent},
      {ENOBUFS, kNoMemory, kNoMemory, PortError::kNoSendMemory, PortError::kNoReceiveMemory},
      {ENOMEM, kNoMemory, kNoMemory, PortError::kNoSendMemory, PortError::kNoReceiveMemory},
      {EIO, kOneByOne, kLost, PortError::kOtherSend, PortError::kOtherReceive},
      {EINVAL, kOneByOne, kLost, PortError::kNoSource, PortError::kOtherReceive},
      {EMSGSIZE, kOneByOne, kLost, PortError::kTooLong, PortError::kAboutSent},
      {EOPNOTSUPP, kOneByOne, kLost, PortError::kOtherSend, PortError::kAboutSent},
      {ENOPROTOOPT, kOneByOne, kLost, PortError::kOtherSend, PortError::kAboutSent},
      {ENETUNREACH, kLost, kLost, PortError::kUnreachable, PortError::kAboutSent},
      {EHOSTUNREACH, kLost, kLost, PortError::kUnreachable, PortError::kAboutSent},
      {EHOSTDOWN, kLost, kLost, PortError::kUnreachable, PortError::kAboutSent},
      {ENETDOWN, kLost, kLost, PortError::kUnreachable, PortError::kAboutSent},
      {EPERM, kLost, kLost, PortError::kForbidden, PortError::kAboutSent},
      {EACCES, kLost, kLost, PortError::kForbidden, PortError::kAboutSent},
      {EADDRNOTAVAIL, kLost, kLost, PortError::kNoSource, PortError::kOtherReceive},
      {ENODEV, kLost, kLost, PortError::kNoSource, PortError::kOtherReceive},
      {ENXIO, kLost, kLost, PortError::kNoSource, PortError::kOtherReceive},
      {EPROTO, kLost, kLost, PortError::kOtherSend, PortError::kAboutSent},
      {EBADF, kLost, kLost, PortError::kOtherSend, PortError::kOtherReceive},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(strerrorname_np(row.error));
    EXPECT_EQ(ClassifySendError(row.error, true), row.batch);
    EXPECT_EQ(ClassifySendError(row.error, false), row.single);
    EXPECT_EQ(KindOfSendError(row.error), row.lost);
    EXPECT_EQ(KindOfReceiveError(row.error), row.received);
  }
  for (bool batch : {false, true}) {
    EXPECT_EQ(ClassifySendError(0, batch), SendOutcome::kSent);
    EXPECT_EQ(ClassifySendError(EAGAIN, batch), SendOutcome::kNoRoom);
  }
}

TEST(SocketErrorTest, EachKindHasACounterOfItsOwnAndSaysWhatItMeans) {
  std::set<std::string> names;
  for (size_t i = 0; i < kPortErrors; ++i) {
    const auto kind = static_cast<PortError>(i);
    EXPECT_TRUE(names.insert(TextOf(kind).counter).second) << TextOf(kind).counter;
    // A busy NIC runs out of buffers as a matter of course: nothing for a log.
    EXPECT_EQ(Describe(kind, EIO).empty(), kind == PortError::kNoReceiveBuffer) << i;
  }
  EXPECT_EQ(names.count(""), 0u);
  const std::string told = Describe(PortError::kForbidden, EPERM);
  for (const char* word : {"EPERM", "firewall", "4791", "tx_forbidden"}) {
    EXPECT_NE(told.find(word), std::string::npos) << told;
  }
}

}  // namespace
}  // namespace verbena::transport

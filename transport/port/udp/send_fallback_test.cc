// A kernel that refuses batches: the port sends packet by packet, with the ICRCs that takes.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "transport/port/epoll/epoll_port.h"
#include "transport/port/udp/send_error.h"
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
  EXPECT_EQ(from.send_errors().batches_refused, 1u);
  EXPECT_EQ(from.counters().sent_packets, 20u);
  EXPECT_EQ(from.counters().send_errors, 0u);
}

TEST(SendErrorTest, EachErrnoHasItsMeaning) {
  const struct {
    int error;
    SendOutcome batch, single;
  } rows[] = {
      {0, SendOutcome::kSent, SendOutcome::kSent},
      {EINTR, SendOutcome::kAgain, SendOutcome::kAgain},
      {ECONNREFUSED, SendOutcome::kAgain, SendOutcome::kAgain},
      {EAGAIN, SendOutcome::kNoRoom, SendOutcome::kNoRoom},
      {ENOBUFS, SendOutcome::kNoMemory, SendOutcome::kNoMemory},
      {ENOMEM, SendOutcome::kNoMemory, SendOutcome::kNoMemory},
      {EIO, SendOutcome::kOneByOne, SendOutcome::kLost},
      {EINVAL, SendOutcome::kOneByOne, SendOutcome::kLost},
      {EMSGSIZE, SendOutcome::kOneByOne, SendOutcome::kLost},
      {ENETUNREACH, SendOutcome::kLost, SendOutcome::kLost},
      {EHOSTUNREACH, SendOutcome::kLost, SendOutcome::kLost},
      {EPERM, SendOutcome::kLost, SendOutcome::kLost},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(ClassifySendError(row.error, true), row.batch) << row.error;
    EXPECT_EQ(ClassifySendError(row.error, false), row.single) << row.error;
  }
  SendErrorCounters counters;
  for (const auto& row : rows) {
    if (row.single == SendOutcome::kLost) CountSendError(row.error, 2, &counters);
  }
  EXPECT_EQ(counters.too_long, 2u);
  EXPECT_EQ(counters.unreachable, 4u);
  EXPECT_EQ(counters.forbidden, 2u);
  EXPECT_EQ(counters.no_source, 2u);
  EXPECT_EQ(counters.other, 2u);
}

}  // namespace
}  // namespace verbena::transport

// A submission queue without room, and a kernel that takes no submissions: all of it waits for its
// turn, nothing is lost, and the port goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "transport/port/udp/udp_port_test_util.h"
#include "transport/port/uring/uring_port.h"

namespace verbena::transport {
namespace {

constexpr uint16_t kPort = 24'893;
constexpr uint32_t kBytes = 100;
// The least there can be: two requests fill it.
constexpr uint32_t kEntries = 2;
// One after the other, with kEntries places each is another round.
constexpr uint8_t kHosts = 6;

Gid HostA(uint8_t host) {
  const auto run = static_cast<uint32_t>(getpid());
  return V4(127, 200, static_cast<uint8_t>(run >> 8), static_cast<uint8_t>((run & 0xe0) + host));
}
Gid HostB(uint8_t host) { return HostA(static_cast<uint8_t>(host + 10)); }

class UringFullTest : public testing::Test {
 protected:
  void Open(uint8_t hosts_of_a) {
    UdpPortError error;
    UdpPortConfig config{
        .addresses = {},
        .port = kPort,
        .submission_entries = kEntries,
        .send_message = [this](int fd, const msghdr* m) { return SendMessage(fd, m); },
        .refuse_submission = [this] { return Refuse(); }};
    for (uint8_t i = 0; i < hosts_of_a; ++i) config.addresses.push_back({HostA(i)});
    a_ = UringPort::Open(config, &error);
    if (error.kind == UdpPortErrorKind::kNoUring) GTEST_SKIP() << error.text;
    ASSERT_NE(a_, nullptr) << error.text;
    a_->OnFirstError([this](PortError kind, int number) { told_.push_back({kind, number}); });
    UdpPortConfig peer{.addresses = {}, .port = kPort};
    for (uint8_t i = 0; i < kHosts; ++i) peer.addresses.push_back({HostB(i)});
    b_ = UringPort::Open(peer, &error);
    ASSERT_NE(b_, nullptr) << error.text;
  }
  int Refuse() { return refusals_ == 0 ? 0 : (--refusals_, refusal_); }
  int SendMessage(int fd, const msghdr* message) {
    if (full_sockets_ > 0) return --full_sockets_, EAGAIN;
    return sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
  }

  static void Send(UringPort* port, const Gid& from, const Gid& to, uint32_t seed) {
    wire::PacketAddress address;
    address.source = from;
    address.destination = to;
    address.destination_port = kPort;
    const auto bytes = MakePacket(kBytes, seed);
    ASSERT_TRUE(port->Send({}, {.address = address, .bytes = bytes.data(), .length = kBytes}));
  }
  // A batch to each host of b's.
  void SendToAll(uint32_t seed) {
    for (uint8_t i = 0; i < kHosts; ++i) Send(a_.get(), HostA(0), HostB(i), seed + i);
  }
  void ExpectAtB(uint32_t seed, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      Received got;
      ASSERT_TRUE(ReceiveOne(b_.get(), &got)) << i;
      EXPECT_EQ(got.check, wire::IcrcCheck::kExact);
      const uint32_t host = got.address.destination.raw[15] - HostB(0).raw[15];
      EXPECT_EQ(got.bytes, MakePacket(kBytes, seed + host));
    }
    EXPECT_EQ(ReceiveAll(b_.get()), 0);
  }
  void ExpectAtA(uint32_t seed) {
    InPacket packet;
    ASSERT_TRUE(ReceiveAwake(a_.get(), &packet)) << seed;
    const auto bytes = MakePacket(kBytes, seed);
    EXPECT_EQ(memcmp(packet.bytes, bytes.data(), kBytes), 0) << seed;
  }
  uint64_t Refused() { return a_->counters().errors[PortError::kSubmissionRefused]; }

  // The next so many submissions are refused.
  int refusals_ = 0;
  int refusal_ = -EAGAIN;
  // The next so many calls of sendmsg find no room.
  int full_sockets_ = 0;
  std::vector<std::pair<PortError, int>> told_;
  std::unique_ptr<UringPort> a_, b_;
};
constexpr int kAlways = 1 << 20;

#define OPEN_OR_SKIP(hosts) \
  Open(hosts);              \
  if (b_ == nullptr) return

TEST_F(UringFullTest, MoreSocketsThanPlacesAreArmedByTurns) {
  OPEN_OR_SKIP(kHosts);
  for (uint8_t i = 0; i < kHosts; ++i) {
    Send(b_.get(), HostB(0), HostA(i), i);
    b_->Flush({});
  }
  std::vector<bool> seen(kHosts);
  for (uint8_t i = 0; i < kHosts; ++i) {
    InPacket packet;
    ASSERT_TRUE(ReceiveAwake(a_.get(), &packet)) << int{i};
    seen[packet.address.destination.raw[15] - HostA(0).raw[15]] = true;
  }
  EXPECT_EQ(seen, std::vector<bool>(kHosts, true));
  EXPECT_TRUE(a_->PrepareToSleep());
}

TEST_F(UringFullTest, MoreBatchesThanPlacesGoInSeveralSubmissions) {
  OPEN_OR_SKIP(1);
  SendToAll(0);
  a_->Flush({});
  EXPECT_EQ(a_->counters().sent_packets, kHosts);
  ExpectAtB(0, kHosts);
}

TEST_F(UringFullTest, RefusedSubmissionsStayQueuedAndAreToldOnce) {
  OPEN_OR_SKIP(1);
  refusals_ = kAlways;
  SendToAll(0);
  a_->Flush({});
  EXPECT_EQ(a_->counters().sent_packets, 0u);
  EXPECT_FALSE(a_->PrepareToSleep());
  EXPECT_GT(Refused(), 0u);
  EXPECT_EQ(told_, (std::vector{std::pair(PortError::kSubmissionRefused, EAGAIN)}));
  refusals_ = 0;
  a_->PrepareToSleep();
  EXPECT_EQ(a_->counters().sent_packets, kHosts);
  EXPECT_TRUE(a_->PrepareToSleep());  // its receive finds a place now
  ExpectAtB(0, kHosts);
  EXPECT_EQ(a_->counters().send_errors, 0u);
}

TEST_F(UringFullTest, ARefusedReceiveIsTriedAgainByWhoDoesNotSleep) {
  OPEN_OR_SKIP(1);
  refusals_ = 3;
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));
  EXPECT_GT(Refused(), 0u);
  Send(b_.get(), HostB(0), HostA(0), 7);
  b_->Flush({});
  ExpectAtA(7);
}

TEST_F(UringFullTest, WithoutAPlaceToWaitForRoomTheSocketIsTriedAgain) {
  OPEN_OR_SKIP(kEntries);
  refusals_ = kAlways;
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));  // its receives fill the queue, and stay there
  full_sockets_ = 1;
  Send(a_.get(), HostA(0), HostB(0), 0);
  a_->Flush({});
  EXPECT_EQ(a_->counters().sent_packets, 0u);
  EXPECT_FALSE(a_->PrepareToSleep());
  refusals_ = 0;
  EXPECT_TRUE(a_->PrepareToSleep());
  ExpectAtB(0, 1);
}

TEST_F(UringFullTest, CompletionsThatWaitAreTakenOutForASubmission) {
  OPEN_OR_SKIP(1);
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));
  Send(b_.get(), HostB(0), HostA(0), 7);
  b_->Flush({});
  refusals_ = 1;
  refusal_ = -EBUSY;
  SendToAll(0);
  a_->Flush({});
  EXPECT_EQ(refusals_, 0);
  EXPECT_EQ(Refused(), 0u);
  EXPECT_EQ(a_->counters().sent_packets, kHosts);
  ExpectAtB(0, kHosts);
  ExpectAtA(7);
}

TEST_F(UringFullTest, ABusyKernelWithoutCompletionsIsLeftAlone) {
  OPEN_OR_SKIP(1);
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));
  refusals_ = 1;
  refusal_ = -EBUSY;
  SendToAll(0);
  a_->Flush({});
  EXPECT_EQ(Refused(), 1u);
  EXPECT_TRUE(a_->PrepareToSleep());
  ExpectAtB(0, kHosts);
}

// An interrupted call says nothing of the submission.
TEST_F(UringFullTest, AnInterruptedSubmissionIsMadeAgain) {
  OPEN_OR_SKIP(1);
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));
  refusals_ = 3;
  refusal_ = -EINTR;
  SendToAll(0);
  a_->Flush({});
  EXPECT_EQ(Refused(), 0u);
  ExpectAtB(0, kHosts);
}

// Who takes over cancels the receives of the other thread; that needs a place, too.
TEST_F(UringFullTest, AThreadTakesOverAFullQueue) {
  OPEN_OR_SKIP(kEntries);
  InPacket packet;
  EXPECT_FALSE(a_->Receive({}, &packet));
  for (const bool is_refused : {true, false}) {
    refusals_ = kAlways;
    SendToAll(0);
    a_->Flush({});  // fills the queue
    if (!is_refused) refusals_ = 0;
    std::thread second([&] {
      EXPECT_FALSE(a_->Receive({}, &packet));
      refusals_ = 0;
      for (uint8_t i = 0; i < kEntries; ++i) {
        Send(b_.get(), HostB(0), HostA(i), 20u + i);
        b_->Flush({});
        ExpectAtA(20u + i);
      }
      EXPECT_TRUE(a_->PrepareToSleep());
    });
    second.join();
    ExpectAtB(0, kHosts);
    Send(b_.get(), HostB(0), HostA(0), 30);
    b_->Flush({});
    ExpectAtA(30);
  }
  EXPECT_EQ(a_->counters().send_errors, 0u);
}

}  // namespace
}  // namespace verbena::transport

// A kernel that is short of memory, or repeats what ICMP told: tries, their end, and how it goes
// on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <vector>

#include "transport/port/epoll/epoll_port.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

constexpr uint16_t kPort = 24'993;
constexpr uint32_t kBytes = 200;
// One call and its repetitions.
constexpr int kTriesMax = 17;

class SendRetryTest : public testing::Test {
 protected:
  void SetUp() override {
    UdpPortError error;
    from_ =
        EpollPort::Open({.addresses = {{Host(97)}},
                         .port = kPort,
                         .send_message = [this](int fd, const msghdr* m) { return Say(fd, m); }},
                        &error);
    ASSERT_NE(from_, nullptr) << error.text;
    to_ = EpollPort::Open({.addresses = {{Host(96)}}, .port = kPort}, &error);
    ASSERT_NE(to_, nullptr) << error.text;
    from_->OnFirstError([this](PortError kind, int number) { told_.push_back({kind, number}); });
  }
  static Gid Host(uint8_t net) {
    const auto run = static_cast<uint32_t>(getpid());
    return V4(127, net, static_cast<uint8_t>(run >> 8), static_cast<uint8_t>(run | 1));
  }
  // The next of `answers_`; none left, or 0: the kernel's own.
  int Say(int fd, const msghdr* message) {
    ++calls_;
    int answer = 0;
    if (!answers_.empty()) {
      answer = answers_.front();
      answers_.pop_front();
    }
    if (answer != 0) return answer;
    return sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
  }

  void Send(uint32_t first, uint32_t count) {
    wire::PacketAddress address;
    address.source = Host(97);
    address.destination = Host(96);
    address.destination_port = kPort;
    for (uint32_t i = first; i < first + count; ++i) {
      const auto bytes = MakePacket(kBytes, i);
      ASSERT_TRUE(from_->Send({}, {.address = address, .bytes = bytes.data(), .length = kBytes}));
    }
    from_->Flush({});
  }
  // As an engine does it: a port that has something left to do keeps its caller awake.
  int TurnsUntilSleep() {
    int turns = 0;
    while (!from_->PrepareToSleep()) {
      InPacket packet;
      EXPECT_FALSE(from_->Receive({}, &packet));
      ++turns;
    }
    return turns;
  }
  void ExpectArrived(uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) {
      Received got;
      ASSERT_TRUE(ReceiveOne(to_.get(), &got)) << i;
      EXPECT_EQ(got.bytes, MakePacket(kBytes, i));
      EXPECT_EQ(got.check, wire::IcrcCheck::kExact);
    }
    EXPECT_EQ(ReceiveAll(to_.get()), 0);
  }

  std::deque<int> answers_;
  int calls_ = 0;
  std::vector<std::pair<PortError, int>> told_;
  std::unique_ptr<EpollPort> from_, to_;
};

TEST_F(SendRetryTest, AKernelShortOfMemoryIsAskedAgainOnceATurn) {
  answers_.assign(kTriesMax - 1, ENOBUFS);
  Send(0, 5);
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(TurnsUntilSleep(), kTriesMax - 2);  // the last one sends
  EXPECT_EQ(calls_, kTriesMax);
  ExpectArrived(0, 5);
  EXPECT_EQ(from_->counters().send_errors, 0u);
  EXPECT_TRUE(told_.empty());
}

TEST_F(SendRetryTest, WhatStaysRefusedIsLostAndCountedAndThePortGoesOn) {
  answers_.assign(kTriesMax, ENOBUFS);
  Send(0, 5);
  TurnsUntilSleep();
  EXPECT_EQ(calls_, kTriesMax);
  EXPECT_EQ(from_->counters().send_errors, 5u);
  EXPECT_EQ(from_->counters().errors[PortError::kNoSendMemory], 5u);
  answers_.assign(kTriesMax, ENOMEM);
  Send(5, 1);
  TurnsUntilSleep();
  EXPECT_EQ(from_->counters().errors[PortError::kNoSendMemory], 6u);
  // The first of its kind only.
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0], std::pair(PortError::kNoSendMemory, ENOBUFS));
  Send(6, 5);
  EXPECT_EQ(TurnsUntilSleep(), 0);
  ExpectArrived(6, 5);
}

TEST_F(SendRetryTest, WhereNobodyListensPacketsAreLostInTheEnd) {
  answers_.assign(kTriesMax, ECONNREFUSED);
  Send(0, 3);
  TurnsUntilSleep();
  EXPECT_EQ(calls_, kTriesMax);
  EXPECT_EQ(from_->counters().errors[PortError::kRefused], 3u);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0], std::pair(PortError::kRefused, ECONNREFUSED));
  Send(3, 3);
  ExpectArrived(3, 3);
}

TEST_F(SendRetryTest, OneByOneEachPacketGoesOnceOrIsLostAlone) {
  // The batch is refused; the second of its packets has to wait.
  answers_ = {EINVAL, 0, ENOBUFS, ENOBUFS};
  Send(0, 5);
  TurnsUntilSleep();
  EXPECT_EQ(calls_, 1 + 5 + 2);
  ExpectArrived(0, 5);
  EXPECT_EQ(from_->counters().send_errors, 0u);
  EXPECT_EQ(from_->counters().errors[PortError::kBatchRefused], 1u);
  // To this destination the next ones are sent alone from the beginning.
  answers_.assign(kTriesMax, ENOBUFS);
  Send(5, 5);
  TurnsUntilSleep();
  EXPECT_EQ(from_->counters().errors[PortError::kNoSendMemory], 1u);
  ExpectArrived(6, 4);
  EXPECT_EQ(from_->counters().errors[PortError::kBatchRefused], 1u);
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[0], std::pair(PortError::kBatchRefused, EINVAL));
  EXPECT_EQ(told_[1], std::pair(PortError::kNoSendMemory, ENOBUFS));
}

TEST_F(SendRetryTest, AFullSocketKeepsThePackets) {
  answers_ = {EAGAIN};
  Send(0, 5);
  Send(5, 5);
  EXPECT_EQ(calls_, 1);  // who is told to wait does not ask
  InPacket packet;
  EXPECT_FALSE(from_->Receive({}, &packet));
  TurnsUntilSleep();
  ExpectArrived(0, 10);
  EXPECT_EQ(from_->counters().send_errors, 0u);
}

}  // namespace
}  // namespace verbena::transport

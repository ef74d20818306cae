// Moderation of completion events.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class Verb_ibv_modify_cq : public VerbsTest {
 protected:
  void SetUp() override {
    MakePair(SideOptions{.cqe = 1024, .max_recv_wr = 512, .with_channel = true});
  }
  int Moderate(uint16_t count, uint16_t period_us) {
    ibv_modify_cq_attr attr = {};
    attr.attr_mask = IBV_CQ_ATTR_MODERATE;
    attr.moderate = {count, period_us};
    return ibv_modify_cq(b->recv_cq, &attr);
  }
  // Arrived at b, and polled there: the NIC has looked at the arm word before the ACK went out, or
  // does so at once afterwards.
  void SendSome(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
      ASSERT_EQ(a->Send(1, 0, 8), 0);
      ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      ASSERT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
    }
  }
  bool HasEvent(int timeout_ms) {
    pollfd p = {b->channel->fd, POLLIN, 0};
    return poll(&p, 1, timeout_ms) == 1;
  }
  void TakeEvent() {
    ASSERT_TRUE(HasEvent(5000));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b->channel, &cq, &context), 0);
    EXPECT_EQ(cq, b->recv_cq);
    ibv_ack_cq_events(cq, 1);
  }
  // From before a completion to after its event, of several.
  Clock::duration MedianTimeToEvent() {
    std::array<Clock::duration, 5> times = {};
    for (Clock::duration& time : times) {
      EXPECT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
      EXPECT_EQ(b->PostRecv(1, 0, 8), 0);
      const Clock::time_point begin = Clock::now();
      EXPECT_EQ(a->Send(1, 0, 8), 0);
      TakeEvent();
      time = Clock::now() - begin;
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

TEST_F(Verb_ibv_modify_cq, TellsItsLimits) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(a->context, nullptr, &attr), 0);
  EXPECT_EQ(attr.cq_mod_caps.max_cq_count, 0xffff);
  EXPECT_EQ(attr.cq_mod_caps.max_cq_period, 0xfff);
  EXPECT_EQ(Moderate(attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period), 0);
  EXPECT_EQ(Moderate(1, static_cast<uint16_t>(attr.cq_mod_caps.max_cq_period + 1)), EINVAL);
}

TEST_F(Verb_ibv_modify_cq, RefusesAMaskItDoesNotKnow) {
  ibv_modify_cq_attr attr = {};
  EXPECT_EQ(ibv_modify_cq(b->recv_cq, &attr), EINVAL);
  attr.attr_mask = IBV_CQ_ATTR_MODERATE | IBV_CQ_ATTR_RESERVED;
  EXPECT_EQ(ibv_modify_cq(b->recv_cq, &attr), EINVAL);
}

// The count is reached long before the time is over; that needs four of the longest periods.
TEST_F(Verb_ibv_modify_cq, AnEventComesWithItsCount) {
  ASSERT_EQ(Moderate(100, 4095), 0);
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < 100; i += 50) {
    for (int k = 0; k < 50; ++k) ASSERT_EQ(a->Send(1, 0, 8), 0);
    for (int k = 0; k < 50; ++k) ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  TakeEvent();
  const auto elapsed = Clock::now() - begin;
  ibv_wc wc[128];
  int polled = 0;
  ASSERT_TRUE(Eventually([&] { return (polled += ibv_poll_cq(b->recv_cq, 128, wc)) == 100; }));
  // One event for them all, unless the machine was too slow for the period.
  if (elapsed < std::chrono::microseconds(4095)) {
    EXPECT_FALSE(HasEvent(0));
  }
}

// The NIC counts a period from its step's time, which may lie before the program's; so a little
// less than the period may pass, and the median is looked at.
TEST_F(Verb_ibv_modify_cq, AnEventComesWhenItsTimeIsOver) {
  ASSERT_EQ(Moderate(1000, 4000), 0);
  EXPECT_GE(MedianTimeToEvent(), std::chrono::microseconds(3900));
}

TEST_F(Verb_ibv_modify_cq, ZeroTurnsItOff) {
  ASSERT_EQ(Moderate(1000, 4000), 0);
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
  SendSome(1);
  ASSERT_EQ(Moderate(0, 0), 0);
  TakeEvent();
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
  SendSome(1);
  TakeEvent();
}

TEST_F(Verb_ibv_modify_cq, HoldsForAResizedQueue) {
  ASSERT_EQ(Moderate(1000, 4000), 0);
  ASSERT_EQ(ibv_resize_cq(b->recv_cq, 2000), 0);
  EXPECT_GE(MedianTimeToEvent(), std::chrono::microseconds(3900));
}

// A receiver that sleeps between its completions, as with the plain CQ.
TEST_F(Verb_ibv_modify_cq, NoWakeUpIsLost) {
  constexpr int kMessages = 2'000;
  ASSERT_EQ(Moderate(7, 200), 0);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
  std::thread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      if (a->Send(1, 0, 8) != 0 || a->WaitSend().status != IBV_WC_SUCCESS) return;
    }
  });
  int received = 0;
  bool failed = false;
  while (received < kMessages && !failed) {
    failed = ibv_req_notify_cq(b->recv_cq, 0) != 0;
    const int before = received;
    ibv_wc wc[16];
    for (int n = 0; (n = ibv_poll_cq(b->recv_cq, 16, wc)) > 0;) {
      for (int i = 0; i < n; ++i) failed = failed || b->PostRecv(1, 0, 8) != 0;
      received += n;
    }
    if (received == before && received < kMessages) {
      TakeEvent();
      failed = failed || HasFatalFailure();
    }
  }
  sender.join();
  EXPECT_EQ(received, kMessages);
}

}  // namespace
}  // namespace verbena::conformance

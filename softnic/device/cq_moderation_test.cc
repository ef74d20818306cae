// Moderation: which completions an event waits for, and how long.
#include <gtest/gtest.h>

#include <cerrno>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite;

class CqModerationTest : public ::testing::Test {
 protected:
  CqModerationTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        channel(b.CreateChannel()),
        cq_a(a.MustCreateCq(64)),
        cq_b(b.MustCreateCq(64, channel)),
        qp_a(a.MustCreateQp(Service::kUc, cq_a)),
        qp_b(b.MustCreateQp(Service::kUc, cq_b)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), kAll)) {
    Connect(a, qp_a, b, qp_b, Service::kUc);
  }
  int Moderate(uint16_t count, uint16_t period_us) {
    shm::ModifyCqRequest request{cq_b.handle, count, period_us};
    return b.ExecuteRaw(shm::CommandOp::kModifyCq, &request, sizeof(request), nullptr, 0);
  }
  void SendOne(uint8_t flags = shm::kSendSignaled) {
    b.PostRecv(qp_b, 1, {SgeOf(memory_b, 64, mr_b.lkey)});
    a.PostInline(qp_a, MakeWqe(shm::WrOpcode::kSend, 1, flags), "x");
    world.Settle();
    a.PollAll(cq_a);
  }
  void SendSome(int count) {
    for (int i = 0; i < count; ++i) SendOne();
  }
  // The device's time goes on; no timer of a QP is in the way.
  void Pass(Duration time) {
    world.now = world.now + time;
    world.device->OnTimeout(world.now);
    world.Settle();
  }
  size_t Events() { return b.services.open_channels.at(channel).size(); }

  alignas(64) uint8_t memory_b[4'096] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  shm::Handle channel;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  TestMr mr_b;
};

TEST_F(CqModerationTest, AnEventWaitsForItsCount) {
  ASSERT_EQ(Moderate(3, 4'000), 0);
  cq_b.ring.Arm(false);
  SendSome(2);
  EXPECT_EQ(Events(), 0u);
  SendOne();
  EXPECT_EQ(Events(), 1u);
  SendSome(5);
  EXPECT_EQ(Events(), 1u) << "one event for each arming";
  cq_b.ring.Arm(false);
  SendSome(2);
  EXPECT_EQ(Events(), 1u) << "what came unarmed counts";
  SendOne();
  EXPECT_EQ(Events(), 2u);
}

TEST_F(CqModerationTest, AnEventWaitsNoLongerThanItsPeriod) {
  ASSERT_EQ(Moderate(10, 100), 0);
  cq_b.ring.Arm(false);
  SendOne();
  const Instant first = world.now;
  EXPECT_EQ(world.device->PollTimeout(), first + Microseconds(100));
  Pass(Microseconds(60));
  SendOne();  // the time is the first one's
  Pass(Microseconds(39));
  EXPECT_EQ(Events(), 0u);
  Pass(Microseconds(1));
  EXPECT_EQ(Events(), 1u);
  EXPECT_TRUE(world.device->PollTimeout().IsNever());
  Pass(Microseconds(1'000));
  EXPECT_EQ(Events(), 1u);
}

TEST_F(CqModerationTest, ACountThatIsReachedStopsTheClock) {
  ASSERT_EQ(Moderate(2, 100), 0);
  cq_b.ring.Arm(false);
  SendSome(2);
  EXPECT_EQ(Events(), 1u);
  EXPECT_TRUE(world.device->PollTimeout().IsNever());
  cq_b.ring.Arm(false);
  Pass(Microseconds(500));
  EXPECT_EQ(Events(), 1u);
}

// Who polls what is held back, and arms once more, may get an event too many, and never none.
TEST_F(CqModerationTest, ArmingAgainKeepsTheEvent) {
  ASSERT_EQ(Moderate(10, 100), 0);
  cq_b.ring.Arm(false);
  SendOne();
  cq_b.ring.Arm(false);
  Pass(Microseconds(100));
  EXPECT_EQ(Events(), 1u);
}

TEST_F(CqModerationTest, ZeroOfEitherTurnsItOff) {
  size_t events = 0;
  for (auto [count, period_us] : {std::pair<uint16_t, uint16_t>{0, 100}, {10, 0}, {0, 0}}) {
    ASSERT_EQ(Moderate(count, period_us), 0);
    cq_b.ring.Arm(false);
    SendOne();
    EXPECT_EQ(Events(), ++events) << count << ", " << period_us;
  }
}

TEST_F(CqModerationTest, SolicitedOnesAreModeratedToo) {
  ASSERT_EQ(Moderate(4, 100), 0);
  cq_b.ring.Arm(true);
  SendSome(2);
  EXPECT_TRUE(world.device->PollTimeout().IsNever()) << "nothing it is armed for came";
  SendOne(shm::kSendSignaled | shm::kSendSolicited);
  EXPECT_EQ(Events(), 0u);
  Pass(Microseconds(100));
  EXPECT_EQ(Events(), 1u);
  cq_b.ring.Arm(true);
  SendSome(9);
  Pass(Microseconds(1'000));
  EXPECT_EQ(Events(), 1u);
  SendOne(shm::kSendSignaled | shm::kSendSolicited);
  EXPECT_EQ(Events(), 2u) << "the tenth, with a count of four";
}

TEST_F(CqModerationTest, NewNumbersHoldForWhatIsHeldBack) {
  ASSERT_EQ(Moderate(10, 4'000), 0);
  cq_b.ring.Arm(false);
  SendSome(3);
  ASSERT_EQ(Moderate(5, 50), 0);
  EXPECT_EQ(Events(), 0u);
  EXPECT_EQ(world.device->PollTimeout(), world.now + Microseconds(50));
  ASSERT_EQ(Moderate(3, 50), 0);
  EXPECT_EQ(Events(), 1u);
  cq_b.ring.Arm(false);
  SendOne();
  ASSERT_EQ(Moderate(0, 0), 0);
  EXPECT_EQ(Events(), 2u);
}

TEST_F(CqModerationTest, RefusesWhatTheDeviceDoesNotOffer) {
  shm::QueryDeviceReply device;
  ASSERT_EQ(b.ExecuteRaw(shm::CommandOp::kQueryDevice, nullptr, 0, &device, sizeof(device)), 0);
  EXPECT_EQ(device.max_cq_moderation_count, 0xffffu);
  EXPECT_EQ(device.max_cq_moderation_period_us, 0xfffu);
  EXPECT_EQ(Moderate(0xffff, 0xfff), 0);
  EXPECT_EQ(Moderate(1, 0x1000), EINVAL);
  shm::ModifyCqRequest stale{cq_b.handle + 1, 1, 1};
  EXPECT_EQ(b.ExecuteRaw(shm::CommandOp::kModifyCq, &stale, sizeof(stale), nullptr, 0), EINVAL);
}

TEST_F(CqModerationTest, ADestroyedQueueIsNotWaitedFor) {
  const shm::Handle cq = b.MustCreateCq(16, channel).handle;
  TestCq other = b.MustCreateCq(64, channel);
  TestQp qp = b.MustCreateQp(Service::kRc, other);
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDestroyCq, cq), 0);
  shm::ModifyCqRequest request{other.handle, 10, 100};
  ASSERT_EQ(b.ExecuteRaw(shm::CommandOp::kModifyCq, &request, sizeof(request), nullptr, 0), 0);
  other.ring.Arm(false);
  ASSERT_EQ(b.ToInit(qp, Service::kRc), 0);
  b.PostRecv(qp, 1, {});
  ASSERT_EQ(b.ToError(qp), 0);
  EXPECT_FALSE(world.device->PollTimeout().IsNever());
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDestroyQp, qp.handle), 0);
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDestroyCq, other.handle), 0);
  EXPECT_TRUE(world.device->PollTimeout().IsNever());
  Pass(Microseconds(1'000));
  EXPECT_EQ(Events(), 0u);
}

}  // namespace
}  // namespace verbena::softnic::testing

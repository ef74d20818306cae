// A SEND that finds no receive at a peer in the device: how its sender waits for one.
#include <gtest/gtest.h>

#include "softnic/device/test_world.h"
#include "transport/qp_attributes.h"

namespace verbena::softnic::testing {
namespace {

class Rnr : public ::testing::Test {
 protected:
  static constexpr PathAttr kPath = {.min_rnr_timer = 12, .rnr_retry = 2};
  static constexpr Duration kWait = transport::RnrDelay(kPath.min_rnr_timer);

  Rnr()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        cq_a(a.MustCreateCq()),
        cq_b(b.MustCreateCq()),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), access::kLocalWrite)),
        qp_a(a.MustCreateQp(Service::kRc, cq_a)) {}

  void ConnectTo(TestQp& qp_b) {
    for (auto [client, qp, peer, peer_qp] :
         {std::tuple(&a, &qp_a, &b, &qp_b), std::tuple(&b, &qp_b, &a, &qp_a)}) {
      ASSERT_EQ(client->ToInit(*qp, Service::kRc), 0);
      ASSERT_EQ(client->ToRtr(*qp, Service::kRc, TestWorld::GidOf(peer->nic), peer_qp->qpn, kPath),
                0);
    }
    ASSERT_EQ(a.ToRts(qp_a, Service::kRc, kPath), 0);
    ASSERT_EQ(b.ToRts(qp_b, Service::kRc, kPath), 0);
  }
  void Send() {
    a.PostInline(qp_a, MakeWqe(shm::WrOpcode::kSend, 1), "hello");
    world.Settle();
    refused = world.now;
  }
  // When timers were due, since the SEND was refused, until `done`.
  template <typename Done>
  std::vector<Duration> TimersUntil(Done done) {
    std::vector<Duration> due;
    while (!done() && world.AdvanceToTimer()) {
      due.push_back(world.now - refused);
      world.Settle();
    }
    return due;
  }
  bool IsSent() { return cq_a.ring.Peek() != nullptr; }
  std::vector<shm::Sge> Buffer() { return {SgeOf(memory_b, 64, mr_b.lkey)}; }

  uint8_t memory_b[64] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestMr mr_b;
  TestQp qp_a;
  Instant refused{0};
};

TEST_F(Rnr, APeerHereIsLookedAtMoreAndMoreSeldom) {
  TestQp qp_b = b.MustCreateQp(Service::kRc, cq_b);
  ConnectTo(qp_b);
  Send();
  // The second wait is for the same message: all looks that are worth one were made.
  const std::vector<Duration> expected = {
      Microseconds(40), Microseconds(120), Microseconds(280), Microseconds(600), kWait, kWait * 2};
  EXPECT_EQ(TimersUntil([this] { return IsSent(); }), expected);
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kRnrRetryExcErr);
}

TEST_F(Rnr, AReceiveThereEndsTheWait) {
  TestQp qp_b = b.MustCreateQp(Service::kRc, cq_b);
  ConnectTo(qp_b);
  // The first message of a connection, which never goes in one step, and later ones; those have
  // all of the looks again.
  for (int i = 0; i < 3; ++i) {
    const uint64_t pdus_before = world.device->Stats().pdus;
    Send();
    ASSERT_TRUE(world.AdvanceToTimer());
    world.Settle();
    EXPECT_FALSE(IsSent());
    b.PostRecv(qp_b, 7, Buffer());
    EXPECT_EQ(TimersUntil([this] { return IsSent(); }), std::vector{Microseconds(120)}) << i;
    EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kSuccess);
    EXPECT_EQ(b.Poll(cq_b)->byte_len, 5u);
    EXPECT_EQ(world.device->Stats().pdus - pdus_before, 4u) << "a look is no message";
  }
}

TEST_F(Rnr, AReceiveInASharedQueueEndsTheWait) {
  TestSrq srq;
  ASSERT_EQ(b.CreateSrq(8, 2, &srq), 0);
  shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
  request.srq = srq.handle;
  TestQp qp_b;
  ASSERT_EQ(b.CreateQp(request, &qp_b), 0);
  ConnectTo(qp_b);
  Send();
  EXPECT_EQ(srq.ring.ConsumerIndex(), 0u);
  b.PostSrqRecv(srq, 7, Buffer());
  EXPECT_EQ(TimersUntil([this] { return IsSent(); }), std::vector{Microseconds(40)});
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kSuccess);
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 7u);
}

// Nothing is to be found in the queue of a QP that has failed.
TEST_F(Rnr, APeerThatHasFailedIsNotLookedAt) {
  TestQp qp_b = b.MustCreateQp(Service::kRc, cq_b);
  ConnectTo(qp_b);
  Send();
  ASSERT_EQ(b.ToError(qp_b), 0);
  b.PostRecv(qp_b, 7, Buffer());
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->status, WcStatus::kWrFlushErr);
  ASSERT_TRUE(world.RunUntil([this] { return IsSent(); }));
  EXPECT_GE(world.now - refused, kWait);
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kRetryExcErr);
}

}  // namespace
}  // namespace verbena::softnic::testing

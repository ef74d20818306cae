// Shared receive queues: sharing, limit event, resize, hostile rings.
#include <gtest/gtest.h>

#include <cerrno>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

class SrqTest : public ::testing::Test {
 protected:
  SrqTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        cq_a(a.MustCreateCq(64)),
        cq_b(b.MustCreateCq(64)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), access::kLocalWrite)) {
    EXPECT_EQ(b.CreateSrq(8, 2, &srq), 0);
    for (int i = 0; i < 2; ++i) {
      qps_a[i] = a.MustCreateQp(Service::kRc, cq_a);
      shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
      request.srq = srq.handle;
      EXPECT_EQ(b.CreateQp(request, &qps_b[i]), 0);
      Connect(a, qps_a[i], b, qps_b[i], Service::kRc);
    }
  }
  void PostRecvs(int count) {
    for (int i = 0; i < count; ++i) {
      b.PostSrqRecv(srq, next_recv, {SgeOf(memory_b + 64 * next_recv, 64, mr_b.lkey)});
      ++next_recv;
    }
  }
  void Send(int qp) {
    a.PostInline(qps_a[qp], MakeWqe(shm::WrOpcode::kSend, 1), "hello");
    world.Settle();
  }
  int ModifySrq(uint32_t mask, uint32_t max_wr, uint32_t limit, shm::ModifySrqReply* reply) {
    return b.Execute(shm::CommandOp::kModifySrq,
                     shm::ModifySrqRequest{srq.handle, mask, max_wr, limit, 0}, reply);
  }
  uint32_t Limit() {
    shm::QuerySrqReply reply;
    EXPECT_EQ(b.Execute(shm::CommandOp::kQuerySrq, shm::HandleRequest{srq.handle, 0}, &reply), 0);
    return reply.srq_limit;
  }
  int CountEvents(EventType event) {
    std::vector<EventType> events = b.TakeAsyncEvents();
    return static_cast<int>(std::count(events.begin(), events.end(), event));
  }

  alignas(64) uint8_t memory_b[8'192] = {};
  uint64_t next_recv = 0;
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestMr mr_b;
  TestSrq srq;
  TestQp qps_a[2], qps_b[2];
};

TEST_F(SrqTest, QpsTakeReceivesInTurn) {
  PostRecvs(3);
  Send(0);
  Send(1);
  Send(0);
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 3u);
  EXPECT_EQ(wcs[0].wr_id, 0u);
  EXPECT_EQ(wcs[0].qpn, qps_b[0].qpn.value);
  EXPECT_EQ(wcs[1].wr_id, 1u);
  EXPECT_EQ(wcs[1].qpn, qps_b[1].qpn.value);
  EXPECT_EQ(std::memcmp(memory_b + 64, "hello", 5), 0);
  EXPECT_EQ(srq.ring.ConsumerIndex(), 3u);  // the slots are free again
}

TEST_F(SrqTest, LimitEventComesOnceAndDisarms) {
  PostRecvs(5);
  shm::ModifySrqReply reply;
  ASSERT_EQ(ModifySrq(shm::kSrqLimit, 0, 4, &reply), 0);
  EXPECT_EQ(Limit(), 4u);
  Send(0);  // 4 left: not below
  EXPECT_EQ(CountEvents(EventType::kSrqLimitReached), 0);
  Send(1);
  ASSERT_EQ(b.services.async_events.size(), 1u);
  EXPECT_EQ(b.services.async_events.front().object, srq.handle);
  EXPECT_EQ(CountEvents(EventType::kSrqLimitReached), 1);
  EXPECT_EQ(Limit(), 0u);
  Send(0);
  EXPECT_EQ(CountEvents(EventType::kSrqLimitReached), 0);
}

TEST_F(SrqTest, LimitAboveTheDepthIsRefused) {
  shm::ModifySrqReply reply;
  EXPECT_EQ(ModifySrq(shm::kSrqLimit, 0, 9, &reply), EINVAL);
  EXPECT_EQ(ModifySrq(1u << 5, 0, 0, &reply), EINVAL);
}

TEST_F(SrqTest, ResizeKeepsWhatIsPosted) {
  PostRecvs(6);
  Send(0);
  shm::ModifySrqReply reply;
  ASSERT_EQ(ModifySrq(shm::kSrqMaxWr, 30, 0, &reply), 0);
  EXPECT_EQ(reply.max_wr, 32u);
  srq.ring.MoveTo(RingMemory(b.MapQueue(reply.place), reply.place.bytes), reply.place.entries,
                  reply.max_wr);
  PostRecvs(27);
  for (int i = 0; i < 32; ++i) Send(i % 2);
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 33u);
  for (size_t i = 0; i < wcs.size(); ++i) EXPECT_EQ(wcs[i].wr_id, i);
}

TEST_F(SrqTest, ResizeBelowWhatIsPostedOrBeyondTheLimitIsRefused) {
  PostRecvs(5);
  shm::ModifySrqReply reply;
  EXPECT_EQ(ModifySrq(shm::kSrqMaxWr, 4, 0, &reply), EINVAL);
  EXPECT_EQ(ModifySrq(shm::kSrqMaxWr, 0, 0, &reply), EINVAL);
  EXPECT_EQ(ModifySrq(shm::kSrqMaxWr, DeviceLimits{}.max_srq_wr + 1, 0, &reply), EINVAL);
  Send(0);
  Send(0);
  size_t queues = b.services.queues.size();
  EXPECT_EQ(ModifySrq(shm::kSrqMaxWr, 4, 0, &reply), 0);
  EXPECT_EQ(b.services.queues.size(), queues);
}

TEST_F(SrqTest, LyingRingFailsTheQpThatFindsOutAndTheSrq) {
  srq.ring.Reset(5'000);
  Send(0);
  std::vector<EventType> events = b.TakeAsyncEvents();
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kSrqErr), 1);
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kQpFatal), 1);
  EXPECT_EQ(b.StateOf(qps_b[0]), QpState::kErr);
  EXPECT_EQ(world.device->Stats().hostile_acts, 1u);
}

TEST_F(SrqTest, ErrorOfAQpReportsTheLastWqe) {
  PostRecvs(1);
  ASSERT_EQ(b.ToError(qps_b[0]), 0);
  EXPECT_EQ(CountEvents(EventType::kQpLastWqeReached), 1);
  EXPECT_TRUE(b.PollAll(cq_b).empty());  // the SRQ's receives are the other QPs'
  Send(1);
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
}

TEST_F(SrqTest, EmptySrqIsRetried) {
  Send(0);
  EXPECT_TRUE(b.PollAll(cq_b).empty());
  PostRecvs(1);
  ASSERT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
}

TEST_F(SrqTest, CreateChecksItsArguments) {
  TestSrq other;
  const DeviceLimits limits;
  EXPECT_EQ(b.CreateSrq(0, 1, &other), EINVAL);
  EXPECT_EQ(b.CreateSrq(limits.max_srq_wr + 1, 1, &other), EINVAL);
  EXPECT_EQ(b.CreateSrq(1, limits.max_srq_sge + 1, &other), EINVAL);
}

}  // namespace
}  // namespace verbena::softnic::testing

// Completion queues: arming, channel events, overrun, resize; asynchronous events.
#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead;

class CqTest : public ::testing::Test {
 protected:
  CqTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        channel(b.CreateChannel()),
        cq_a(a.MustCreateCq(64)),
        cq_b(b.MustCreateCq(4, channel)),
        qp_a(a.MustCreateQp(Service::kRc, cq_a)),
        qp_b(b.MustCreateQp(Service::kRc, cq_b)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), kAll)) {
    Connect(a, qp_a, b, qp_b, Service::kRc);
  }
  void SendOne(uint8_t flags = shm::kSendSignaled) {
    b.PostRecv(qp_b, ++last_recv, {SgeOf(memory_b, 64, mr_b.lkey)});
    a.PostInline(qp_a, MakeWqe(shm::WrOpcode::kSend, 1, flags), "x");
    world.Settle();
    a.PollAll(cq_a);
  }
  // A channel with the event of a flushed receive, sent or waiting.
  shm::Handle ChannelWithEvent(TestClient& client) {
    const shm::Handle made = client.CreateChannel();
    TestCq cq = client.MustCreateCq(4, made);
    TestQp qp = client.MustCreateQp(Service::kRc, cq);
    cq.ring.Arm(false);
    EXPECT_EQ(client.ToInit(qp, Service::kRc), 0);
    client.PostRecv(qp, 1, {});
    EXPECT_EQ(client.ToError(qp), 0);
    return made;
  }
  std::deque<shm::ChannelEvent>& Fd() { return b.services.open_channels.at(channel); }

  alignas(64) uint8_t memory_b[4'096] = {};
  uint64_t last_recv = 0;
  TestWorld world;
  TestClient& a;
  TestClient& b;
  shm::Handle channel;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  TestMr mr_b;
};

TEST_F(CqTest, OneEventPerArm) {
  SendOne();
  EXPECT_EQ(Fd().size(), 0u);  // not armed
  b.PollAll(cq_b);
  cq_b.ring.Arm(false);
  SendOne();
  SendOne();
  ASSERT_EQ(Fd().size(), 1u);
  EXPECT_EQ(Fd().front().cq, cq_b.handle);
  cq_b.ring.Arm(false);
  SendOne();
  EXPECT_EQ(Fd().size(), 2u);
}

// A turn may take long, and what is posted amid it complete in it.
TEST_F(CqTest, TimestampsAreOfTheCompletionWhereTheyAreAskedFor) {
  TestCq cq;
  ASSERT_EQ(a.CreateCq(64, 0, &cq, shm::kCqTimestamps), 0);
  TestQp qp = a.MustCreateQp(Service::kRc, cq);
  TestQp peer = b.MustCreateQp(Service::kRc, cq_b);
  Connect(a, qp, b, peer, Service::kRc);
  for (auto [sender, receiver] : {std::pair(&qp, &peer), std::pair(&qp_a, &qp_b)}) {
    b.PostRecv(*receiver, 1, {SgeOf(memory_b, 64, mr_b.lkey)});
    a.PostInline(*sender, MakeWqe(shm::WrOpcode::kSend, 1), "x");
    world.Settle();
  }
  const std::optional<Wc> stamped = a.Poll(cq), plain = a.Poll(cq_a);
  ASSERT_TRUE(stamped && plain);
  EXPECT_EQ(stamped->timestamp_ns, static_cast<uint64_t>((world.now + TestWorld::kIntoTurn).ns));
  EXPECT_EQ(plain->timestamp_ns, static_cast<uint64_t>(world.now.ns));
}

TEST_F(CqTest, ArmingDoesNotFireForWhatIsThereAlready) {
  SendOne();
  cq_b.ring.Arm(false);
  world.Settle();
  EXPECT_EQ(Fd().size(), 0u);
}

TEST_F(CqTest, SolicitedArmWaitsForASolicitedCompletion) {
  cq_b.ring.Arm(true);
  SendOne();
  EXPECT_EQ(Fd().size(), 0u);
  SendOne(shm::kSendSignaled | shm::kSendSolicited);
  EXPECT_EQ(Fd().size(), 1u);
}

TEST_F(CqTest, SolicitedArmFiresForFailures) {
  cq_b.ring.Arm(true);
  b.PostRecv(qp_b, 1, {});
  ASSERT_EQ(b.ToError(qp_b), 0);
  world.Settle();
  EXPECT_EQ(Fd().size(), 1u);
}

TEST_F(CqTest, EventThatDoesNotFitIsSentLater) {
  b.services.fd_capacity = 0;
  cq_b.ring.Arm(false);
  SendOne();
  b.PollAll(cq_b);
  cq_b.ring.Arm(false);
  SendOne();  // one undelivered event at most
  world.device->FlushEvents();
  EXPECT_EQ(Fd().size(), 0u);
  b.services.fd_capacity = 10;
  world.device->FlushEvents();
  EXPECT_EQ(Fd().size(), 1u);
  world.device->FlushEvents();
  EXPECT_EQ(Fd().size(), 1u);
  b.PollAll(cq_b);
  cq_b.ring.Arm(false);
  SendOne();
  EXPECT_EQ(Fd().size(), 2u);
}

TEST_F(CqTest, FullChannelDoesNotHoldUpAnother) {
  b.services.fd_capacity = 1;
  cq_b.ring.Arm(false);
  SendOne();
  b.PollAll(cq_b);
  cq_b.ring.Arm(false);
  SendOne();  // waits: the fd holds one
  const shm::Handle other_channel = ChannelWithEvent(b);
  EXPECT_EQ(b.services.open_channels.at(other_channel).size(), 1u);
}

// Each that is tried is a system call, and all wait for the leader meanwhile.
TEST_F(CqTest, ChannelsThatNobodyReadsAreTriedAFewAtATime) {
  constexpr uint32_t kUnread = 300, kTriesOfOneMax = 64;
  std::vector<shm::Handle> unread;
  b.services.fd_capacity = 0;
  for (uint32_t i = 0; i < kUnread; ++i) unread.push_back(ChannelWithEvent(b));
  b.services.refused_events = 0;
  world.device->FlushEvents();
  EXPECT_GE(b.services.refused_events, 1u);
  EXPECT_LE(b.services.refused_events, kTriesOfOneMax);
  // Whoever reads gets its own, behind however many that do not.
  a.services.fd_capacity = 0;
  const shm::Handle read = ChannelWithEvent(a);
  a.services.fd_capacity = 10;
  world.device->FlushEvents();
  EXPECT_EQ(a.services.open_channels.at(read).size(), 1u) << "another client";
  cq_b.ring.Arm(false);
  SendOne();
  b.services.open_channels.at(channel).clear();
  b.services.fd_capacity = 1;
  for (shm::Handle full : unread) b.services.open_channels.at(full).push_back({});
  for (uint32_t flush = 0; flush <= kUnread; ++flush) world.device->FlushEvents();
  EXPECT_EQ(Fd().size(), 1u) << "another channel of this one";
  for (shm::Handle full : unread) b.services.open_channels.at(full).clear();
  world.device->FlushEvents();
  for (shm::Handle emptied : unread) {
    ASSERT_EQ(b.services.open_channels.at(emptied).size(), 1u);
  }
}

TEST_F(CqTest, EventOfADestroyedCqIsDiscarded) {
  TestCq doomed = b.MustCreateCq(4, channel);
  TestQp qp = b.MustCreateQp(Service::kRc, doomed);
  b.services.fd_capacity = 0;
  doomed.ring.Arm(false);
  ASSERT_EQ(b.ToInit(qp, Service::kRc), 0);
  b.PostRecv(qp, 1, {});
  ASSERT_EQ(b.ToError(qp), 0);
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDestroyQp, qp.handle), 0);
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDestroyCq, doomed.handle), 0);
  b.services.fd_capacity = 10;
  world.device->FlushEvents();
  EXPECT_EQ(Fd().size(), 0u);
}

TEST_F(CqTest, OverrunEndsTheCqAndItsQps) {
  for (int i = 0; i < 4; ++i) SendOne();
  EXPECT_TRUE(b.TakeAsyncEvents().size() <= 1);  // COMM_EST at most
  SendOne();
  std::vector<EventType> events = b.TakeAsyncEvents();
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kCqErr), 1);
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kQpFatal), 1);
  EXPECT_EQ(b.StateOf(qp_b), QpState::kErr);
  // What was completed before is there.
  EXPECT_EQ(b.PollAll(cq_b).size(), 4u);
  // No more of it.
  b.PostRecv(qp_b, 9, {});
  EXPECT_TRUE(b.PollAll(cq_b).empty());
  EXPECT_TRUE(b.TakeAsyncEvents().empty());
  TestQp qp;
  EXPECT_EQ(b.CreateQp(b.QpRequest(Service::kRc, cq_b.handle), &qp), EINVAL);
  EXPECT_EQ(b.DoHandle(shm::CommandOp::kDestroyQp, qp_b.handle), 0);
  EXPECT_EQ(b.DoHandle(shm::CommandOp::kDestroyCq, cq_b.handle), 0);
}

TEST_F(CqTest, OverrunOfOneQpsCqFailsAllQpsOnIt) {
  TestQp bystander = b.MustCreateQp(Service::kUc, cq_b);
  ASSERT_EQ(b.ToInit(bystander, Service::kUc), 0);
  for (int i = 0; i < 5; ++i) SendOne();
  EXPECT_EQ(b.StateOf(bystander), QpState::kErr);
}

TEST_F(CqTest, LyingConsumerIndexGainsNothing) {
  for (int i = 0; i < 4; ++i) SendOne();
  auto* head = reinterpret_cast<shm::CqHead*>(
      b.services.queues.begin()->second.memory);  // the first queue of b is its CQ
  head->consumer.store(1'000'000);                // polled what was never written
  SendOne();
  std::vector<EventType> events = b.TakeAsyncEvents();
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kCqErr), 1);
}

TEST_F(CqTest, ResizeKeepsWhatIsUnpolledAndTheArm) {
  SendOne();
  SendOne();
  b.Poll(cq_b);
  cq_b.ring.Arm(false);
  shm::ResizeCqRequest request{cq_b.handle, 100, 0};
  shm::CreateCqReply reply;
  ASSERT_EQ(b.Execute(shm::CommandOp::kResizeCq, request, &reply), 0);
  EXPECT_EQ(reply.place.entries, 128u);
  cq_b.ring.MoveTo(RingMemory(b.MapQueue(reply.place), reply.place.bytes), reply.place.entries);
  EXPECT_EQ(b.Poll(cq_b).value().wr_id, 2u);
  for (int i = 0; i < 100; ++i) SendOne();
  EXPECT_EQ(b.PollAll(cq_b).size(), 100u);
  EXPECT_EQ(Fd().size(), 1u);
}

TEST_F(CqTest, ResizeBelowWhatIsUnpolledIsRefused) {
  for (int i = 0; i < 3; ++i) SendOne();
  shm::CreateCqReply reply;
  auto resize = [&](uint32_t entries) {
    return b.Execute(shm::CommandOp::kResizeCq, shm::ResizeCqRequest{cq_b.handle, entries, 0},
                     &reply);
  };
  EXPECT_EQ(resize(2), EINVAL);
  EXPECT_EQ(resize(0), EINVAL);
  EXPECT_EQ(resize(DeviceLimits{}.max_cqe + 1), EINVAL);
  EXPECT_EQ(b.PollAll(cq_b).size(), 3u);
  size_t queues = b.services.queues.size();
  EXPECT_EQ(resize(2), 0);
  EXPECT_EQ(b.services.queues.size(), queues);
}

TEST_F(CqTest, IgnoredOverrunDropsCompletions) {
  TestCq cq;
  ASSERT_EQ(b.CreateCq(2, 0, &cq, 2), 0);
  TestQp qp = b.MustCreateQp(Service::kRc, cq);
  ASSERT_EQ(b.ToInit(qp, Service::kRc), 0);
  for (uint64_t i = 0; i < 5; ++i) b.PostRecv(qp, i, {});
  b.TakeAsyncEvents();
  ASSERT_EQ(b.ToError(qp), 0);
  EXPECT_EQ(b.PollAll(cq).size(), 2u);
  EXPECT_TRUE(b.TakeAsyncEvents().empty());
}

TEST_F(CqTest, AsyncEventsOfAClientThatReadsNoneAreBounded) {
  b.services.fd_capacity = 0;
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(a.ToReset(qp_a), 0);
    ASSERT_EQ(b.ToReset(qp_b), 0);
    Connect(a, qp_a, b, qp_b, Service::kRc);
    // A hostile index: QP_FATAL each time.
    qp_b.sq.Reset(1'000);
    b.Ring(qp_b);
    world.Settle();
    ASSERT_EQ(b.StateOf(qp_b), QpState::kErr);
  }
  b.services.fd_capacity = 1'000;
  world.device->FlushEvents();
  EXPECT_EQ(b.TakeAsyncEvents().size(), DeviceQp::kMaxUndeliveredEvents);
  EXPECT_EQ(world.device->Stats().hostile_acts, 1u);  // one QP, counted once
}

}  // namespace
}  // namespace verbena::softnic::testing

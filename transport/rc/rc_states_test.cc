// Stories about states: flushing, draining, resetting, events.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr bool kReceives = false;

TEST(RcStates, ErrorFlushesBothQueuesInOrder) {
  RcPair pair;
  MemoryId region = pair.NewPattern(8);
  for (uint64_t id = 1; id <= 3; ++id) {
    pair.Queue(kA, pair.Remote(
                       RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(region, 0, 8)}, 0),
                       region));
    pair.PostRecv(kA, 10 + id, {});
  }
  pair.Ring(kA);  // in flight, not acknowledged
  for (uint64_t id = 4; id <= 5; ++id) pair.Queue(kA, RcPair::Work(id, WrOpcode::kSend, {}, 0));
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kErr), 0);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:flush 2:flush 3:flush 4:flush 5:flush");
  EXPECT_EQ(pair.TakeCompletions(kA, kReceives), "11:flush 12:flush 13:flush");
  EXPECT_EQ(pair.hosts[kA]->sends_released, 5u);
  EXPECT_EQ(pair.hosts[kA]->recvs_released, 3u);

  pair.Post(kA, RcPair::Work(6, WrOpcode::kSend, {}));
  pair.PostRecv(kA, 14, {});
  pair.fabric.Drive(kA);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "6:flush");
  EXPECT_EQ(pair.TakeCompletions(kA, kReceives), "14:flush");
}

TEST(RcStates, FlushWaitsForPlacementsUnderWay) {
  RcPairOptions options;
  options.link.dma_delay = Microseconds(5);
  RcPair pair(options);
  MemoryId from = pair.NewPattern(100);
  MemoryId to = pair.NewRegion(100);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 100)});
  pair.Post(kA, RcPair::Work(1, WrOpcode::kSend, {pair.memory.SgeOf(from, 0, 100)}));
  ASSERT_TRUE(pair.fabric.Step());  // delivered; the bytes are on their way
  ASSERT_EQ(pair.ModifyTo(kB, QpState::kErr), 0);
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "");
  ASSERT_TRUE(pair.fabric.Step());
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:flush");
}

TEST(RcStates, SendFlushWaitsForAReadsPlacement) {
  RcPairOptions options;
  options.link.dma_delay = Microseconds(5);
  RcPair pair(options);
  MemoryId theirs = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(8);
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                            theirs));
  ASSERT_TRUE(pair.fabric.Step());
  ASSERT_TRUE(pair.fabric.Step());  // the response came; its bytes are on their way
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kErr), 0);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");
  ASSERT_TRUE(pair.fabric.Step());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:flush");
}

TEST(RcStates, SharedReceiveQueueIsNotFlushed) {
  RcPairOptions options;
  options.has_srq = true;
  RcPair pair(options);
  pair.PostRecv(kA, 7, {});
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kErr), 0);
  EXPECT_EQ(pair.TakeCompletions(kA, kReceives), "");
  pair.fabric.Drive(kA);
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kQpLastWqeReached));
  EXPECT_EQ(pair.fabric.events(kA).size(), 1u);
  EXPECT_EQ(pair.hosts[kA]->recvs.size(), 1u);
}

TEST(RcStates, DrainedIsToldWhenWorkBegunIsDone) {
  RcPair pair;
  MemoryId region = pair.NewPattern(8);
  auto write = [&](uint64_t id) {
    return pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(region, 0, 8)}),
                       region);
  };
  pair.Post(kA, write(1));
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kSqd), 0);
  EXPECT_FALSE(pair.HasEvent(kA, EventType::kSqDrained));
  shm::QpAttr attr;
  pair.qps[kA]->Query(attr);
  EXPECT_EQ(attr.sq_draining, 1);
  pair.Post(kA, write(2));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kSqDrained));
  pair.qps[kA]->Query(attr);
  EXPECT_EQ(attr.sq_draining, 0);
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kRts), 0);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:ok");
}

TEST(RcStates, WorkFetchedButNotBegunWaitsWhileDrained) {
  RcPair pair;
  MemoryId theirs = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(8);
  pair.Queue(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                             theirs));
  pair.Queue(kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(mine, 0, 8)},
                                          shm::kSendSignaled | shm::kSendFence),
                             theirs));
  pair.Ring(kA);  // the fence holds the second back
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kSqd), 0);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kSqDrained));
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kRts), 0);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:ok");
}

TEST(RcStates, IdleQpsAreSmall) {
  EXPECT_LE(sizeof(RcQp), 1536u);  // ten thousand of them must not be felt
}

TEST(RcStates, DrainingResendsWhatWasLost) {
  RcPair pair;
  MemoryId region = pair.NewPattern(8);
  bool lose = true;
  pair.fabric.set_drop_filter([&](const Pdu&) { return lose; });
  pair.Post(kA,
            pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(region, 0, 8)}),
                        region));
  lose = false;
  ASSERT_EQ(pair.ModifyTo(kA, QpState::kSqd), 0);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kSqDrained));
}

TEST(RcStates, CommunicationEstablishedInRtr) {
  RcPair pair;
  ASSERT_EQ(pair.ModifyTo(kB, QpState::kReset), 0);
  ASSERT_EQ(pair.ModifyTo(kB, QpState::kInit), 0);
  ASSERT_EQ(pair.ModifyTo(kB, QpState::kRtr), 0);
  MemoryId region = pair.NewPattern(8);
  for (uint64_t id = 1; id <= 2; ++id) {
    pair.Post(kA,
              pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(region, 0, 8)}),
                          region));
  }
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  ASSERT_EQ(pair.fabric.events(kB).size(), 1u);
  EXPECT_EQ(pair.fabric.events(kB)[0], EventType::kCommEst);
}

TEST(RcStates, ResetForgetsAllAndConnectsAgain) {
  RcPairOptions options;
  options.link.dma_delay = Microseconds(5);
  RcPair pair(options);
  MemoryId region = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(8);
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                            region));
  ASSERT_TRUE(pair.fabric.Step());
  ASSERT_TRUE(pair.fabric.Step());  // the response's placement is under way
  for (uint32_t side : {kA, kB}) ASSERT_EQ(pair.ModifyTo(side, QpState::kReset), 0);
  for (QpState to : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    for (uint32_t side : {kA, kB}) ASSERT_EQ(pair.ModifyTo(side, to), 0);
  }
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");
  pair.Post(kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                            region));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:ok");
  EXPECT_EQ(pair.qps[kA]->counters().rcvd_seq_err, 0u);
}

TEST(RcStates, FailRaisesItsEventAndFlushes) {
  RcPair pair;
  pair.PostRecv(kA, 7, {});
  pair.qps[kA]->Fail(pair.fabric.now(), EventType::kQpFatal);
  pair.fabric.Drive(kA);
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kQpFatal));
  EXPECT_EQ(pair.TakeCompletions(kA, kReceives), "7:flush");
}

TEST(RcStates, FenceHoldsBackUntilReadsAreDone) {
  RcPairOptions options;
  options.link.dma_delay = Microseconds(5);
  RcPair pair(options);
  MemoryId theirs = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(8);
  MemoryId copy = pair.NewRegion(8);
  pair.Queue(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                             theirs));
  // Sends on what the READ brings: only a fence makes that right.
  pair.Queue(kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(mine, 0, 8)},
                                          shm::kSendSignaled | shm::kSendFence),
                             copy));
  pair.Ring(kA);
  EXPECT_EQ(pair.fabric.pdus_sent(), 1u);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(theirs, copy));
}

TEST(RcStates, OutstandingReadsStayWithinMaxRdAtomic) {
  RcPairOptions options;
  options.max_rd_atomic = 2;
  RcPair pair(options);
  MemoryId theirs = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(80);
  for (uint32_t i = 0; i < 10; ++i) {
    pair.Queue(
        kA, pair.Remote(RcPair::Work(i, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, i * 8, 8)}),
                        theirs));
  }
  pair.Ring(kA);
  EXPECT_EQ(pair.fabric.pdus_sent(), 2u);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.fabric.completions(kA).size(), 10u);
}

TEST(RcStates, MoreWorkThanTheWindowHolds) {
  RcPair pair;
  MemoryId region = pair.NewPattern(8);
  for (uint64_t id = 0; id < 1000; ++id) {
    pair.Queue(
        kA, pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(region, 0, 8)}),
                        region));
  }
  pair.Ring(kA);
  EXPECT_EQ(pair.hosts[kA]->sends_fetched, SendWindow::kRecords);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.fabric.completions(kA).size(), 1000u);
  for (uint64_t id = 0; id < 1000; ++id) ASSERT_EQ(pair.fabric.completions(kA)[id].wr_id, id);
}

}  // namespace
}  // namespace verbena::transport::rc

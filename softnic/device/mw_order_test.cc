// Memory windows in time: the order in the send queue, and what is under way when a key goes.
#include <gtest/gtest.h>

#include "softnic/device/test_windows.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::kMwType1;
using shm::kMwType2;
using shm::VendorErr;
using shm::WrOpcode;

class WindowOrder : public WindowTest {
 protected:
  bool IsQuiet(TestCq& cq) {
    world.Settle();
    return cq.ring.Peek() == nullptr;
  }
  // A request of a peer's that is let in; what it moves is held until Let.
  void HoldRemote(WrOpcode opcode, uint64_t addr, uint32_t rkey) {
    world.dma.is_held = true;
    PostRemote(qp_a, opcode, addr, rkey);
    world.Settle();
  }
  void Let() {
    world.dma.is_held = false;
    world.Settle();
  }
};

TEST_F(WindowOrder, WorkBehindABindFindsTheWindowOpen) {
  TestMw mw = MustAllocMw(kMwType2);
  TestBind bind = Middle(mw);
  a.PostRecv(qp_a, 9, {SgeOf(memory_a, 64, mr_a.lkey)});
  bind.flags = 0;  // not even its completion is waited for
  b.Post(qp_b, BindWqe(mw, bind), {});
  shm::SendWqe tell = MakeWqe(WrOpcode::kSend, 2);
  b.PostInline(qp_b, tell, "key");
  EXPECT_EQ(Next(a, cq_a).wr_id, 9u);
  EXPECT_EQ(Write(AddrB(1'024), bind.rkey), WcStatus::kSuccess);
  EXPECT_EQ(Next(b, cq_b).wr_id, 2u);
}

TEST_F(WindowOrder, BindsOfOneListCompleteInTheirOrder) {
  TestMw mw = MustAllocMw(kMwType1);
  TestBind bind = Middle(mw);
  for (uint64_t id = 1; id <= 5; ++id) {
    bind.rkey = NextKey(mw.rkey);
    b.Post(qp_b, BindWqe(mw, bind, id), {});
    mw.rkey = bind.rkey;
  }
  for (uint64_t id = 1; id <= 5; ++id) EXPECT_EQ(Next(b, cq_b).wr_id, id);
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(WindowOrder, LocalInvalidateWaitsForAllBeforeIt) {
  TestMw mw = Bound(kMwType2);
  TestMr open_a = a.MustRegMr(memory_a, 4'096, access::kLocalWrite | kRemoteRights);
  world.dma.is_held = true;
  shm::SendWqe write =
      RemoteWqe(WrOpcode::kRdmaWrite, reinterpret_cast<uint64_t>(memory_a), open_a.rkey, 4);
  b.Post(qp_b, write, {SgeOf(memory_b, 8, mr_b.lkey)});
  b.Post(qp_b, InvalidateWqe(mw.rkey, 5), {});
  EXPECT_TRUE(IsQuiet(cq_b));
  std::vector<ShowRow> rows = world.device->Show(ShowKind::kMw);
  const std::map<std::string, std::string> row(rows.at(0).fields.begin(), rows.at(0).fields.end());
  EXPECT_EQ(row.at("state"), "bound");
  Let();
  EXPECT_EQ(Next(b, cq_b).wr_id, 4u);
  EXPECT_EQ(Next(b, cq_b).wr_id, 5u);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
}

// A bind is not held back by a READ, unless it is fenced.  Spec: IBTA 10.8.3.3.
TEST_F(WindowOrder, FencedBindWaitsForReads) {
  TestMr open_a = a.MustRegMr(memory_a, 4'096, access::kLocalWrite | kRemoteRights);
  for (bool is_fenced : {false, true}) {
    TestMw mw = MustAllocMw(kMwType2);
    TestBind bind = Middle(mw);
    if (is_fenced) bind.flags |= shm::kSendFence;
    world.dma.is_held = true;
    shm::SendWqe read =
        RemoteWqe(WrOpcode::kRdmaRead, reinterpret_cast<uint64_t>(memory_a), open_a.rkey, 4);
    b.Post(qp_b, read, {SgeOf(memory_b, 8, mr_b.lkey)});
    b.Post(qp_b, BindWqe(mw, bind, 5), {});
    EXPECT_TRUE(IsQuiet(cq_b));
    std::vector<ShowRow> rows = world.device->Show(ShowKind::kMw);
    const std::map<std::string, std::string> row(rows.back().fields.begin(),
                                                 rows.back().fields.end());
    EXPECT_EQ(row.at("state"), is_fenced ? "free" : "bound");
    Let();
    EXPECT_EQ(Next(b, cq_b).wr_id, 4u);
    EXPECT_EQ(Next(b, cq_b).wr_id, 5u);
  }
}

// --- what is under way --------------------------------------------------------------------------

TEST_F(WindowOrder, LocalInvalidateCompletesWhenNothingWritesAnyMore) {
  TestMw mw = Bound(kMwType2);
  world.dma.is_held = true;
  memory_a[0] = 5;
  PostRemote(qp_a, WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  world.Settle();
  b.Post(qp_b, InvalidateWqe(mw.rkey, 7), {});
  b.PostInline(qp_b, MakeWqe(WrOpcode::kSend, 8), "");  // overtakes nothing
  a.PostRecv(qp_a, 9, {});
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(memory_b[1'024], 5);
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
  EXPECT_EQ(Next(b, cq_b).wr_id, 8u);
}

TEST_F(WindowOrder, RebindCompletesWhenNothingWritesByTheOldKey) {
  TestMw mw = Bound(kMwType1);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  TestBind bind = Middle(mw);
  bind.addr = AddrB(2'048);
  b.Post(qp_b, BindWqe(mw, bind, 7), {});
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
  // The first bind takes nothing away, and waits for nothing.
  TestMw fresh = MustAllocMw(kMwType1);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(2'048), bind.rkey);
  b.Post(qp_b, BindWqe(fresh, Middle(fresh), 8), {});
  EXPECT_FALSE(IsQuiet(cq_b));
  Let();
}

TEST_F(WindowOrder, SendWithInvalidateCompletesWhenNothingReadsAnyMore) {
  TestMw mw = Bound(kMwType2);
  HoldRemote(WrOpcode::kRdmaRead, AddrB(1'024), mw.rkey);
  b.PostRecv(qp_b, 3, {});
  shm::SendWqe wqe = MakeWqe(WrOpcode::kSendWithInv, 2);
  wqe.imm_or_rkey = mw.rkey;
  a.PostInline(qp_a, wqe, "");
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(Next(b, cq_b).wr_id, 3u);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kSuccess);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kSuccess);
}

TEST_F(WindowOrder, DeallocationEndsWhenNothingWritesAnyMore) {
  TestMw mw = Bound(kMwType1);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  shm::HandleRequest request{mw.handle, 0};
  uint32_t slot = b.Begin(CommandOp::kDeallocMw, &request, sizeof(request));
  world.Settle();
  EXPECT_FALSE(b.IsDone(slot));
  Let();
  EXPECT_TRUE(b.IsDone(slot));
}

// The READ was let in and is not answered yet, as what came before it is still being placed.
TEST_F(WindowOrder, WhatWasLetInAndHasNotBegunNeverBegins) {
  TestMr open_b = b.MustRegMr(memory_b, 64, access::kLocalWrite | access::kRemoteWrite);
  TestMw mw = Bound(kMwType2);
  memory_b[1'024] = 0x55;
  world.dma.is_held = true;
  PostRemote(qp_a, WrOpcode::kRdmaWrite, AddrB(0), open_b.rkey, 1);
  PostRemote(qp_a, WrOpcode::kRdmaRead, AddrB(1'024), mw.rkey, 2);
  world.Settle();
  b.Post(qp_b, InvalidateWqe(mw.rkey, 7), {});
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kSuccess);
  Wc read = Next(a, cq_a);
  EXPECT_EQ(read.wr_id, 2u);
  EXPECT_NE(read.status, WcStatus::kSuccess);
  EXPECT_NE(memory_a[0], 0x55);
}

// An invalidated region's DMA is waited for likewise.
TEST_F(WindowOrder, InvalidationOfARegionWaitsToo) {
  TestMr open_b = b.MustRegMr(memory_b, 64, access::kLocalWrite | access::kRemoteWrite);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(0), open_b.rkey);
  b.Post(qp_b, InvalidateWqe(open_b.rkey, 7), {});
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
}

TEST_F(WindowOrder, ASendQueueIsDrainedWhenItsInvalidationIsDone) {
  TestMw mw = Bound(kMwType2);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  b.Post(qp_b, InvalidateWqe(mw.rkey, 7), {});
  world.Settle();
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kSqd);
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(b.Modify(qp_b, attr, shm::qp_mask::kState | shm::qp_mask::kEnSqdAsyncNotify), 0);
  world.Settle();
  EXPECT_TRUE(b.TakeAsyncEvents().empty());
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kSqDrained});
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
}

// A flush tells the program that its memory is its own again.
TEST_F(WindowOrder, AQpThatFailsIsFlushedWhenNothingWritesAnyMore) {
  TestMw mw = Bound(kMwType2);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  b.Post(qp_b, InvalidateWqe(mw.rkey, 7), {});
  world.Settle();
  ASSERT_EQ(b.ToError(qp_b), 0);
  EXPECT_TRUE(IsQuiet(cq_b));
  Let();
  EXPECT_EQ(Next(b, cq_b).status, WcStatus::kWrFlushErr);
  Renew();
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
  ASSERT_EQ(Bind(&mw, Middle(mw)).status, WcStatus::kSuccess);
}

TEST_F(WindowOrder, ASessionEndsWithItsWindowsBoundAndInUse) {
  Bound(kMwType1);
  TestMw mw = Bound(kMwType2);
  HoldRemote(WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  b.Post(qp_b, InvalidateWqe(mw.rkey, 7), {});
  world.Settle();
  world.Close(b);
  Let();
  EXPECT_TRUE(world.device->SessionIsGone(b.id));
}

// --- UC -----------------------------------------------------------------------------------------

class WindowsOverUc : public WindowTest {
 protected:
  WindowsOverUc() : WindowTest(Service::kUc) {}
};

TEST_F(WindowsOverUc, LetAPeerWriteAndKeepItOutAfterwards) {
  for (uint32_t type : {kMwType1, kMwType2}) {
    TestMw mw = Bound(type);
    memory_a[0] = static_cast<uint8_t>(type);
    ASSERT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
    world.Settle();
    EXPECT_EQ(memory_b[1'024], type);
    if (type == kMwType1) {
      TestBind nothing;
      nothing.rkey = NextKey(mw.rkey);
      nothing.length = nothing.access = 0;
      ASSERT_EQ(Bind(&mw, nothing).status, WcStatus::kSuccess);
    } else {
      ASSERT_EQ(Invalidate(mw.rkey).status, WcStatus::kSuccess);
    }
    memory_a[0] = 99;
    ASSERT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);  // nobody tells the sender
    world.Settle();
    EXPECT_EQ(memory_b[1'024], type);
  }
}

TEST_F(WindowsOverUc, ABadBindStopsSendingOnly) {
  TestMw mw = MustAllocMw(kMwType1);
  TestBind bind = Middle(mw);
  bind.lkey = 0;
  EXPECT_FAULT(Bind(&mw, bind), WcStatus::kMwBindErr, VendorErr::kBadLKey);
  EXPECT_EQ(b.StateOf(qp_b), QpState::kSqe);
  Renew();
  EXPECT_FAULT(Invalidate(mw.rkey), WcStatus::kLocQpOpErr, VendorErr::kRKeyBadState);
}

TEST_F(WindowsOverUc, InvalidationWaitsForOlderWorkAndForWhatIsUnderWay) {
  TestMw mw = Bound(kMwType2);
  world.dma.is_held = true;
  b.Post(qp_b, MakeWqe(WrOpcode::kSend, 4), {SgeOf(memory_b, 8, mr_b.lkey)});
  a.PostRecv(qp_a, 9, {SgeOf(memory_a + 64, 64, mr_a.lkey)});
  world.Settle();
  b.Post(qp_b, InvalidateWqe(mw.rkey, 5), {});
  PostRemote(qp_a, WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  world.Settle();
  EXPECT_EQ(cq_b.ring.Peek(), nullptr);
  world.dma.is_held = false;
  EXPECT_EQ(Next(b, cq_b).wr_id, 4u);
  EXPECT_EQ(Next(b, cq_b).wr_id, 5u);
  world.dma.is_held = true;
  TestMw second = MustAllocMw(kMwType2);
  b.Post(qp_b, BindWqe(second, Middle(second), 6), {});
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b).value_or(Wc{}).wr_id, 6u);
  PostRemote(qp_a, WrOpcode::kRdmaWrite, AddrB(1'024), NextKey(second.rkey));
  world.Settle();
  b.Post(qp_b, InvalidateWqe(NextKey(second.rkey), 7), {});
  b.PostInline(qp_b, MakeWqe(WrOpcode::kSend, 8), "");
  world.Settle();
  EXPECT_EQ(cq_b.ring.Peek(), nullptr);
  world.dma.is_held = false;
  EXPECT_EQ(Next(b, cq_b).wr_id, 7u);
  EXPECT_EQ(Next(b, cq_b).wr_id, 8u);
}

}  // namespace
}  // namespace verbena::softnic::testing

// The model against cases that the manual pages and IBTA decide.
#include "tests/programs/model.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/generator.h"
#include "tests/programs/model_fixture.h"
#include "tests/programs/shrink.h"

namespace verbena::programs {
namespace {

TEST_F(ModelTest, WritesMoveBytesAndNothingElse) {
  Make();
  Connect();
  const Outcome outcome = Post({Request(IBV_WR_RDMA_WRITE, 100)});
  ASSERT_TRUE(outcome.applies);
  EXPECT_EQ(StatusOf(outcome, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(model.memory(0), model.memory(1), 100), 0);
  EXPECT_NE(memcmp(model.memory(0) + 100, model.memory(1) + 100, 16), 0);
}

TEST_F(ModelTest, AReadMayBeOvertakenByASendThatDoesNotFit) {
  Make();
  Connect();
  Receive(16);  // at 4096
  Wr read = Request(IBV_WR_RDMA_READ, 64);
  read.remote_offset = 4096;
  Wr send = Request(IBV_WR_SEND, 100);
  send.sges[0].offset = 1024;
  EXPECT_FALSE(Post({read, send}).applies);
  read.remote_offset = 0;
  EXPECT_TRUE(Post({read, send}).applies);
}

TEST_F(ModelTest, WorkThatNobodyTellsOfIsWaitedFor) {
  Make();
  Connect();
  const Wr told = Request(IBV_WR_RDMA_WRITE, 0), untold = Request(IBV_WR_RDMA_WRITE, 0, 0);
  EXPECT_FALSE(Post({told}).is_silent);
  EXPECT_FALSE(Post({untold, told}).is_silent);
  EXPECT_TRUE(Post({told, untold}).is_silent);
}

TEST_F(ModelTest, ARangeThatAReadMayStillBeWritingNeedsAFence) {
  Make();
  Connect();
  Wr write = Request(IBV_WR_RDMA_WRITE, 100);
  write.remote_offset = 2048;
  EXPECT_FALSE(Post({Request(IBV_WR_RDMA_READ, 64), write}).applies);
  write.flags |= IBV_SEND_FENCE;
  EXPECT_TRUE(Post({Request(IBV_WR_RDMA_READ, 64), write}).applies);
  Wr atomic = Request(IBV_WR_ATOMIC_CMP_AND_SWP, 8);
  atomic.sges[0].offset = 50;
  write.flags = IBV_SEND_SIGNALED;
  EXPECT_FALSE(Post({atomic, write}).applies);
}

TEST_F(ModelTest, WorkBehindAFailureIsFlushed) {
  Make();
  Connect();
  Wr bad = Request(IBV_WR_RDMA_WRITE, 8);
  bad.remote_flip = 1;
  const Outcome outcome = Post({Request(IBV_WR_RDMA_WRITE, 8, 0), bad, Request(IBV_WR_SEND, 8)});
  ASSERT_EQ(outcome.completions.size(), 2u);
  EXPECT_EQ(StatusOf(outcome, 0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(StatusOf(outcome, 1), IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(outcome.events.size(), 1u);
  EXPECT_EQ(outcome.events[0].type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(model.qps.at(kQp[0]).state, IBV_QPS_ERR);
  EXPECT_EQ(model.qps.at(kQp[1]).state, IBV_QPS_ERR);
}

TEST_F(ModelTest, ASendWaitsForAReceiveOrItsRetriesEnd) {
  Make();
  Connect(7);
  EXPECT_TRUE(Post({Request(IBV_WR_SEND, 32)}).completions.empty());
  EXPECT_EQ(Receive(64).completions.size(), 2u);
  Move(0, IBV_QPS_RESET);
  Move(1, IBV_QPS_RESET);
  Connect(1);
  EXPECT_EQ(StatusOf(Post({Request(IBV_WR_SEND, 32)}), 0), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(model.qps.at(kQp[1]).state, IBV_QPS_RTS);
}

TEST_F(ModelTest, AMessageTooLongFailsBothEnds) {
  Make();
  Connect();
  Receive(31);
  const Outcome outcome = Post({Request(IBV_WR_SEND, 32)});
  EXPECT_EQ(StatusOf(outcome, 0), IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(StatusOf(outcome, 1), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_TRUE(outcome.events.empty()) << "the receive tells";
}

TEST_F(ModelTest, AQueueTakesAsManyAsItHasRoomFor) {
  Make();
  Connect();
  std::vector<Wr> wrs;
  for (int i = 0; i < 5; ++i) wrs.push_back(Request(IBV_WR_SEND, 8));
  const Outcome outcome = Post(wrs);
  EXPECT_EQ(outcome.error, ENOMEM);
  EXPECT_EQ(outcome.bad_index, 4);
  Move(0, IBV_QPS_ERR);
  EXPECT_EQ(StatusOf(Post({Request(IBV_WR_SEND, 8)}), 0), IBV_WC_WR_FLUSH_ERR);
}

TEST_F(ModelTest, StatesFollowTheTable) {
  Make();
  EXPECT_EQ(Move(0, IBV_QPS_RTS).error, EINVAL);
  EXPECT_EQ(Post({Request(IBV_WR_SEND, 8)}).error, EINVAL);
  EXPECT_EQ(Move(0, IBV_QPS_INIT).error, 0);
  EXPECT_EQ(Move(0, IBV_QPS_ERR).error, 0);
  EXPECT_EQ(Move(0, IBV_QPS_INIT).error, EINVAL);
}

TEST_F(ModelTest, WhatIsUsedIsBusy) {
  Make();
  EXPECT_EQ(Do(Call(Op::kDeallocPd, 0, kPd[0])).error, EBUSY);
  EXPECT_EQ(Do(Call(Op::kDestroyCq, 0, kCq[0])).error, EBUSY);
  EXPECT_EQ(Do(Call(Op::kDestroyQp, 0, kQp[0])).error, 0);
  EXPECT_EQ(Do(Call(Op::kDestroyCq, 0, kCq[0])).error, 0);
  EXPECT_FALSE(Do(Call(Op::kDestroyCq, 0, kCq[0])).applies) << "it is gone";
}

TEST_F(ModelTest, UnreliableQueuesLoseWhatNobodyReceives) {
  Make(IBV_QPT_UC);
  Connect();
  const Outcome outcome = Post({Request(IBV_WR_SEND, 32)});
  EXPECT_EQ(StatusOf(outcome, 0), IBV_WC_SUCCESS);
  EXPECT_TRUE(outcome.is_silent);
  Wr bad = Request(IBV_WR_RDMA_WRITE, 8);
  bad.sges[0].key_flip = 4;
  EXPECT_EQ(StatusOf(Post({bad}), 0), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(model.qps.at(kQp[0]).state, IBV_QPS_SQE);
}

TEST_F(ModelTest, StepsTogetherAreOfDifferentObjects) {
  Make();
  Connect();
  Step first = Call(Op::kPostSend, 0, kQp[0]);
  first.wrs = {Request(IBV_WR_RDMA_WRITE, 8)};
  first.with_next = true;
  ASSERT_TRUE(Do(first).applies);
  EXPECT_FALSE(Do(first).applies) << "the same QP";
  EXPECT_FALSE(Do(Call(Op::kDestroyQp, 0, kQp[0])).applies) << "no post";
  model.EndTogether();
  EXPECT_TRUE(Do(Call(Op::kDestroyQp, 0, kQp[0])).applies);
}

TEST_F(ModelTest, AnArmedCqTellsOnce) {
  Make();
  Connect();
  Step arm = Call(Op::kNotifyCq, 0, kCq[0]);
  ASSERT_TRUE(Do(arm).applies);
  EXPECT_EQ(Post({Request(IBV_WR_RDMA_WRITE, 8), Request(IBV_WR_RDMA_WRITE, 8)}).cq_events.size(),
            1u);
  EXPECT_TRUE(Post({Request(IBV_WR_RDMA_WRITE, 8)}).cq_events.empty());
  arm.to_self = true;  // for what is solicited
  ASSERT_TRUE(Do(arm).applies);
  EXPECT_TRUE(Post({Request(IBV_WR_RDMA_WRITE, 8)}).cq_events.empty());
  Wr bad = Request(IBV_WR_RDMA_WRITE, 8);
  bad.sges[0].key_flip = 1;
  EXPECT_EQ(Post({bad}).cq_events.size(), 1u) << "a failure";
}

TEST_F(ModelTest, WhetherAFlushedBindWasDoneIsOpen) {
  Make(IBV_QPT_RC, kRemoteAll | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  Connect();
  Step alloc = Call(Op::kAllocMw, 0, 20);
  alloc.pd = kPd[0];
  alloc.mw_type = IBV_MW_TYPE_2;
  Do(alloc);
  Wr bad = Request(IBV_WR_RDMA_WRITE, 8), bind = Request(IBV_WR_BIND_MW, 0);
  bad.remote_flip = 1;
  bind.sges.clear();
  bind.remote = 0;
  bind.mw = 20;
  bind.bind_mr = kMr[0];
  bind.bind_length = 8;
  EXPECT_EQ(StatusOf(Post({bad, bind}), 1), IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(model.mws.at(20).is_unclear);
  EXPECT_FALSE(Do(Call(Op::kDeregMr, 0, kMr[0])).applies);
  EXPECT_TRUE(Do(Call(Op::kDeallocMw, 0, 20)).applies);
  EXPECT_EQ(Do(Call(Op::kDeregMr, 0, kMr[0])).error, 0);
}

TEST_F(ModelTest, AFlushTellsThatBytesAreThere) {
  Make();
  Connect();
  EXPECT_EQ(Post({Flush(8)}).error, EINVAL) << "ibv_send_wr can't say it";
  Outcome outcome = PostExtended({Request(IBV_WR_RDMA_WRITE, 100, 0), Flush(100)});
  ASSERT_EQ(outcome.completions.size(), 1u);
  EXPECT_EQ(outcome.completions[0].opcode, kWcFlush);
  ASSERT_EQ(outcome.flushed.size(), 1u);
  EXPECT_EQ(outcome.flushed[0].length, 100u);
  outcome = PostExtended({Flush(100), Request(IBV_WR_RDMA_WRITE, 4)});
  EXPECT_TRUE(outcome.flushed.empty()) << "they change again";
  Wr whole = Flush(1);
  whole.flush_level = kFlushMr;
  whole.remote_offset = 1u << 30;
  EXPECT_EQ(PostExtended({whole}).flushed.at(0).length, 8192u);
  whole.flush_type = 4;
  EXPECT_TRUE(PostExtended({whole}).any_error);
  Do(Call(Op::kHoldCq, 0, kCq[0]));
  EXPECT_TRUE(PostExtended({Flush(100)}).flushed.empty()) << "nobody polls for it";
}

TEST_F(ModelTest, AFlushNeedsItsRights) {
  Make();
  Connect();
  Wr persistent = Flush(8);
  persistent.flush_type = kFlushPersistent;
  EXPECT_EQ(StatusOf(PostExtended({persistent}), 0), IBV_WC_REM_INV_REQ_ERR) << "the QP";
  EXPECT_EQ(model.qps.at(kQp[1]).state, IBV_QPS_ERR);
}

TEST_F(ModelTest, AFlushKeepsToRegionsThatAllowIt) {
  Make(IBV_QPT_RC, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  Connect();
  EXPECT_EQ(StatusOf(PostExtended({Flush(8)}), 0), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(ModelTest, AFlushEndsWhereItsRegionEnds) {
  Make();
  Connect();
  EXPECT_EQ(StatusOf(PostExtended({Flush(8192)}), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(StatusOf(PostExtended({Flush(8193)}), 0), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(ModelTest, AnInvalidatedRegionHasNoKeys) {
  Make();
  Connect();
  Receive(64);
  Wr invalidate = Request(IBV_WR_SEND_WITH_INV, 0);
  invalidate.sges.clear();
  const Outcome outcome = Post({invalidate});
  EXPECT_EQ(StatusOf(outcome, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(outcome.completions[0].invalidated, kMr[1]);
  EXPECT_EQ(StatusOf(Post({Request(IBV_WR_RDMA_WRITE, 8)}), 0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Do(Call(Op::kDeregMr, 1, kMr[1])).error, 0);
}

TEST_F(ModelTest, ALocalInvalidationTakesTheLocalKeyToo) {
  Make();
  Connect();
  Wr invalidate = Request(IBV_WR_LOCAL_INV, 0);
  invalidate.sges.clear();
  invalidate.remote = kMr[0];
  EXPECT_EQ(StatusOf(Post({invalidate}), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(StatusOf(Post({Request(IBV_WR_RDMA_WRITE, 8)}), 0), IBV_WC_LOC_PROT_ERR);
}

TEST_F(ModelTest, ANullRegionIsZerosAndTakesAnything) {
  Make();
  Connect();
  Step null = Call(Op::kAllocNullMr, 0, 40);
  null.pd = kPd[0];
  Do(null);
  Wr write = Request(IBV_WR_RDMA_WRITE, 8), read = Request(IBV_WR_RDMA_READ, 16);
  write.sges.push_back({40, 4000, 8, 0});
  EXPECT_EQ(StatusOf(Post({write}), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(model.memory(0), model.memory(1), 8), 0);
  for (int i = 8; i < 16; ++i) EXPECT_EQ(model.memory(1)[i], 0);
  const std::vector<uint8_t> before(model.memory(0), model.memory(0) + kArenaBytes);
  read.sges[0].mr = 40;
  EXPECT_EQ(StatusOf(Post({read}), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(model.memory(0), before.data(), kArenaBytes), 0);
}

TEST_F(ModelTest, DeviceMemoryCountsFromItsRegionsBeginning) {
  Make();
  Connect();
  Step device = Call(Op::kRegDmMr, 1, 41);
  device.pd = kPd[1];
  device.offset = 64;
  device.length = 128;
  device.access = kRemoteAll | IBV_ACCESS_LOCAL_WRITE;
  EXPECT_EQ(Do(device).error, EINVAL) << "it has to be called zero-based";
  device.access |= IBV_ACCESS_ZERO_BASED;
  EXPECT_EQ(Do(device).error, 0);
  Wr write = Request(IBV_WR_RDMA_WRITE, 32);
  write.remote = 41;
  write.remote_offset = 96;
  EXPECT_EQ(StatusOf(Post({write}), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(model.memory(0), model.memory(3) + 160, 32), 0);
  write.remote_offset = 97;
  EXPECT_EQ(StatusOf(Post({write}), 0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Do(Call(Op::kDeallocPd, 1, kPd[1])).error, EBUSY);
}

TEST_F(ModelTest, NoBytesNeedNoKeys) {
  Make();
  Connect();
  Wr write = Request(IBV_WR_RDMA_WRITE, 0);
  write.sges[0].key_flip = write.remote_flip = 1;
  write.remote_offset = kArenaBytes;
  EXPECT_EQ(StatusOf(Post({write}), 0), IBV_WC_SUCCESS);
}

TEST_F(ModelTest, ACqThatNobodyPollsOverrunsByOneTooMany) {
  Make();
  Connect();
  model.LearnEntries(kCq[0], 3);
  EXPECT_TRUE(Do(Call(Op::kHoldCq, 0, kCq[0])).applies);
  const Wr write = Request(IBV_WR_RDMA_WRITE, 8);
  Outcome outcome = Post({write, write, write});
  EXPECT_TRUE(outcome.completions.empty());
  EXPECT_TRUE(outcome.is_silent);
  EXPECT_FALSE(Do(Call(Op::kDestroyQp, 0, kQp[0])).applies);
  EXPECT_FALSE(Post({write, write}).applies) << "what becomes of the second nobody knows";
  Step resize = Call(Op::kResizeCq, 0, kCq[0]);
  resize.entries = 1;
  EXPECT_EQ(Do(resize).error, EINVAL);
  const Model before = model;
  EXPECT_EQ(Do(Call(Op::kReleaseCq, 0, kCq[0])).completions.size(), 3u);
  model = before;
  outcome = Post({write});
  ASSERT_EQ(outcome.events.size(), 2u);
  EXPECT_EQ(outcome.events[0].type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(outcome.events[1].type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(model.qps.at(kQp[0]).state, IBV_QPS_ERR);
  EXPECT_EQ(model.qps.at(kQp[1]).state, IBV_QPS_RTS);
  EXPECT_TRUE(Do(Call(Op::kDestroyQp, 0, kQp[0])).applies);
}

TEST_F(ModelTest, MoreThanACqHoldsIsARace) {
  Make();
  Connect();
  model.LearnEntries(kCq[0], 3);
  const Wr write = Request(IBV_WR_RDMA_WRITE, 8);
  EXPECT_TRUE(Post({write, write, write}).applies);
  EXPECT_FALSE(Post({write, write, write, write}).applies);
}

TEST_F(ModelTest, WhatWasBegunDrains) {
  Make();
  Connect();
  EXPECT_TRUE(Post({Request(IBV_WR_SEND, 32)}).is_silent) << "the barrier tells that it has begun";
  Step drain = Call(Op::kModifyQp, 0, kQp[0]);
  drain.mask = IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY;
  drain.attr.qp_state = IBV_QPS_SQD;
  drain.attr.en_sqd_async_notify = 1;
  EXPECT_TRUE(Do(drain).events.empty());
  EXPECT_FALSE(Move(0, IBV_QPS_RTS).applies) << "not yet";
  EXPECT_TRUE(Post({Request(IBV_WR_SEND, 16)}).completions.empty());
  Outcome outcome = Receive(64);
  EXPECT_EQ(outcome.completions.size(), 2u);
  ASSERT_EQ(outcome.events.size(), 1u);
  EXPECT_EQ(outcome.events[0].type, IBV_EVENT_SQ_DRAINED);
  EXPECT_TRUE(Receive(64).completions.empty()) << "the second waits";
  EXPECT_EQ(Move(0, IBV_QPS_RTS).completions.size(), 2u);
}

TEST_F(ModelTest, NothingIsMadeOfAnotherContextsObjects) {
  Make();
  Step qp = Call(Op::kCreateQp, 0, 60);
  qp.pd = kPd[0];
  qp.send_cq = kCq[0];
  qp.recv_cq = kCq[1];
  EXPECT_EQ(Do(qp).error, EINVAL);
  Step cq = Call(Op::kCreateCq, 0, 61);
  cq.entries = 4;
  cq.other_channel = true;
  EXPECT_EQ(Do(cq).error, EBADF);
}

TEST_F(ModelTest, AnSrqIsResizedToWhatItHolds) {
  Make();
  Step srq = Call(Op::kCreateSrq, 0, 30);
  srq.pd = kPd[0];
  srq.entries = 8;
  srq.cap.max_recv_sge = 1;
  Do(srq);
  Step post = Call(Op::kPostSrqRecv, 0, 30);
  post.wrs.resize(6);
  EXPECT_EQ(Do(post).error, 0);
  Step modify = Call(Op::kModifySrq, 0, 30);
  modify.mask = IBV_SRQ_MAX_WR;
  for (uint32_t entries : {0u, 2u, 1u << 30}) {
    modify.entries = entries;
    EXPECT_EQ(Do(modify).error, EINVAL) << entries;
  }
  modify.entries = 5;
  EXPECT_FALSE(Do(modify).applies) << "it may be given more";
  modify.entries = 6;
  EXPECT_EQ(Do(modify).error, 0);
  const Outcome full = Do(post);
  EXPECT_EQ(full.error, ENOMEM);
  EXPECT_EQ(full.bad_index, 0);
  modify.mask |= IBV_SRQ_LIMIT;
  modify.entries = 20;
  modify.limit = 41;
  EXPECT_EQ(Do(modify).error, EINVAL) << "a limit beyond it";
  EXPECT_EQ(model.srqs.at(30).max_wr, 6u);
}

TEST_F(ModelTest, ARegionWithoutRemoteRightsIsLeftOpen) {
  Make(IBV_QPT_RC, IBV_ACCESS_LOCAL_WRITE);
  Connect();
  Wr invalidate = Request(IBV_WR_LOCAL_INV, 0);
  invalidate.sges.clear();
  invalidate.remote = kMr[0];
  EXPECT_FALSE(Post({invalidate}).applies);
}

TEST(GeneratorTest, ASeedIsAProgram) {
  for (uint64_t seed : {1u, 2u, 77u}) {
    const Program a = Generate(seed, {}), b = Generate(seed, {});
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(ToString(a[i]), ToString(b[i]));
  }
  EXPECT_NE(ToString(Generate(1, {}).back()), ToString(Generate(2, {}).back()));
}

// Of what is drawn, much succeeds and much is wrong.
TEST(GeneratorTest, DrawsRightAndWrong) {
  uint64_t good = 0, failed = 0, refused = 0, events = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Model model(seed);
    for (const Step& step : Generate(seed, {})) {
      const Outcome outcome = model.Apply(step);
      ASSERT_TRUE(outcome.applies) << ToString(step);
      refused += outcome.error != 0;
      events += outcome.events.size();
      for (const Completion& completion : outcome.completions) {
        const ibv_wc_status status = completion.statuses.front();
        good += status == IBV_WC_SUCCESS;
        failed += status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR;
      }
    }
  }
  EXPECT_GT(good, 60 * 20u);
  EXPECT_GT(failed, 60 * 2u);
  EXPECT_GT(refused, 60 * 2u);
  EXPECT_GT(events, 60u);
}

TEST(ShrinkTest, KeepsOnlyWhatTheFailureNeeds) {
  Program program;
  for (Id id = 1; id <= 40; ++id) {
    Step step;
    step.id = id;
    step.wrs.resize(3);
    for (size_t i = 0; i < 3; ++i) step.wrs[i].wr_id = id * 10 + i;
    program.push_back(step);
  }
  int calls = 0;
  auto fails = [&calls](const Program& candidate) {
    ++calls;
    bool has_first = false, has_second = false;
    for (const Step& step : candidate) {
      has_first |= step.id == 7;
      for (const Wr& wr : step.wrs) has_second |= wr.wr_id == 331;
    }
    return has_first && has_second;
  };
  const Program shortest = Shrink(program, fails, 1000);
  ASSERT_EQ(shortest.size(), 2u);
  EXPECT_EQ(shortest[0].id, 7u);
  ASSERT_EQ(shortest[1].wrs.size(), 1u);
  EXPECT_EQ(shortest[1].wrs[0].wr_id, 331u);
  EXPECT_LT(calls, 200);
  EXPECT_EQ(Shrink(program, fails, 0).size(), 40u) << "no tries, no change";
}

}  // namespace
}  // namespace verbena::programs

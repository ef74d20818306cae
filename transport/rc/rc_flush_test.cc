// FLUSH: stories, losses, faults, and scripts of one side.
#include <gtest/gtest.h>

#include "transport/rc/rc_script.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr uint32_t kRights = RcPair::kAllAccess;
constexpr uint32_t kNoFlush = kRights & ~uint32_t{access::kFlushGlobal};

SendWork Flush(RcPair& pair, uint64_t id, MemoryId region, uint64_t length = 8, uint32_t offset = 0,
               uint32_t type = flush::kGlobal, uint32_t level = flush::kRange) {
  SendWork work = pair.Remote(RcPair::Work(id, WrOpcode::kFlush, {}), region, offset);
  work.wqe.flush = {length, type, level};
  return work;
}

std::function<bool(const Pdu&)> NoteTo(std::vector<Pdu>* seen) {
  return [seen](const Pdu& pdu) {
    seen->push_back(pdu);
    return false;
  };
}

TEST(RcFlush, AsksForARangeAndIsAnsweredAsAReadOfNothing) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64, 0xee);
  std::vector<Pdu> seen;
  pair.fabric.set_drop_filter(NoteTo(&seen));
  pair.Post(kA, Flush(pair, 1, to, 24, 8));
  ASSERT_TRUE(pair.Run());
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].opcode, Opcode::kFlush);
  EXPECT_EQ(seen[0].flush_type, flush::kGlobal);
  EXPECT_EQ(seen[0].flush_level, flush::kRange);
  EXPECT_EQ(seen[0].remote_addr, pair.memory.region(to).addr + 8);
  EXPECT_EQ(seen[0].rkey, RKey(pair.memory.region(to).key));
  EXPECT_EQ(seen[0].dma_length, 24u);
  EXPECT_EQ(seen[0].payload.length, 0u);
  EXPECT_EQ(seen[1].opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(seen[1].payload.length, 0u);
  EXPECT_EQ(seen[1].psn, seen[0].psn);
  EXPECT_EQ(seen[1].msn, Msn(1));
  const auto& wc = pair.fabric.completions(kA).at(0);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kFlush);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  for (std::byte b : pair.memory.region(to).bytes) ASSERT_EQ(b, std::byte{0xee});
}

// Whatever the program gave for the range, nothing of it is looked at.
TEST(RcFlush, OfAWholeRegionHasNeitherAddressNorLength) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64);
  std::vector<Pdu> seen;
  pair.fabric.set_drop_filter(NoteTo(&seen));
  pair.Post(kA, Flush(pair, 1, to, uint64_t{1} << 40, 1'000'000, flush::kGlobal, flush::kMr));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].flush_level, flush::kMr);
  EXPECT_EQ(seen[0].remote_addr, 0u);
  EXPECT_EQ(seen[0].dma_length, 0u);
}

// A WQE is the client's: neither SGEs nor inline data are looked for.
TEST(RcFlush, TakesNothingButItsRange) {
  RcPair pair;
  SendWork work = Flush(pair, 1, pair.NewRegion(64));
  work.wqe.flags |= shm::kSendInline;
  work.wqe.inline_bytes = 512;
  work.wqe.num_sge = 4;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
}

TEST(RcFlush, OfNothingStillNeedsAKey) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64);
  pair.Post(kA, Flush(pair, 1, to, 0, 64));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  SendWork work = Flush(pair, 2, to, 0);
  work.wqe.rkey = 0;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:rem-access");
}

TEST(RcFlush, LostRequestIsSentAgain) {
  RcPair pair;
  pair.fabric.set_drop_filter(LoseNth(Opcode::kFlush, 0));
  pair.Post(kA, Flush(pair, 1, pair.NewRegion(8)));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
}

TEST(RcFlush, LostAnswerMakesADuplicateThatIsAnsweredAgain) {
  RcPair pair;
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kReadResponseOnly, 0));
  pair.Queue(kA, Flush(pair, 1, to));
  pair.Queue(
      kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)}), to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_GE(pair.qps[kB]->counters().duplicate_request, 1u);
  EXPECT_TRUE(pair.SameBytes(from, to));
}

TEST(RcFlush, AFenceWaitsForItsAnswer) {
  RcPair pair;
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  std::vector<Pdu> seen;
  pair.fabric.set_drop_filter(NoteTo(&seen));
  pair.Queue(kA, Flush(pair, 1, to));
  pair.Queue(kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)},
                                          shm::kSendSignaled | shm::kSendFence),
                             to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  std::vector<Opcode> opcodes;
  for (const Pdu& pdu : seen) opcodes.push_back(pdu.opcode);
  EXPECT_EQ(opcodes, (std::vector<Opcode>{Opcode::kFlush, Opcode::kReadResponseOnly,
                                          Opcode::kWriteOnly, Opcode::kAcknowledge}));
}

TEST(RcFlush, KeepsToTheResourcesAgreedUpon) {
  RcPairOptions options;
  options.max_rd_atomic = 2;
  RcPair pair(options);
  MemoryId to = pair.NewRegion(80);
  int outstanding = 0, most = 0;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    if (pdu.opcode == Opcode::kFlush) most = std::max(most, ++outstanding);
    if (pdu.opcode == Opcode::kReadResponseOnly) --outstanding;
    return false;
  });
  for (uint32_t i = 0; i < 10; ++i) pair.Queue(kA, Flush(pair, i, to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(most, 2);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "0:ok 1:ok 2:ok 3:ok 4:ok 5:ok 6:ok 7:ok 8:ok 9:ok");
}

TEST(RcFlush, WithoutResourcesItIsRefusedAtHome) {
  RcPairOptions options;
  options.max_rd_atomic = 0;
  RcPair pair(options);
  pair.Post(kA, Flush(pair, 1, pair.NewRegion(8)));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-qp-op");
}

TEST(RcFlush, WhatNoFethCanSayIsRefusedAtHome) {
  struct {
    uint64_t length;
    uint32_t type, level;
    const char* completion;
  } const kRows[] = {
      {8, 0, flush::kRange, "1:loc-qp-op"},
      {8, 4, flush::kRange, "1:loc-qp-op"},
      {8, 0x101, flush::kRange, "1:loc-qp-op"},
      {8, flush::kGlobal, 2, "1:loc-qp-op"},
      {8, flush::kGlobal, 0x100, "1:loc-qp-op"},
      {(uint64_t{1} << 31) + 1, flush::kGlobal, flush::kRange, "1:loc-len"},
      {(uint64_t{1} << 32) + 8, flush::kGlobal, flush::kRange, "1:loc-len"},
  };
  for (const auto& row : kRows) {
    RcPair pair;
    std::vector<Pdu> seen;
    pair.fabric.set_drop_filter(NoteTo(&seen));
    pair.Post(kA, Flush(pair, 1, pair.NewRegion(8), row.length, 0, row.type, row.level));
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), row.completion);
    EXPECT_TRUE(seen.empty());
  }
}

struct Refusal {
  const char* name;
  uint32_t length, offset;
  uint32_t type, level;
  uint32_t region_rights, qp_rights;
  const char* completion;
  EventType event;
};

constexpr uint32_t kBoth = kRights | access::kFlushPersistent;
constexpr uint32_t kTypes = flush::kGlobal | flush::kPersistent;

class RcFlushRefused : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    Rules, RcFlushRefused,
    ::testing::Values(Refusal{"OutOfBounds", 8, 12, flush::kGlobal, flush::kRange, kRights, kRights,
                              "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"EmptyOutOfBounds", 0, 17, flush::kGlobal, flush::kRange, kRights,
                              kRights, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"RegionDoesNotFlush", 8, 0, flush::kGlobal, flush::kRange, kNoFlush,
                              kRights, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"WholeRegionDoesNotFlush", 8, 0, flush::kGlobal, flush::kMr, kNoFlush,
                              kRights, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"QpDoesNotFlush", 8, 0, flush::kGlobal, flush::kRange, kRights,
                              kNoFlush, "1:rem-inv-req", EventType::kQpReqErr},
                      Refusal{"RegionIsNotPersistent", 8, 0, flush::kPersistent, flush::kRange,
                              kRights, kBoth, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"WholeRegionIsNotPersistent", 8, 0, flush::kPersistent, flush::kMr,
                              kRights, kBoth, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"RegionHasOneOfBoth", 8, 0, kTypes, flush::kRange, kRights, kBoth,
                              "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"QpHasOneOfBoth", 8, 0, kTypes, flush::kRange, kBoth, kRights,
                              "1:rem-inv-req", EventType::kQpReqErr}),
    [](const auto& refusal) { return refusal.param.name; });

TEST_P(RcFlushRefused, FailsBothEnds) {
  const Refusal& row = GetParam();
  RcPairOptions options;
  options.access_flags = row.qp_rights & ~uint32_t{access::kLocalWrite};
  RcPair pair(options);
  MemoryId to = pair.NewRegion(16, 0, row.region_rights);
  pair.Post(kA, Flush(pair, 1, to, row.length, row.offset, row.type, row.level));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), row.completion);
  EXPECT_TRUE(pair.HasEvent(kB, row.event));
}

// --- scripts of the responder --------------------------------------------------------------------

class RcFlushScript : public RcScript {
 protected:
  Pdu FlushRequest(uint32_t psn, uint32_t length = 8) {
    Pdu pdu = Request(Opcode::kFlush, psn);
    pdu.dma_length = length;
    pdu.flush_type = flush::kGlobal;
    return pdu;
  }
};

TEST_F(RcFlushScript, IsAnsweredAfterAllBeforeItIsPlaced) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 101, 8));
  const Pdu request = FlushRequest(102);
  Deliver(request);
  EXPECT_EQ(held_.size(), 2u);
  ExpectSilence();
  Deliver(request);  // a duplicate of what is under way
  FinishPlacement();
  ExpectAck(100);
  ExpectSilence();
  FinishPlacement();
  Pdu answer = NextResponse();
  EXPECT_EQ(answer.opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(answer.psn, Psn(102));
  EXPECT_EQ(answer.msn, Msn(3));
  ExpectSilence();
  Deliver(request);
  answer = NextResponse();
  EXPECT_EQ(answer.opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(answer.psn, Psn(102));
  EXPECT_EQ(answer.msn, Msn(3));
}

TEST_F(RcFlushScript, WhatIsBeforeItAndNeverPlacedFailsIt) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Deliver(FlushRequest(101));
  FinishPlacement(DmaStatus::kDestinationFault);
  ExpectNak(NakCode::kRemoteOperationalError, 100);
  ExpectSilence();
}

TEST_F(RcFlushScript, ReservedValuesAreInvalid) {
  struct {
    uint8_t type, level;
  } const kRows[] = {{0, 0}, {4, 0}, {0xf, 0}, {1, 2}, {1, 3}};
  for (const auto& row : kRows) {
    Pdu request = FlushRequest(100);
    request.flush_type = row.type;
    request.flush_level = row.level;
    Deliver(request);
    ExpectInvalidRequest(100);
    ASSERT_EQ(pair_.ModifyTo(kB, QpState::kReset), 0);
    for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      ASSERT_EQ(pair_.ModifyTo(kB, state), 0);
    }
  }
}

TEST_F(RcFlushScript, WithPayloadIsInvalid) {
  Pdu request = FlushRequest(100);
  request.payload.length = 8;
  Deliver(request);
  ExpectInvalidRequest(100);
}

TEST_F(RcFlushScript, LongerThanAnyMessageIsInvalid) {
  Deliver(FlushRequest(100, (1u << 31) + 1));
  ExpectInvalidRequest(100);
}

TEST_F(RcFlushScript, OfAWholeRegionIgnoresTheReth) {
  Pdu request = FlushRequest(100, 0xffff'ffff);
  request.flush_level = flush::kMr;
  request.remote_addr = 1;
  Deliver(request);
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseOnly);
}

TEST_F(RcFlushScript, AmidAMessageIsOutOfSequence) {
  Deliver(WriteFirst(100, kMtu, 2 * kMtu));
  Deliver(FlushRequest(101));
  ExpectInvalidRequest(101);
}

// Kernel rxe sends as many as it has.
TEST_F(RcFlushScript, MoreThanResourcesAgreedAreTaken) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  for (uint32_t i = 1; i <= 10; ++i) Deliver(FlushRequest(100 + i));
  Deliver(Request(Opcode::kAtomicWrite, 111, 8));
  FinishPlacement();
  for (uint32_t i = 1; i <= 10; ++i) {
    Pdu answer = NextResponse();
    EXPECT_EQ(answer.opcode, Opcode::kReadResponseOnly);
    EXPECT_EQ(answer.psn, Psn(100 + i));
  }
  ExpectSilence();
  FinishPlacement();
  EXPECT_EQ(NextResponse().psn, Psn(111));
}

// --- scripts of the requester --------------------------------------------------------------------

TEST_F(RcAnswerScript, AnAnswerToAFlushHasNoBytes) {
  pair_.Post(kA, Flush(pair_, 1, region_));
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn, 8), kA);
  EXPECT_EQ(SendCompletions(), "1:bad-resp");
}

TEST_F(RcAnswerScript, AnAcknowledgeIsNoAnswerToAFlush) {
  pair_.Post(kA, Flush(pair_, 1, region_));
  Deliver(Response(Opcode::kAcknowledge, kEpsn), kA);  // the answer was lost
  Deliver(Response(Opcode::kAtomicAcknowledge, kEpsn), kA);
  EXPECT_EQ(SendCompletions(), "");
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn), kA);
  EXPECT_EQ(SendCompletions(), "1:ok");
}

TEST_F(RcAnswerScript, AnAnswerToAFlushAcknowledgesAllBeforeIt) {
  PostWrite(1, 8);
  pair_.Post(kA, Flush(pair_, 2, region_));
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn + 1), kA);
  EXPECT_EQ(SendCompletions(), "1:ok 2:ok");
}

}  // namespace
}  // namespace verbena::transport::rc

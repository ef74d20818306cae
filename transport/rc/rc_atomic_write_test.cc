// ATOMIC_WRITE: stories, losses, faults, and scripts of one side.
#include <gtest/gtest.h>

#include "transport/rc/rc_script.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr uint64_t kValue = 0x1122'3344'5566'7788;

SendWork AtomicWrite(RcPair& pair, uint64_t id, MemoryId to, uint64_t value = kValue,
                     uint32_t offset = 0) {
  SendWork work = pair.Remote(RcPair::Work(id, WrOpcode::kAtomicWrite, {}), to, offset);
  work.wqe.atomic.compare_add = value;
  return work;
}

TEST(RcAtomicWrite, WritesTheWordAndIsAnsweredAsAReadOfNothing) {
  RcPair pair;
  MemoryId to = pair.NewRegion(24, 0xee);
  std::vector<Pdu> seen;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    seen.push_back(pdu);
    return false;
  });
  pair.Post(kA, AtomicWrite(pair, 1, to, kValue, 8));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.WordAt(to, 0), 0xeeee'eeee'eeee'eeeeu);
  EXPECT_EQ(pair.WordAt(to, 8), kValue);
  EXPECT_EQ(pair.WordAt(to, 16), 0xeeee'eeee'eeee'eeeeu);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].opcode, Opcode::kAtomicWrite);
  EXPECT_EQ(seen[0].payload.length, 8u);
  EXPECT_EQ(seen[0].dma_length, 8u);
  EXPECT_EQ(seen[1].opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(seen[1].payload.length, 0u);
  EXPECT_EQ(seen[1].msn, Msn(1));
  const auto& wc = pair.fabric.completions(kA).at(0);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kAtomicWrite);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 8u);
}

// A WQE is the client's: neither SGEs nor inline data are looked for.
TEST(RcAtomicWrite, TakesNothingButItsEightBytes) {
  RcPair pair;
  MemoryId to = pair.NewRegion(8);
  SendWork work = AtomicWrite(pair, 1, to);
  work.wqe.flags |= shm::kSendInline;
  work.wqe.inline_bytes = 512;
  work.wqe.num_sge = 4;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.WordAt(to, 0), kValue);
}

TEST(RcAtomicWrite, LostRequestIsSentAgain) {
  RcPair pair;
  MemoryId to = pair.NewRegion(8);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kAtomicWrite, 0));
  pair.Post(kA, AtomicWrite(pair, 1, to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.WordAt(to, 0), kValue);
}

// The WRITE behind it overwrites the word, before the answer that was lost is asked for again.
TEST(RcAtomicWrite, LostAnswerMakesADuplicateThatIsNotExecuted) {
  RcPair pair;
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kReadResponseOnly, 0));
  pair.Queue(kA, AtomicWrite(pair, 1, to));
  pair.Queue(
      kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)}), to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_GE(pair.qps[kB]->counters().duplicate_request, 1u);
  EXPECT_TRUE(pair.SameBytes(from, to));
}

TEST(RcAtomicWrite, AFenceWaitsForItsAnswer) {
  RcPairOptions options;
  RcPair pair(options);
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  std::vector<Opcode> seen;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    seen.push_back(pdu.opcode);
    return false;
  });
  pair.Queue(kA, AtomicWrite(pair, 1, to));
  pair.Queue(kA, pair.Remote(RcPair::Work(2, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)},
                                          shm::kSendSignaled | shm::kSendFence),
                             to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(seen, (std::vector<Opcode>{Opcode::kAtomicWrite, Opcode::kReadResponseOnly,
                                       Opcode::kWriteOnly, Opcode::kAcknowledge}));
}

TEST(RcAtomicWrite, KeepsToTheResourcesAgreedUpon) {
  RcPairOptions options;
  options.max_rd_atomic = 2;
  RcPair pair(options);
  MemoryId to = pair.NewRegion(80);
  int outstanding = 0, most = 0;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    if (pdu.opcode == Opcode::kAtomicWrite) most = std::max(most, ++outstanding);
    if (pdu.opcode == Opcode::kReadResponseOnly) --outstanding;
    return false;
  });
  for (uint32_t i = 0; i < 10; ++i) pair.Queue(kA, AtomicWrite(pair, i, to, i, 8 * i));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(most, 2);
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(pair.WordAt(to, 8 * i), i);
}

TEST(RcAtomicWrite, WithoutResourcesItIsRefusedAtHome) {
  RcPairOptions options;
  options.max_rd_atomic = 0;
  RcPair pair(options);
  pair.Post(kA, AtomicWrite(pair, 1, pair.NewRegion(8)));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-qp-op");
}

struct Refusal {
  const char* name;
  uint32_t offset;
  uint32_t region_rights, qp_rights;
  const char* completion;
  EventType event;
};

class RcAtomicWriteRefused : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    Rules, RcAtomicWriteRefused,
    ::testing::Values(Refusal{"Misaligned", 4, RcPair::kAllAccess, RcPair::kAllAccess,
                              "1:rem-inv-req", EventType::kQpReqErr},
                      Refusal{"OutOfBounds", 16, RcPair::kAllAccess, RcPair::kAllAccess,
                              "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"RegionIsNotWritable", 0,
                              access::kLocalWrite | access::kRemoteRead | access::kRemoteAtomic,
                              RcPair::kAllAccess, "1:rem-access", EventType::kQpAccessErr},
                      Refusal{"QpIsNotWritable", 0, RcPair::kAllAccess,
                              access::kRemoteRead | access::kRemoteAtomic, "1:rem-inv-req",
                              EventType::kQpReqErr}),
    [](const auto& refusal) { return refusal.param.name; });

TEST_P(RcAtomicWriteRefused, WritesNothing) {
  RcPairOptions options;
  options.access_flags = GetParam().qp_rights & ~uint32_t{access::kLocalWrite};
  RcPair pair(options);
  MemoryId to = pair.NewRegion(16, 0, GetParam().region_rights);
  pair.Post(kA, AtomicWrite(pair, 1, to, kValue, GetParam().offset));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), GetParam().completion);
  EXPECT_TRUE(pair.HasEvent(kB, GetParam().event));
  EXPECT_EQ(pair.WordAt(to, 0), 0u);
  EXPECT_EQ(pair.WordAt(to, 8), 0u);
}

// --- scripts of the responder --------------------------------------------------------------------

TEST_F(RcScript, AtomicWriteIsAnsweredAfterAllBeforeItIsPlaced) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Pdu atomic = Request(Opcode::kAtomicWrite, 101, 8);
  Deliver(atomic);
  EXPECT_EQ(held_.size(), 2u);
  ExpectSilence();
  Deliver(atomic);  // a duplicate of what is under way
  EXPECT_EQ(held_.size(), 2u);
  FinishPlacement();
  ExpectAck(100);
  ExpectSilence();
  FinishPlacement();
  Pdu answer = NextResponse();
  EXPECT_EQ(answer.opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(answer.psn, Psn(101));
  EXPECT_EQ(answer.msn, Msn(2));
  ExpectSilence();
  Deliver(atomic);
  EXPECT_TRUE(held_.empty()) << "executed again";
  answer = NextResponse();
  EXPECT_EQ(answer.opcode, Opcode::kReadResponseOnly);
  EXPECT_EQ(answer.psn, Psn(101));
  EXPECT_EQ(answer.msn, Msn(2));
}

TEST_F(RcScript, AtomicWriteOfAnotherLengthIsInvalid) {
  for (uint32_t bytes : {0u, 4u, 16u}) {
    Pdu atomic = Request(Opcode::kAtomicWrite, 100, bytes);
    pair_.qps[kB]->OnPdu(now_, atomic);
    ExpectInvalidRequest(100);
    ASSERT_EQ(pair_.ModifyTo(kB, QpState::kReset), 0);
    for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      ASSERT_EQ(pair_.ModifyTo(kB, state), 0);
    }
  }
  Pdu atomic = Request(Opcode::kAtomicWrite, 100, 8);
  atomic.dma_length = 16;  // what the RETH says and what came differ
  Deliver(atomic);
  ExpectInvalidRequest(100);
}

TEST_F(RcScript, AtomicWriteAmidAMessageIsOutOfSequence) {
  Deliver(WriteFirst(100, kMtu, 2 * kMtu));
  Deliver(Request(Opcode::kAtomicWrite, 101, 8));
  ExpectInvalidRequest(101);
}

TEST_F(RcScript, MoreAtomicWritesThanAgreedAreInvalid) {
  holds_placements_ = true;
  for (uint32_t i = 0; i < 5; ++i) Deliver(Request(Opcode::kAtomicWrite, 100 + i, 8));
  EXPECT_EQ(held_.size(), 4u);  // max_dest_rd_atomic
  for (int i = 0; i < 4; ++i) {
    FinishPlacement();
    EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseOnly);
  }
  ExpectInvalidRequest(104);
}

TEST_F(RcScript, AtomicWriteToMemoryThatIsGoneFails) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kAtomicWrite, 100, 8));
  FinishPlacement(DmaStatus::kDestinationFault);
  ExpectNak(NakCode::kRemoteOperationalError, 100);
}

// --- scripts of the requester --------------------------------------------------------------------

TEST_F(RcAnswerScript, AnAnswerWithBytesIsABadResponse) {
  pair_.Post(kA, AtomicWrite(pair_, 1, region_));
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn, 8), kA);
  EXPECT_EQ(SendCompletions(), "1:bad-resp");
}

TEST_F(RcAnswerScript, AnAcknowledgeIsNoAnswerToAnAtomicWrite) {
  pair_.Post(kA, AtomicWrite(pair_, 1, region_));
  Deliver(Response(Opcode::kAcknowledge, kEpsn), kA);  // the answer was lost
  Deliver(Response(Opcode::kAtomicAcknowledge, kEpsn), kA);
  EXPECT_EQ(SendCompletions(), "");
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn), kA);
  EXPECT_EQ(SendCompletions(), "1:ok");
}

TEST_F(RcAnswerScript, AnAnswerAcknowledgesAllBeforeIt) {
  PostWrite(1, 8);
  pair_.Post(kA, AtomicWrite(pair_, 2, region_));
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn + 1), kA);
  EXPECT_EQ(SendCompletions(), "1:ok 2:ok");
}

}  // namespace
}  // namespace verbena::transport::rc

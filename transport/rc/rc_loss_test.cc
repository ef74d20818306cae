// Stories about loss: retries, timers, duplicates, receivers not ready.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr bool kReceives = false;

SendWork Write(RcPair& pair, uint64_t id, MemoryId from, MemoryId to) {
  auto length = static_cast<uint32_t>(pair.memory.region(from).bytes.size());
  return pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, length)}),
                     to);
}

TEST(RcLoss, LostMiddleIsNakedAndSentAgain) {
  RcPair pair;
  MemoryId from = pair.NewPattern(5000);
  MemoryId to = pair.NewRegion(5000);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kWriteMiddle, 1));
  pair.Post(kA, Write(pair, 1, from, to));
  ASSERT_TRUE(pair.Run());
  EXPECT_TRUE(pair.SameBytes(from, to));
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.qps[kA]->counters().rcvd_seq_err, 1u);
  EXPECT_EQ(pair.qps[kB]->counters().out_of_seq_request, 2u);
  EXPECT_EQ(pair.qps[kA]->RequestsLost(), 1u);
  EXPECT_LT(pair.fabric.now(), Instant{0} + Microseconds(100));  // no timer was needed
}

TEST(RcLoss, LostLastIsSentAgainAfterTheTimeout) {
  RcPair pair;
  MemoryId from = pair.NewPattern(5000);
  MemoryId to = pair.NewRegion(5000);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kWriteLast, 0));
  pair.Post(kA, Write(pair, 1, from, to));
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return !pair.fabric.completions(kA).empty(); },
                                   Instant{0} + Seconds(1)));
  EXPECT_TRUE(pair.SameBytes(from, to));
  Duration waited = pair.fabric.now() - Instant{0};
  EXPECT_GE(waited, AckTimeout(8));
  EXPECT_LE(waited, AckTimeout(8) * 4);
}

TEST(RcLoss, LostAckMakesADuplicateThatIsNotExecuted) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  pair.PostRecv(kB, 8, {pair.memory.SgeOf(to, 0, 64)});
  pair.fabric.set_drop_filter(LoseNth(Opcode::kAcknowledge, 0));
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "once"));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok");
  EXPECT_EQ(pair.qps[kB]->counters().duplicate_request, 1u);
}

TEST(RcLoss, DuplicateAtomicIsAnsweredFromItsSavedResult) {
  RcPair pair;
  MemoryId word = pair.NewRegion(8);
  MemoryId result = pair.NewRegion(8);
  pair.SetWord(word, 0, 5);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kAtomicAcknowledge, 0));
  SendWork add = pair.Remote(
      RcPair::Work(1, WrOpcode::kAtomicFetchAndAdd, {pair.memory.SgeOf(result, 0, 8)}), word);
  add.wqe.atomic.compare_add = 1;
  pair.Post(kA, add);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.WordAt(word, 0), 6u);  // once
  EXPECT_EQ(pair.WordAt(result, 0), 5u);
}

TEST(RcLoss, ReadResumesAtTheFirstMissingResponse) {
  RcPair pair;
  MemoryId theirs = pair.NewPattern(8000);
  MemoryId mine = pair.NewRegion(8000);
  uint32_t lost_requests = 0;
  auto lose = LoseNth(Opcode::kReadResponseMiddle, 2);
  std::vector<Psn> requests;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    if (pdu.opcode == Opcode::kReadRequest) requests.push_back(pdu.psn);
    lost_requests += pdu.opcode == Opcode::kReadRequest ? 1 : 0;
    return lose(pdu);
  });
  pair.Post(kA,
            pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8000)}),
                        theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_TRUE(pair.SameBytes(theirs, mine));
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  ASSERT_EQ(requests.size(), 2u);  // the responses past the gap imply one NAK, not four
  EXPECT_EQ(Psn::Delta(requests[0], requests[1]).value, 3);
  EXPECT_EQ(pair.qps[kA]->RequestsLost(), 0u);  // a lost response says nothing of the way there
}

TEST(RcLoss, AckPastAReadImpliesThatItsResponseWasLost) {
  RcPair pair;
  MemoryId theirs = pair.NewPattern(8);
  MemoryId mine = pair.NewRegion(8);
  MemoryId to = pair.NewRegion(8);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kReadResponseOnly, 0));
  pair.Queue(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                             theirs));
  pair.Queue(kA, Write(pair, 2, theirs, to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(theirs, mine));
  EXPECT_LT(pair.fabric.now(), Instant{0} + Microseconds(100));
}

TEST(RcLoss, PeerGoneExceedsTheRetries) {
  for (uint8_t retries : {uint8_t{0}, uint8_t{3}, uint8_t{7}}) {
    RcPairOptions options;
    options.retry_count = retries;
    RcPair pair(options);
    MemoryId region = pair.NewPattern(8);
    pair.fabric.set_drop_filter([](const Pdu&) { return true; });
    pair.Queue(kA, Write(pair, 1, region, region));
    pair.Queue(kA, Write(pair, 2, region, region));
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:retry-exc 2:flush");
    EXPECT_EQ(pair.fabric.pdus_sent(), 2u * (1u + retries));
    EXPECT_EQ(pair.qps[kA]->counters().retry_exceeded_err, 1u);
    Duration waited = pair.fabric.now() - Instant{0};
    EXPECT_GE(waited, AckTimeout(8) * (1 + retries));
    EXPECT_LE(waited, AckTimeout(8) * 4 * (1 + retries));
  }
}

TEST(RcLoss, KeyRevokedBeforeARetryIsNotUsedAgain) {
  RcPair pair;
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kWriteOnly, 0));
  pair.Post(kA, Write(pair, 1, from, to));
  pair.memory.region(from).is_valid = false;
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-prot");
  EXPECT_EQ(pair.fabric.pdus_sent(), 1u);
}

TEST(RcLoss, LongMessageInOnePduIsGivenTimeToMove) {
  RcPairOptions options;
  options.timeout_exp = 1;  // 8 µs
  options.max_pdu_bytes = 1u << 20;
  options.link.dma_delay = Microseconds(50);
  RcPair pair(options);
  MemoryId from = pair.NewPattern(65'536);
  MemoryId to = pair.NewRegion(65'536);
  pair.Post(kA, Write(pair, 1, from, to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.qps[kB]->counters().duplicate_request, 0u);
}

TEST(RcLoss, TimeoutZeroWaitsForever) {
  RcPairOptions options;
  options.timeout_exp = 0;
  RcPair pair(options);
  MemoryId region = pair.NewPattern(8);
  pair.fabric.set_drop_filter([](const Pdu&) { return true; });
  pair.Post(kA, Write(pair, 1, region, region));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");
  EXPECT_TRUE(pair.qps[kA]->PollTimeout().IsNever());
}

TEST(RcLoss, ReceiverNotReadyIsRetriedAfterItsTimer) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64);
  pair.Queue(kA, RcPair::Inline(1, WrOpcode::kSend, "one"));
  pair.Queue(kA, RcPair::Inline(2, WrOpcode::kSend, "two"));
  pair.Ring(kA);
  while (pair.qps[kA]->counters().rcvd_rnr_err == 0) ASSERT_TRUE(pair.fabric.Step());
  Instant naked = pair.fabric.now();
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 32)});
  pair.PostRecv(kB, 8, {pair.memory.SgeOf(to, 32, 32)});
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return pair.fabric.completions(kA).size() == 2; },
                                   Instant{0} + Seconds(1)));
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok 8:ok");
  EXPECT_GE(pair.fabric.now() - naked, RnrDelay(12));
  EXPECT_EQ(pair.qps[kA]->RequestsLost(), 0u);
  EXPECT_EQ(pair.qps[kB]->counters().send_rnr_err, 1u);
}

TEST(RcLoss, LossRightAfterAnRnrNakNeedsNoAckTimeout) {
  RcPairOptions options;
  options.timeout_exp = 0;  // there is none
  RcPair pair(options);
  MemoryId to = pair.NewRegion(64);
  pair.fabric.set_drop_filter(LoseNth(Opcode::kSendOnly, 3));  // the first one sent again
  for (uint64_t id = 1; id <= 3; ++id) pair.Queue(kA, RcPair::Inline(id, WrOpcode::kSend, "x"));
  pair.Ring(kA);
  while (pair.qps[kA]->counters().rcvd_rnr_err == 0) ASSERT_TRUE(pair.fabric.Step());
  EXPECT_EQ(pair.fabric.pdus_sent(), 4u);  // three requests and the NAK
  for (uint64_t id = 7; id <= 9; ++id) pair.PostRecv(kB, id, {pair.memory.SgeOf(to, 0, 8)});
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok 3:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok 8:ok 9:ok");
  EXPECT_EQ(pair.qps[kA]->counters().rcvd_seq_err, 1u);
}

TEST(RcLoss, ReceiverNeverReadyExceedsItsRetries) {
  RcPairOptions options;
  options.rnr_retry_count = 3;
  RcPair pair(options);
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "one"));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rnr-retry-exc");
  EXPECT_EQ(pair.qps[kB]->counters().send_rnr_err, 4u);
  EXPECT_EQ(pair.qps[kA]->counters().retry_rnr_exceeded_err, 1u);
  EXPECT_EQ(pair.qps[kB]->state(), QpState::kRts);
}

// Only a peer in the device can be looked at meanwhile.
TEST(RcLoss, ARequesterBehindANetworkWaitsForItsRnrTimer) {
  for (const bool is_behind_a_network : {false, true}) {
    RcPairOptions options;
    if (is_behind_a_network) options.max_unacked_psns = 64;
    RcPair pair(options);
    pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "one"));
    while (pair.qps[kA]->counters().rcvd_rnr_err == 0) ASSERT_TRUE(pair.fabric.Step());
    const Instant end = pair.fabric.now() + RnrDelay(options.min_rnr_timer_code);
    EXPECT_EQ(pair.qps[kA]->PollTimeout() == end, is_behind_a_network);
  }
}

// One that was there when the requester looked, and that another QP of the shared queue took.
TEST(RcLoss, AReceiveThatAnotherTakesIsNoRetry) {
  RcPairOptions options;
  options.rnr_retry_count = 1;
  RcPair pair(options);
  MemoryId to = pair.NewRegion(64);
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "one"));
  while (pair.qps[kA]->counters().rcvd_rnr_err == 0) ASSERT_TRUE(pair.fabric.Step());
  const Instant look = pair.qps[kA]->PollTimeout();
  ASSERT_LT(look, pair.fabric.now() + RnrDelay(options.min_rnr_timer_code));
  pair.qps[kA]->OnTimeout(look);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 32)});
  Completion none;
  EXPECT_EQ(pair.qps[kA]->SendDirect(look, *pair.qps[kB], none), Direct::kNot);
  pair.hosts[kB]->recvs.clear();
  pair.fabric.Drive(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rnr-retry-exc");
  EXPECT_EQ(pair.qps[kB]->counters().send_rnr_err, 3u) << "at first, in vain, and the retry";
}

TEST(RcLoss, RnrRetrySevenNeverGivesUp) {
  RcPair pair;
  MemoryId to = pair.NewRegion(64);
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "patient"));
  while (pair.qps[kA]->counters().rcvd_rnr_err < 50) ASSERT_TRUE(pair.fabric.Step());
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
}

TEST(RcLoss, LossesBetweenRnrNaksAreEachOneOfItsOwn) {
  RcPairOptions options;
  options.timeout_exp = 0;  // there is none
  RcPair pair(options);
  MemoryId to = pair.NewRegion(128);
  // Of the two each second time the first is lost, and the other one complained about.
  uint32_t tries = 0;
  pair.fabric.set_drop_filter(
      [&](const Pdu& pdu) { return pdu.opcode == Opcode::kSendOnly && ++tries % 4 == 3; });
  pair.Queue(kA, RcPair::Inline(1, WrOpcode::kSend, "one"));
  pair.Queue(kA, RcPair::Inline(2, WrOpcode::kSend, "two"));
  pair.Ring(kA);
  const auto& counters = pair.qps[kA]->counters();
  while (counters.rcvd_seq_err < 30 && counters.retry_exceeded_err == 0) {
    ASSERT_TRUE(pair.fabric.Step());
  }
  EXPECT_GE(counters.rcvd_rnr_err, 30u);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  pair.PostRecv(kB, 8, {pair.memory.SgeOf(to, 64, 64)});
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok 8:ok");
}

TEST(RcLoss, WriteWithImmediateMeetsNoReceiveAtItsLastPacket) {
  RcPair pair;
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(3000);
  SendWork work = Write(pair, 1, from, to);
  work.wqe.opcode = static_cast<uint8_t>(WrOpcode::kRdmaWriteWithImm);
  pair.Post(kA, work);
  while (pair.qps[kA]->counters().rcvd_rnr_err < 2) ASSERT_TRUE(pair.fabric.Step());
  pair.PostRecv(kB, 7, {});
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok");
  EXPECT_TRUE(pair.SameBytes(from, to));
}

TEST(RcLoss, AcknowledgementsCoalesce) {
  RcPairOptions options;
  options.link.dma_delay = Microseconds(50);
  RcPair pair(options);
  MemoryId region = pair.NewPattern(8);
  for (uint64_t id = 0; id < 20; ++id) pair.Queue(kA, Write(pair, id, region, region));
  uint32_t acks_lost = 0;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    return pdu.opcode == Opcode::kAcknowledge && ++acks_lost < 20;  // only the last arrives
  });
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.fabric.completions(kA).size(), 20u);
  EXPECT_EQ(pair.qps[kB]->counters().duplicate_request, 0u);
}

TEST(RcLoss, RefusedPdusAreKeptByOnePortAndLostByAnother) {
  for (bool keeps : {true, false}) {
    RcPairOptions options;
    options.link.dma_delay = Microseconds(30);
    options.link.keeps_refused = keeps;
    RcPair pair(options);
    MemoryId from = pair.NewPattern(1000);
    MemoryId to = pair.NewRegion(100'000);
    for (uint32_t i = 0; i < 100; ++i) {
      pair.Queue(
          kA, pair.Remote(RcPair::Work(i, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 1000)}),
                          to, i * 1000));
    }
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.fabric.completions(kA).size(), 100u);
    // What was refused and lost comes again only after a timeout.
    EXPECT_EQ(pair.fabric.pdus_sent() > 200 || pair.fabric.now().ns > AckTimeout(8).ns, !keeps);
    for (const auto& wc : pair.fabric.completions(kA)) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  }
}

}  // namespace
}  // namespace verbena::transport::rc

// Stories in which something is wrong: keys, lengths, rights, receive queues, memory.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;
using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr bool kReceives = false;

class RcFaults : public ::testing::TestWithParam<uint32_t> {
 protected:
  static RcPairOptions Options() {
    RcPairOptions options;
    options.max_pdu_bytes = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, RcFaults, ::testing::Values(0u, 1u << 20),
                         [](const auto& form) { return form.param == 0 ? "Packets" : "Messages"; });

VendorErr FirstVendorErr(RcPair& pair, uint32_t side) {
  return pair.fabric.completions(side).at(0).vendor_err;
}

TEST_P(RcFaults, RkeyOutOfBoundsIsNakedAndWritesNothing) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(2999);
  pair.Post(kA, pair.Remote(
                    RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 3000)}), to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kA), VendorErr::kPeerNak);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-access");
  EXPECT_EQ(pair.qps[kA]->state(), QpState::kErr);
  EXPECT_EQ(pair.qps[kB]->state(), QpState::kErr);
  EXPECT_TRUE(pair.HasEvent(kB, EventType::kQpAccessErr));
  for (std::byte b : pair.memory.region(to).bytes) ASSERT_EQ(b, std::byte{0});
}

// Its immediate would take the receive, and comes last.
TEST_P(RcFaults, AWriteOfSeveralPacketsIsRefusedBeforeItTakesAReceive) {  //= IBTA 9.7.4.1.7 test
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(2999);
  pair.PostRecv(kB, 7, {});
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWriteWithImm,
                                         {pair.memory.SgeOf(from, 0, 3000)}),
                            to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-access");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:flush");
  EXPECT_TRUE(pair.HasEvent(kB, EventType::kQpAccessErr));
}

TEST_P(RcFaults, RegionWithoutTheRightRefuses) {
  struct Case {
    WrOpcode opcode;
    uint32_t rights;
  };
  for (Case c : {Case{WrOpcode::kRdmaWrite, access::kLocalWrite | access::kRemoteRead},
                 Case{WrOpcode::kRdmaRead, access::kLocalWrite | access::kRemoteWrite},
                 Case{WrOpcode::kAtomicFetchAndAdd, access::kLocalWrite | access::kRemoteWrite}}) {
    RcPair pair(Options());
    MemoryId mine = pair.NewRegion(8);
    MemoryId theirs = pair.NewRegion(8, 0, c.rights);
    pair.Post(kA, pair.Remote(RcPair::Work(1, c.opcode, {pair.memory.SgeOf(mine, 0, 8)}), theirs));
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-access");
  }
}

TEST_P(RcFaults, QpWithoutTheRightRefusesTheRequest) {
  for (WrOpcode opcode :
       {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead, WrOpcode::kAtomicFetchAndAdd}) {
    RcPairOptions options = Options();
    options.access_flags = 0;
    RcPair pair(options);
    MemoryId mine = pair.NewRegion(8);
    MemoryId theirs = pair.NewRegion(8);
    pair.Post(kA, pair.Remote(RcPair::Work(1, opcode, {pair.memory.SgeOf(mine, 0, 8)}), theirs));
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-inv-req");
    EXPECT_TRUE(pair.HasEvent(kB, EventType::kQpReqErr));
  }
}

TEST_P(RcFaults, MessageLongerThanTheReceiveFailsBothEnds) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(3000);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 2999)});
  pair.PostRecv(kB, 8, {pair.memory.SgeOf(to, 0, 3000)});
  pair.Post(kA, RcPair::Work(1, WrOpcode::kSend, {pair.memory.SgeOf(from, 0, 3000)}));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-inv-req");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:loc-len 8:flush");
  EXPECT_FALSE(pair.HasEvent(kB, EventType::kQpReqErr));  // its completion tells
}

TEST_P(RcFaults, ReceiveWithBadKeyIsTheRespondersFault) {
  RcPair pair(Options());
  pair.PostRecv(kB, 7, {{0x1000, 64, 0xbad}});
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "hello"));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kB), VendorErr::kBadLKey);
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:loc-prot");
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-op");
}

TEST_P(RcFaults, MisalignedAtomicIsAnInvalidRequest) {
  RcPair pair(Options());
  MemoryId word = pair.NewRegion(16);
  MemoryId result = pair.NewRegion(8);
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kAtomicFetchAndAdd,
                                         {pair.memory.SgeOf(result, 0, 8)}),
                            word, 4));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-inv-req");
}

TEST_P(RcFaults, LocalFaultsCompleteAfterTheWorkBeforeThem) {
  struct Case {
    SendWork work;
    const char* status;
    VendorErr why;
  };
  RcPair maker(Options());
  SendWork bad_key = RcPair::Work(2, WrOpcode::kSend, {{0x1000, 8, 0xbad}});
  SendWork bad_opcode = RcPair::Work(2, WrOpcode::kTso, {});
  SendWork bad_bind = RcPair::Work(2, WrOpcode::kBindMw, {});
  SendWork too_long = RcPair::Work(2, WrOpcode::kSend, {{0, 0x4000'0000, 0}, {0, 1, 0}});
  SendWork inline_read = RcPair::Inline(2, WrOpcode::kRdmaRead, "x");
  SendWork short_atomic = RcPair::Work(2, WrOpcode::kAtomicFetchAndAdd, {{0, 4, 0}});
  SendWork bad_invalidate = RcPair::Work(2, WrOpcode::kLocalInv, {});
  for (const Case& c : {Case{bad_key, "loc-prot", VendorErr::kBadLKey},
                        Case{bad_opcode, "loc-qp-op", VendorErr::kBadOpcode},
                        Case{too_long, "loc-len", VendorErr::kMessageTooLong},
                        Case{inline_read, "loc-qp-op", VendorErr::kBadWqe},
                        Case{short_atomic, "loc-len", VendorErr::kMessageTooLong},
                        Case{bad_bind, "mw-bind", VendorErr::kBadRKey},
                        Case{bad_invalidate, "loc-qp-op", VendorErr::kBadRKey}}) {
    RcPair pair(Options());
    MemoryId from = pair.NewPattern(8);
    MemoryId to = pair.NewRegion(8);
    SendWork good =
        pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)}), to);
    pair.Queue(kA, good);
    pair.Queue(kA, c.work);
    good.wqe.wr_id = 3;
    pair.Queue(kA, good);
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    ASSERT_EQ(pair.fabric.completions(kA).size(), 3u);
    EXPECT_EQ(pair.fabric.completions(kA)[1].vendor_err, c.why);
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), std::string("1:ok 2:") + c.status + " 3:flush");
    EXPECT_EQ(pair.hosts[kA]->sends_released, 3u);
    EXPECT_EQ(pair.qps[kB]->state(), QpState::kRts);
  }
}

TEST_P(RcFaults, ReadIntoReadOnlyMemoryIsRefusedLocally) {
  RcPair pair(Options());
  MemoryId mine = pair.NewRegion(8, 0, 0);
  MemoryId theirs = pair.NewPattern(8);
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                            theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kA), VendorErr::kLKeyAccess);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-prot");
}

TEST_P(RcFaults, ReadWithoutOutstandingReadsAllowedFails) {
  RcPairOptions options = Options();
  options.max_rd_atomic = 0;
  RcPair pair(options);
  MemoryId mine = pair.NewRegion(8);
  MemoryId theirs = pair.NewPattern(8);
  pair.Post(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 8)}),
                            theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kA), VendorErr::kTooManyRdAtomic);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-qp-op");
}

// --- memory that is registered, and gone ---------------------------------------------------------

TEST_P(RcFaults, SourcePagesGoneFailOnlyTheRequester) {
  for (bool by_reference : {false, true}) {
    RcPairOptions options = Options();
    options.link.by_reference = by_reference;
    options.link.dma_delay = Nanoseconds(by_reference ? 500 : 0);
    RcPair pair(options);
    MemoryId good = pair.NewPattern(100);
    MemoryId gone = pair.NewPattern(100);
    MemoryId to = pair.NewRegion(400);
    pair.memory.region(gone).is_gone = true;
    for (uint64_t id = 1; id <= 4; ++id) {
      pair.PostRecv(kB, 10 + id, {pair.memory.SgeOf(to, static_cast<uint32_t>(id - 1) * 100, 100)});
    }
    pair.Queue(kA, RcPair::Work(1, WrOpcode::kSend, {pair.memory.SgeOf(good, 0, 100)}));
    pair.Queue(kA, RcPair::Work(2, WrOpcode::kSend, {pair.memory.SgeOf(gone, 0, 100)}));
    pair.Queue(kA, RcPair::Work(3, WrOpcode::kSend, {pair.memory.SgeOf(good, 0, 100)}));
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:loc-prot 3:flush");
    EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "11:ok");  // the second never came
    EXPECT_EQ(pair.qps[kB]->state(), QpState::kRts);
    ASSERT_EQ(pair.ModifyTo(kB, QpState::kErr), 0);
    EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "12:flush 13:flush 14:flush");
    EXPECT_EQ(pair.hosts[kB]->recvs_released, 4u);
  }
}

TEST_P(RcFaults, DestinationPagesGoneFailBothEnds) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(3000);
  pair.memory.region(to).is_gone = true;
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 3000)});
  pair.Post(kA, RcPair::Work(1, WrOpcode::kSend, {pair.memory.SgeOf(from, 0, 3000)}));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kB), VendorErr::kMemoryFault);
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:loc-prot");
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-op");
}

TEST_P(RcFaults, ReadOfPagesGoneIsTheRespondersFault) {
  for (bool by_reference : {false, true}) {
    RcPairOptions options = Options();
    options.link.by_reference = by_reference;
    RcPair pair(options);
    MemoryId theirs = pair.NewPattern(3000);
    MemoryId mine = pair.NewRegion(3000);
    pair.memory.region(theirs).is_gone = true;
    pair.Post(kA,
              pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 3000)}),
                          theirs));
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-op");
    EXPECT_TRUE(pair.HasEvent(kB, EventType::kQpAccessErr));
    EXPECT_EQ(pair.qps[kB]->state(), QpState::kErr);
  }
}

TEST_P(RcFaults, ReadResultWithNowhereToGoIsALocalFault) {
  RcPair pair(Options());
  MemoryId theirs = pair.NewPattern(3000);
  MemoryId mine = pair.NewRegion(3000);
  pair.memory.region(mine).is_gone = true;
  pair.Post(kA,
            pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 3000)}),
                        theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(FirstVendorErr(pair, kA), VendorErr::kMemoryFault);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-prot");
}

// The peer has gone on to what was sent behind the READ: who sends again what was flushed has to
// know of which it must not.
TEST_P(RcFaults, WhatIsFlushedBehindAFailedReadSaysHowFarItCame) {
  RcPair pair(Options());
  MemoryId theirs = pair.NewPattern(3000);
  MemoryId mine = pair.NewRegion(3000);
  MemoryId to = pair.NewRegion(8);
  pair.memory.region(mine).is_gone = true;
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 8)});
  pair.Post(kA,
            pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 3000)}),
                        theirs));
  pair.Post(kA, RcPair::Work(2, WrOpcode::kSend, {pair.memory.SgeOf(theirs, 0, 8)}));
  ASSERT_TRUE(pair.Run());
  pair.Post(kA, RcPair::Work(3, WrOpcode::kSend, {pair.memory.SgeOf(theirs, 0, 8)}));
  ASSERT_TRUE(pair.Run());
  const auto& completions = pair.fabric.completions(kA);
  ASSERT_EQ(completions.size(), 3u);
  EXPECT_TRUE(completions[1].vendor_err == VendorErr::kFlushedDone ||
              completions[1].vendor_err == VendorErr::kFlushedSent);
  EXPECT_EQ(completions[2].vendor_err, VendorErr::kFlushed);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-prot 2:flush 3:flush");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok");
}

TEST_P(RcFaults, RegionRevokedBeforeTheResponseIsNotWritten) {
  RcPair pair(Options());
  MemoryId theirs = pair.NewPattern(3000);
  MemoryId mine = pair.NewRegion(3000);
  pair.Post(kA,
            pair.Remote(RcPair::Work(1, WrOpcode::kRdmaRead, {pair.memory.SgeOf(mine, 0, 3000)}),
                        theirs));
  pair.memory.region(mine).is_valid = false;  // deregistered while the request is on its way
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:loc-prot");
  for (std::byte b : pair.memory.region(mine).bytes) ASSERT_EQ(b, std::byte{0});
}

// --- hostile rings -------------------------------------------------------------------------------

TEST_P(RcFaults, LyingSendQueueLosesItsQp) {
  RcPair pair(Options());
  pair.hosts[kA]->sq_lies = true;
  pair.Ring(kA);
  EXPECT_EQ(pair.qps[kA]->state(), QpState::kErr);
  EXPECT_TRUE(pair.HasEvent(kA, EventType::kQpFatal));
}

TEST_P(RcFaults, LyingReceiveQueueLosesItsQp) {
  RcPair pair(Options());
  pair.hosts[kB]->rq_lies = true;
  pair.Post(kA, RcPair::Inline(1, WrOpcode::kSend, "x"));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.qps[kB]->state(), QpState::kErr);
  EXPECT_TRUE(pair.HasEvent(kB, EventType::kQpFatal));
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-op");
}

}  // namespace
}  // namespace verbena::transport::rc

// Single requests and answers, right and wrong ones, and what a QP says to each.
#include "transport/rc/rc_script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace verbena::transport::rc {
namespace {

// --- responder
// -------------------------------------------------------------------------------------

TEST_F(RcScript, PsnGapIsNakedOnceThenSilent) {  //= IBTA 9.7.5.2.6 test
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Deliver(Request(Opcode::kWriteLast, 102, kMtu));
  ExpectNak(NakCode::kPsnSequenceError, 101);
  Deliver(Request(Opcode::kWriteLast, 102, kMtu));
  ExpectSilence();
  Deliver(Request(Opcode::kWriteMiddle, 101, kMtu));
  ExpectAck(101);
  Deliver(Request(Opcode::kWriteLast, 103, kMtu));  // another gap, another NAK
  ExpectNak(NakCode::kPsnSequenceError, 102);
}

// What was under way when the RNR NAK went out is dropped; the same once more shows that the peer
// has begun again, and that the first was lost.
TEST_F(RcScript, LossAfterAnRnrNakIsNakedOnce) {  //= IBTA 9.7.5.2.8 test
  for (uint32_t psn = 100; psn <= 103; ++psn) Deliver(Request(Opcode::kSendOnly, psn, 8));
  ExpectRnrNak(100);
  ExpectSilence();
  for (uint32_t psn = 101; psn <= 103; ++psn) {
    Deliver(Request(Opcode::kSendOnly, psn, 8));
    if (psn == 101) ExpectNak(NakCode::kPsnSequenceError, 100);
    ExpectSilence();
  }
  for (int i = 0; i < 4; ++i) PostRecv(8);
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  ExpectAck(100);
  Deliver(Request(Opcode::kSendOnly, 102, 8));
  ExpectNak(NakCode::kPsnSequenceError, 101);
}

TEST_F(RcScript, EachRnrNakHasRequestsOfItsOwnBehindIt) {
  for (int round = 0; round < 3; ++round) {
    for (uint32_t psn : {100, 101, 102}) Deliver(Request(Opcode::kSendOnly, psn, 8));
    ExpectRnrNak(100);
    ExpectSilence();
  }
  Deliver(Request(Opcode::kSendOnly, 102, 8));
  ExpectNak(NakCode::kPsnSequenceError, 100);
}

// Sent again, packets may come in other groups than before.
TEST_F(RcScript, LossAfterAnRnrNakShowsByAnyPacketThatCameBefore) {
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 101, 3 * kMtu));
  ExpectRnrNak(100);
  ExpectSilence();
  Deliver(Request(Opcode::kWriteLast, 103, kMtu));
  ExpectNak(NakCode::kPsnSequenceError, 100);
}

TEST_F(RcScript, GapNakWaitsForThePlacementsBeforeIt) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 102, 8));
  ExpectSilence();
  FinishPlacement();
  ExpectNak(NakCode::kPsnSequenceError, 101);
  ExpectSilence();  // the NAK acknowledges what is before it
}

TEST_F(RcScript, AckWaitsForThePlacement) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 101, 8));
  ExpectSilence();
  FinishPlacement();
  ExpectAck(100);
  FinishPlacement();
  ExpectAck(101);
}

TEST_F(RcScript, ReadWaitsForWritesAndHoldsBackLaterOnes) {
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Pdu read = Request(Opcode::kReadRequest, 101);
  read.dma_length = 8;
  Deliver(read);
  ExpectSilence();
  EXPECT_FALSE(pair_.qps[RcPair::kB]->CanAccept(Request(Opcode::kWriteOnly, 102, 8)));
  read.psn = Psn(102);
  EXPECT_TRUE(pair_.qps[RcPair::kB]->CanAccept(read));
  FinishPlacement();
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseOnly);
  EXPECT_TRUE(pair_.qps[RcPair::kB]->CanAccept(Request(Opcode::kWriteOnly, 102, 8)));
}

// Where a QP that failed, or one set up anew in its place, would go on.
class RcHalted : public RcScript {
 protected:
  uint32_t NextPsn() {
    EXPECT_EQ(pair_.ModifyTo(RcPair::kB, QpState::kErr), 0);
    shm::QpAttr attr{};
    pair_.qps[RcPair::kB]->Query(attr);
    return attr.rq_psn;
  }
};

TEST_F(RcHalted, BehindWhatIsPlacedAndNoFurther) {
  Deliver(Request(Opcode::kWriteOnly, kEpsn, 64));
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, kEpsn + 1, 64));
  EXPECT_EQ(NextPsn(), kEpsn + 1);
}

// The peer has a part of the response, and asks for the rest, as of a READ that is known.
TEST_F(RcHalted, BehindAReadThatIsAnsweredInPart) {
  Pdu read = Request(Opcode::kReadRequest, kEpsn);
  read.dma_length = 3 * kMtu;
  Deliver(read);
  NextResponse();
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, kEpsn + 3, 64));
  EXPECT_EQ(NextPsn(), kEpsn + 3);
}

// What follows must find the key revoked, not be let in before that and written after it.
TEST_F(RcScript, AnInvalidationHoldsBackWhatFollowsIt) {
  const MemoryId revoked = pair_.NewRegion(64);
  holds_placements_ = true;
  PostRecv(100);
  Pdu send = Request(Opcode::kSendOnlyWithInvalidate, kEpsn, 8);
  send.imm_or_rkey = pair_.memory.region(revoked).key;
  Deliver(send);
  Pdu write = Request(Opcode::kWriteOnly, kEpsn + 1, 8);
  write.remote_addr = pair_.memory.region(revoked).addr;
  write.rkey = RKey(send.imm_or_rkey);
  EXPECT_FALSE(pair_.qps[RcPair::kB]->CanAccept(write));
  FinishPlacement();
  ASSERT_TRUE(pair_.qps[RcPair::kB]->CanAccept(write));
  Deliver(write);
  EXPECT_TRUE(held_.empty());
  ExpectNak(NakCode::kRemoteAccessError, kEpsn + 1);
}

TEST_F(RcScript, PlacementsOutstandingAreBounded) {
  holds_placements_ = true;
  uint32_t accepted = 0;
  while (pair_.qps[RcPair::kB]->CanAccept(Request(Opcode::kWriteOnly, 100 + accepted, 8))) {
    Deliver(Request(Opcode::kWriteOnly, 100 + accepted, 8));
    ASSERT_LT(++accepted, 100u);
  }
  EXPECT_EQ(accepted, 63u);
  FinishPlacement();
  EXPECT_TRUE(pair_.qps[RcPair::kB]->CanAccept(Request(Opcode::kWriteOnly, 163, 8)));
}

TEST_F(RcScript, DuplicatesAreAcknowledgedAgainAndNotExecuted) {  //= IBTA C9-105 test
  data_[0] = std::byte{1};
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 101, 8));
  ExpectAck(101);
  data_[0] = std::byte{2};
  Deliver(Request(Opcode::kWriteOnly, 100, 8));
  ExpectAck(101);
  EXPECT_EQ(pair_.memory.region(region_).bytes[0], std::byte{1});
}

TEST_F(RcScript, DuplicateAtomicIsReplayedEvenOutOfTheMiddle) {
  Pdu add = Request(Opcode::kFetchAdd, 100);
  add.swap_or_add = 5;
  for (uint32_t i = 0; i < 4; ++i) {
    add.psn = Psn(100 + i);
    Deliver(add);
    EXPECT_EQ(NextResponse().atomic_original, 5u * i);
  }
  add.psn = Psn(102);
  Deliver(add);
  EXPECT_EQ(NextResponse().atomic_original, 10u);
  EXPECT_EQ(pair_.WordAt(region_, 0), 20u);
}

TEST_F(RcScript, DuplicateAtomicIsReplayedWhenTheirLimitHasChanged) {
  Pdu add = Request(Opcode::kFetchAdd, 100);
  add.swap_or_add = 5;
  uint32_t psn = 100;
  auto deliver_new = [&] {
    add.psn = Psn(psn);
    Deliver(add);
    EXPECT_EQ(NextResponse().atomic_original, 5 * (psn - 100));
    ++psn;
  };
  for (int i = 0; i < 6; ++i) deliver_new();  // more than are kept: the oldest give way
  ASSERT_EQ(pair_.ModifyTo(RcPair::kB, QpState::kSqd), 0);
  uint8_t kept = 0;
  for (uint8_t limit : {6, 2, 9, 1}) {
    shm::QpAttr attr = {};
    attr.max_dest_rd_atomic = limit;
    ASSERT_EQ(pair_.qps[RcPair::kB]->Modify(now_, attr, shm::qp_mask::kMaxDestRdAtomic).error, 0);
    for (int i = 0; i < 3; ++i) deliver_new();
    kept = std::max(kept, limit);
    for (uint32_t again = psn - kept; again != psn; ++again) {
      add.psn = Psn(again);
      Deliver(add);
      EXPECT_EQ(NextResponse().atomic_original, 5 * (again - 100)) << again;
    }
  }
  EXPECT_EQ(pair_.WordAt(region_, 0), 5 * (psn - 100));
}

TEST_F(RcScript, DuplicateReadLongerThanAnyBeforeIsIgnored) {
  Pdu read = Request(Opcode::kReadRequest, 100);
  read.dma_length = 2 * kMtu;
  Deliver(read);
  NextResponse();
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseLast);
  read.dma_length = 3 * kMtu;
  Deliver(read);
  ExpectSilence();
}

TEST_F(RcScript, MessagesAreCounted) {
  Deliver(WriteFirst(100, kMtu, kMtu + 1));
  EXPECT_EQ(NextResponse().msn.value, 0u);
  Deliver(Request(Opcode::kWriteLast, 101, 1));
  EXPECT_EQ(NextResponse().msn.value, 1u);
  Pdu read = Request(Opcode::kReadRequest, 102);
  read.dma_length = 1;
  Deliver(read);
  EXPECT_EQ(NextResponse().msn.value, 2u);
}

TEST_F(RcScript, OpcodesOutOfSequenceAreInvalid) {  //= IBTA 9.7.4.1.3 test
  Deliver(Request(Opcode::kWriteMiddle, 100, kMtu));
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, NewMessageInsideAnotherIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Deliver(Request(Opcode::kWriteOnly, 101, 8));
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, SendCannotEndAWrite) {
  Deliver(WriteFirst(100, kMtu, 2 * kMtu));
  ExpectAck(100);
  PostRecv(2 * kMtu);
  Deliver(Request(Opcode::kSendLast, 101, kMtu));
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, FirstPacketShorterThanTheMtuIsInvalid) {  //= IBTA C9-92 test
  Deliver(WriteFirst(100, kMtu - 1, 2 * kMtu));
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, EmptyLastPacketIsInvalid) {  //= IBTA C9-94 test
  Deliver(WriteFirst(100, kMtu, kMtu));
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, PacketLongerThanItsPsnsIsInvalid) {
  Pdu pdu = Request(Opcode::kWriteOnly, 100, kMtu + 1);
  pdu.psn_count = PsnCount{1};
  Deliver(pdu);
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, WriteThatEndsEarlyIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Deliver(Request(Opcode::kWriteLast, 101, kMtu));
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, WriteThatGoesOnTooLongIsInvalidAndWritesNothingMore) {
  Deliver(WriteFirst(100, kMtu, kMtu + 8));
  ExpectAck(100);
  std::memset(data_, 0xff, sizeof(data_));
  Deliver(Request(Opcode::kWriteMiddle, 101, kMtu));
  ExpectInvalidRequest(101);
  for (uint32_t i = kMtu; i < 3 * kMtu; ++i) {
    ASSERT_EQ(pair_.memory.region(region_).bytes[i], std::byte{0});
  }
}
// Of several packets taken as one PDU a NAK names the one whose PSN a responder that looks at each
// would name.
TEST_F(RcScript, NakOfPacketsTakenAsOneNamesTheOneAtFault) {
  Pdu too_short = WriteFirst(100, 3 * kMtu, 4 * kMtu);
  too_short.opcode = Opcode::kWriteOnly;
  Deliver(too_short);
  ExpectInvalidRequest(102);
}
TEST_F(RcScript, NakOfPacketsTakenAsOneNamesTheOneThatIsTooMuch) {
  Pdu too_long = WriteFirst(100, 3 * kMtu, kMtu + 8);
  too_long.opcode = Opcode::kWriteOnly;
  Deliver(too_long);
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, SendOfPacketsTakenAsOneIsRefusedWhereTheReceiveEnds) {
  PostRecv(2 * kMtu);
  Deliver(Request(Opcode::kSendOnly, 100, 3 * kMtu));
  ExpectInvalidRequest(102);
}
TEST_F(RcScript, ReservedOpcodesAndHugeReadsAreHarmless) {
  Deliver(Request(static_cast<Opcode>(0x15), 100));
  Deliver(Request(static_cast<Opcode>(0x1f), 100));
  ExpectSilence();
  Pdu read = Request(Opcode::kReadRequest, 100);
  read.dma_length = 0xffff'ffff;
  Deliver(read);
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, KeyRevokedInsideAMessageStopsIt) {
  Deliver(WriteFirst(100, kMtu, 2 * kMtu));
  ExpectAck(100);
  pair_.memory.region(region_).is_valid = false;
  Deliver(Request(Opcode::kWriteLast, 101, kMtu));
  ExpectNak(NakCode::kRemoteAccessError, 101);
}
TEST_F(RcScript, RequestWhosePayloadCantBeReadNeverCame) {
  holds_placements_ = true;
  PostRecv(64);
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  Deliver(Request(Opcode::kWriteOnly, 101, 8));
  FinishPlacement(DmaStatus::kSourceFault);
  FinishPlacement();
  ExpectSilence();
  Deliver(Request(Opcode::kSendOnly, 100, 8));  // expected still, and its receive is there
  FinishPlacement();
  ExpectAck(100);
}

// --- requester and completer
// -----------------------------------------------------------------------

TEST_F(RcAnswerScript, OneAckCompletesAllBeforeIt) {
  for (uint64_t id = 1; id <= 3; ++id) PostWrite(id, 2 * kMtu);
  Deliver(Response(Opcode::kAcknowledge, kEpsn + 2), RcPair::kA);  // the middle of the second
  EXPECT_EQ(SendCompletions(), "1:ok");
  Deliver(Response(Opcode::kAcknowledge, kEpsn + 5), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "2:ok 3:ok");
}

TEST_F(RcAnswerScript, GhostAcksAreIgnored) {
  PostWrite(1, 8);
  for (uint32_t psn : {kEpsn - 1, kEpsn + 1, kEpsn + 1000}) {
    Deliver(Response(Opcode::kAcknowledge, psn), RcPair::kA);
    Pdu nak = Response(Opcode::kAcknowledge, psn);
    nak.ack_type = AckType::kNak;
    nak.nak_code = NakCode::kInvalidRequest;
    Deliver(nak, RcPair::kA);
  }
  EXPECT_EQ(SendCompletions(), "");
  EXPECT_EQ(pair_.qps[RcPair::kA]->state(), QpState::kRts);
}

TEST_F(RcAnswerScript, NakAcknowledgesWhatIsBeforeIt) {
  for (uint64_t id = 1; id <= 3; ++id) PostWrite(id, 8);
  Pdu nak = Response(Opcode::kAcknowledge, kEpsn + 1);
  nak.ack_type = AckType::kNak;
  nak.nak_code = NakCode::kRemoteAccessError;
  Deliver(nak, RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:ok 2:rem-access 3:flush");
}

TEST_F(RcAnswerScript, OnlyTheFirstFailureIsToldTheRestIsFlushed) {
  PostWrite(1, 10);
  pair_.Post(RcPair::kA, RcPair::Work(2, shm::WrOpcode::kSend, {{0x1000, 8, 0xbad}}));
  Pdu nak = Response(Opcode::kAcknowledge, kEpsn);
  nak.ack_type = AckType::kNak;
  nak.nak_code = NakCode::kRemoteAccessError;
  Deliver(nak, RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:rem-access 2:flush");
}

TEST_F(RcAnswerScript, ReadResponseAcknowledgesWritesBeforeIt) {
  PostWrite(1, 8);
  PostRead(2, 8);
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn + 1, 8), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:ok 2:ok");
}

TEST_F(RcAnswerScript, DuplicateReadResponsesChangeNothing) {
  PostRead(1, 2 * kMtu);
  data_[0] = std::byte{1};
  Deliver(Response(Opcode::kReadResponseFirst, kEpsn, kMtu), RcPair::kA);
  data_[0] = std::byte{2};
  Deliver(Response(Opcode::kReadResponseFirst, kEpsn, kMtu), RcPair::kA);
  Deliver(Response(Opcode::kReadResponseLast, kEpsn + 1, kMtu), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:ok");
  EXPECT_EQ(pair_.memory.region(region_).bytes[0], std::byte{1});
}

TEST_F(RcAnswerScript, ReadResponseOfTheWrongLengthIsABadResponse) {
  PostRead(1, 8);
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn, 9), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:bad-resp");
  for (std::byte b : pair_.memory.region(region_).bytes) ASSERT_EQ(b, std::byte{0});
}

TEST_F(RcAnswerScript, ReadResponseThatEndsEarlyIsABadResponse) {
  PostRead(1, 3 * kMtu);
  Deliver(Response(Opcode::kReadResponseFirst, kEpsn, kMtu), RcPair::kA);
  Deliver(Response(Opcode::kReadResponseLast, kEpsn + 1, kMtu), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:bad-resp");
}

TEST_F(RcAnswerScript, AtomicAckForAReadIsIgnored) {
  PostRead(1, 8);
  Deliver(Response(Opcode::kAtomicAcknowledge, kEpsn), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "");
}

TEST_F(RcAnswerScript, EarlyTimeoutsAreNoOps) {
  PostWrite(1, 8);
  uint64_t sent = pair_.fabric.pdus_sent();
  pair_.qps[RcPair::kA]->OnTimeout(Instant{1000});
  pair_.fabric.Drive(RcPair::kA);
  EXPECT_EQ(pair_.fabric.pdus_sent(), sent);
}

}  // namespace
}  // namespace verbena::transport::rc

// What a lossy network and peers of other makes do to a QP: duplicates, windows of responder
// resources, credits, acknowledgements out of place.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/rc/rc_script.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

// --- responder -----------------------------------------------------------------------------------

TEST_F(RcScript, DuplicateSendIsAcknowledgedWithTheNewestPsnAndMsn) {  //= IBTA C9-105 test
  PostRecv(64);
  PostRecv(64);
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  ExpectAck(100);
  Deliver(Request(Opcode::kSendOnly, 101, 8));
  ExpectAck(101);
  Pdu again = Request(Opcode::kSendOnly, 100, 8);
  Deliver(again);
  Pdu ack = NextResponse();
  EXPECT_EQ(ack.psn, Psn(101));
  EXPECT_EQ(ack.msn.value, 2u);
  ExpectSilence();
  EXPECT_EQ(pair_.hosts[RcPair::kB]->recvs_fetched, 2u);  // none was taken for it
}

TEST_F(RcScript, DuplicateMiddleOfAMessageIsAcknowledgedWhenItAsks) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Deliver(Request(Opcode::kWriteMiddle, 101, kMtu));
  ExpectAck(101);
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  Pdu ack = NextResponse();
  EXPECT_EQ(ack.psn, Psn(101));
  EXPECT_EQ(ack.msn.value, 0u);
  Deliver(Request(Opcode::kWriteLast, 102, kMtu));  // the message goes on where it was
  ExpectAck(102);
}

TEST_F(RcScript, AReadAskedForAgainFromTheMiddleStartsThere) {  //= IBTA 9.7.5.1.1 test
  for (uint32_t i = 0; i < 4 * kMtu; ++i) {
    pair_.memory.region(region_).bytes[i] = static_cast<std::byte>(i / kMtu + 1);
  }
  Pdu read = Request(Opcode::kReadRequest, 100);
  read.dma_length = 4 * kMtu;
  Deliver(read);
  for (int i = 0; i < 4; ++i) NextResponse();
  read.psn = Psn(102);
  read.remote_addr += 2 * kMtu;
  read.dma_length = 2 * kMtu;
  Deliver(read);
  Pdu first = NextResponse();
  EXPECT_EQ(first.opcode, Opcode::kReadResponseFirst);
  EXPECT_EQ(first.psn, Psn(102));
  EXPECT_EQ(first.msn.value, 1u);  // counted once
  EXPECT_EQ(first.payload.segments[0].addr, pair_.memory.region(region_).addr + 2 * kMtu);
  Pdu last = NextResponse();
  EXPECT_EQ(last.opcode, Opcode::kReadResponseLast);
  EXPECT_EQ(last.psn, Psn(103));
  ExpectSilence();
}

TEST_F(RcScript, DuplicateReadIsReadFromMemoryAsItIsNow) {
  Pdu read = Request(Opcode::kReadRequest, 100);
  read.dma_length = 8;
  Deliver(read);
  NextResponse();
  pair_.memory.region(region_).is_valid = false;
  Deliver(read);  // its key is looked at again
  ExpectNak(NakCode::kRemoteAccessError, 100);
}

TEST_F(RcScript, AtomicOlderThanTheResourcesIsDroppedInSilence) {  //= IBTA C9-150 test
  Pdu add = Request(Opcode::kFetchAdd, 100);
  add.swap_or_add = 1;
  for (uint32_t i = 0; i < 5; ++i) {  // one more than max_dest_rd_atomic
    add.psn = Psn(100 + i);
    Deliver(add);
    NextResponse();
  }
  add.psn = Psn(100);
  Deliver(add);
  ExpectSilence();
  add.psn = Psn(101);
  Deliver(add);
  EXPECT_EQ(NextResponse().atomic_original, 1u);
  EXPECT_EQ(pair_.WordAt(region_, 0), 5u);
}

TEST_F(RcScript, DuplicateOfAnAtomicUnderWayIsNotExecuted) {
  holds_placements_ = true;
  Pdu add = Request(Opcode::kFetchAdd, 100);
  Deliver(add);
  Deliver(add);
  EXPECT_EQ(held_.size(), 1u);
  FinishPlacement();
  EXPECT_EQ(NextResponse().opcode, Opcode::kAtomicAcknowledge);
  ExpectSilence();
}

class RcLongScript : public RcScript {
 protected:
  static constexpr uint32_t kPduBytes = 64 * kMtu;

  RcLongScript() : RcScript(LongPdus()) {}
  static RcPairOptions LongPdus() {
    RcPairOptions options;
    options.max_pdu_bytes = kPduBytes;
    return options;
  }
  // WRITEs that take PSNs `from` to `from` + `count` - 1.
  void PassPsns(uint32_t from, uint32_t count) {
    holds_placements_ = true;
    for (uint32_t psns; count > 0; count -= psns, from += psns) {
      psns = std::min(count, kPduBytes / kMtu);
      Pdu write = Request(Opcode::kWriteOnly, from & Psn::kMask, psns * kMtu);
      write.ack_request = false;
      Deliver(write);
      FinishPlacement();
    }
    holds_placements_ = false;
  }
};

TEST_F(RcLongScript, AtomicsOfOnePsnAreToldApartAfterAWholeTurn) {  //= IBTA C9-150 test
  constexpr uint32_t kTurn = Psn::kMask + 1;
  Pdu add = Request(Opcode::kFetchAdd, 100);
  add.swap_or_add = 1;
  Deliver(add);
  NextResponse();
  add.psn = Psn(101);
  Deliver(add);
  EXPECT_EQ(NextResponse().atomic_original, 1u);
  PassPsns(102, kTurn - 1);

  holds_placements_ = true;
  Deliver(add);
  Deliver(add);  // a duplicate of what is under way, not of the old one
  ExpectSilence();
  FinishPlacement();  // with another result
  EXPECT_EQ(NextResponse().atomic_original, 0u);
  ExpectSilence();
  Deliver(add);
  EXPECT_EQ(NextResponse().atomic_original, 0u) << "the result of one turn ago";
}

TEST_F(RcScript, MoreReadsThanAgreedAreInvalid) {  //= IBTA 9.7.4.1.5 test
  holds_placements_ = true;
  Deliver(Request(Opcode::kWriteOnly, 100, 8));  // the READs wait for it
  Pdu read = Request(Opcode::kReadRequest, 101);
  read.dma_length = 8;
  for (uint32_t i = 0; i < 4; ++i) {  // max_dest_rd_atomic
    read.psn = Psn(101 + i);
    Deliver(read);
  }
  read.psn = Psn(102);
  Deliver(read);  // a duplicate is not one more
  read.psn = Psn(105);
  Deliver(read);
  FinishPlacement();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseOnly);
  ExpectInvalidRequest(105);
}

TEST_F(RcScript, RnrNakIsNotRepeatedForPacketsBehindIt) {
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  Pdu nak = NextResponse();
  EXPECT_EQ(nak.ack_type, AckType::kRnrNak);
  EXPECT_EQ(nak.psn, Psn(100));
  EXPECT_EQ(nak.rnr_timer_code, 12);
  Deliver(Request(Opcode::kSendOnly, 101, 8));
  ExpectSilence();
  Deliver(Request(Opcode::kSendOnly, 100, 8));  // the retry
  EXPECT_EQ(NextResponse().ack_type, AckType::kRnrNak);
  PostRecv(64);
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  ExpectAck(100);
}

TEST_F(RcScript, CreditsAreNotGiven) {
  PostRecv(64);
  Deliver(Request(Opcode::kSendOnly, 100, 8));
  EXPECT_EQ(NextResponse().credits, kCreditsNotInUse);
}

TEST_F(RcScript, WriteOfMoreThanTwoGigabytesIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 0x8000'0001));
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, OnlyPacketThatDisagreesWithItsLengthIsInvalid) {
  Pdu pdu = Request(Opcode::kWriteOnly, 100, 8);
  pdu.dma_length = 9;
  Deliver(pdu);
  ExpectInvalidRequest(100);
}
TEST_F(RcScript, MiddlePacketShorterThanTheMtuIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Deliver(Request(Opcode::kWriteMiddle, 101, kMtu - 4));
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, LastPacketLongerThanTheMtuIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Pdu last = Request(Opcode::kWriteLast, 101, 2 * kMtu);
  last.psn_count = PsnCount{1};
  Deliver(last);
  ExpectInvalidRequest(101);
}
TEST_F(RcScript, ReadInsideAMessageIsInvalid) {
  Deliver(WriteFirst(100, kMtu, 3 * kMtu));
  ExpectAck(100);
  Pdu read = Request(Opcode::kReadRequest, 101);
  read.dma_length = 8;
  Deliver(read);
  ExpectInvalidRequest(101);
}

class RcWindowedScript : public RcScript {
 protected:
  static RcPairOptions Windowed() {
    RcPairOptions options;
    options.max_unacked_psns = 16;
    return options;
  }
  RcWindowedScript() : RcScript(Windowed()) {}
};

TEST_F(RcWindowedScript, WhatFollowsALongReadIsTakenInAndAnsweredAfterIt) {  //= IBTA 9.5 test
  Pdu read = Request(Opcode::kReadRequest, 100);
  read.dma_length = 3 * kMtu;
  Deliver(read);
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseFirst);
  PostRecv(64);
  Pdu send = Request(Opcode::kSendOnly, 103, 8);
  EXPECT_TRUE(pair_.qps[RcPair::kB]->CanAccept(send));
  Deliver(send);
  // Its acknowledgement would tell the requester that the rest of the READ was lost.
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseMiddle);
  EXPECT_EQ(NextResponse().opcode, Opcode::kReadResponseLast);
  ExpectAck(103);
}

// --- requester and completer ---------------------------------------------------------------------

TEST_F(RcAnswerScript, AckTimerStartsAgainWithEachProgress) {  //= IBTA 9.7.6.1.3 test
  PostWrite(1, 8);
  PostWrite(2, 8);
  const Instant first = pair_.qps[RcPair::kA]->PollTimeout();
  EXPECT_GE(first - pair_.fabric.now(), AckTimeout(8));
  EXPECT_LE(first - pair_.fabric.now(), AckTimeout(8) * 4);
  now_ = first + Nanoseconds(-1);
  Deliver(Response(Opcode::kAcknowledge, kEpsn), RcPair::kA);
  const Instant second = pair_.qps[RcPair::kA]->PollTimeout();
  EXPECT_GE(second - now_, AckTimeout(8));
  EXPECT_LE(second - now_, AckTimeout(8) * 4);
  now_ = second + Nanoseconds(-1);
  Deliver(Response(Opcode::kAcknowledge, kEpsn), RcPair::kA);  // nothing new
  EXPECT_EQ(pair_.qps[RcPair::kA]->PollTimeout(), second);
  Deliver(Response(Opcode::kAcknowledge, kEpsn + 1), RcPair::kA);
  EXPECT_TRUE(pair_.qps[RcPair::kA]->PollTimeout().IsNever());
}

TEST_F(RcAnswerScript, AckTimerStartsAgainWithEachReadResponse) {
  PostRead(1, 3 * kMtu);
  const Instant first = pair_.qps[RcPair::kA]->PollTimeout();
  now_ = first + Nanoseconds(-1);
  Deliver(Response(Opcode::kReadResponseFirst, kEpsn, kMtu), RcPair::kA);
  EXPECT_GE(pair_.qps[RcPair::kA]->PollTimeout() - now_, AckTimeout(8));
}

TEST_F(RcAnswerScript, LateAckSparesWhatWasPresumedLost) {
  PostWrite(1, 4 * kMtu);
  std::vector<Psn> again;
  pair_.fabric.set_drop_filter([&](const Pdu& pdu) {
    again.push_back(pdu.psn);
    return true;
  });
  now_ = pair_.qps[RcPair::kA]->PollTimeout();
  pair_.qps[RcPair::kA]->OnTimeout(now_);
  Deliver(Response(Opcode::kAcknowledge, kEpsn + 1), RcPair::kA);
  pair_.fabric.Drive(RcPair::kA);
  EXPECT_EQ(again, (std::vector<Psn>{Psn(kEpsn + 2), Psn(kEpsn + 3)}));
}

TEST_F(RcAnswerScript, SequenceNakBehindAnRnrNakUsesNoRetry) {
  RcQp& qp = *pair_.qps[RcPair::kA];
  size_t sent = 0;
  pair_.fabric.set_drop_filter([&](const Pdu&) {
    ++sent;
    return true;
  });
  PostWrite(1, 2 * kMtu);
  Pdu rnr_nak = Response(Opcode::kAcknowledge, kEpsn);
  rnr_nak.ack_type = AckType::kRnrNak;
  Pdu sequence_nak = Response(Opcode::kAcknowledge, kEpsn);
  sequence_nak.ack_type = AckType::kNak;
  sequence_nak.nak_code = NakCode::kPsnSequenceError;
  for (size_t round = 1; round <= 20; ++round) {  // more than retry_cnt allows
    Deliver(rnr_nak, RcPair::kA);
    Deliver(sequence_nak, RcPair::kA);
    EXPECT_EQ(SendCompletions(), "");
    EXPECT_EQ(sent, 2 * round);  // nothing before the RNR timer
    const Instant naked = now_;
    while (sent == 2 * round) {
      now_ = qp.PollTimeout();
      qp.OnTimeout(now_);
      pair_.fabric.Drive(RcPair::kA);
    }
    EXPECT_EQ(now_ - naked, RnrDelay(rnr_nak.rnr_timer_code));
  }
  EXPECT_EQ(sent, 2u * 21);
  Deliver(Response(Opcode::kAcknowledge, kEpsn + 1), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:ok");
}

class RcFewRetriesScript : public RcAnswerScript {
 protected:
  static constexpr uint8_t kRetries = 3;
  static RcPairOptions Few() {
    RcPairOptions options;
    options.retry_count = options.rnr_retry_count = kRetries;
    return options;
  }
  RcFewRetriesScript() : RcAnswerScript(Few()) {}

  // How many NAKs of the second of three packets the QP stands.
  int CountNaks(AckType type) {
    RcQp& qp = *pair_.qps[RcPair::kA];
    PostWrite(1, 3 * kMtu);
    Pdu nak = Response(Opcode::kAcknowledge, kEpsn + 1);
    nak.ack_type = type;
    nak.nak_code = NakCode::kPsnSequenceError;
    for (int naks = 0; naks < 20; ++naks) {
      Deliver(nak, RcPair::kA);
      pair_.fabric.Drive(RcPair::kA);
      if (qp.state() != QpState::kRts) return naks;
      if (type == AckType::kNak) continue;
      now_ = qp.PollTimeout();
      qp.OnTimeout(now_);
      pair_.fabric.Drive(RcPair::kA);
    }
    return 20;
  }
};

// The first NAK acknowledges the packet before; the same NAK again tells of no progress.
TEST_F(RcFewRetriesScript, RnrNaksAmidAMessageRunOut) {  //= IBTA 9.9.2.4.1 test
  EXPECT_EQ(CountNaks(AckType::kRnrNak), kRetries);
  EXPECT_EQ(SendCompletions(), "1:rnr-retry-exc");
}

TEST_F(RcFewRetriesScript, SequenceNaksAmidAMessageRunOut) {  //= IBTA 9.9.2.4.1 test
  EXPECT_EQ(CountNaks(AckType::kNak), kRetries);
  EXPECT_EQ(SendCompletions(), "1:retry-exc");
}

TEST_F(RcAnswerScript, ReadResponseThatSaysNakIsNone) {
  PostRead(1, 8);
  Pdu response = Response(Opcode::kReadResponseOnly, kEpsn, 8);
  response.ack_type = AckType::kNak;
  Deliver(response, RcPair::kA);
  EXPECT_EQ(SendCompletions(), "");
}

TEST_F(RcAnswerScript, AnswersOfTheWrongKindAreHarmless) {
  PostWrite(1, 8);
  Deliver(Response(Opcode::kReadResponseOnly, kEpsn, 8), RcPair::kA);
  Deliver(Response(Opcode::kAtomicAcknowledge, kEpsn), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "");
  Deliver(Response(Opcode::kAcknowledge, kEpsn), RcPair::kA);
  EXPECT_EQ(SendCompletions(), "1:ok");
}

class RcCreditScript : public RcAnswerScript {
 protected:
  void SetUp() override {
    pair_.fabric.set_drop_filter([this](const Pdu& pdu) {
      sent_.push_back(pdu);
      return true;
    });
  }
  void QueueSend(uint64_t id, uint32_t bytes = 8) {
    pair_.Queue(RcPair::kA,
                RcPair::Work(id, WrOpcode::kSend, {pair_.memory.SgeOf(region_, 0, bytes)}));
  }
  void Ack(uint32_t psn, uint32_t msn, uint8_t credits) {
    Pdu ack = Response(Opcode::kAcknowledge, psn);
    ack.msn = Msn(msn);
    ack.credits = credits;
    Deliver(ack, RcPair::kA);
    pair_.fabric.Drive(RcPair::kA);
  }
  std::vector<Pdu> sent_;
};

TEST_F(RcCreditScript, SendsBeyondTheCreditsGoOneAtATime) {  //= IBTA 9.7.7.2.5 test
  PostWrite(1, 8);
  Ack(kEpsn, 1, 2);  // two receives are ready
  sent_.clear();
  for (uint64_t id = 2; id <= 6; ++id) QueueSend(id);
  pair_.Ring(RcPair::kA);
  EXPECT_EQ(sent_.size(), 2u);
  Ack(kEpsn + 1, 2, 1);  // still these two
  EXPECT_EQ(sent_.size(), 2u);
  Ack(kEpsn + 2, 3, 0);  // none is left: one goes to find out
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_TRUE(sent_[2].ack_request);
  Ack(kEpsn + 3, 4, 3);  // it found some: the rest may go
  EXPECT_EQ(sent_.size(), 5u);
}

TEST_F(RcCreditScript, WorkThatTakesNoReceiveNeedsNoCredit) {
  PostWrite(1, 8);
  Ack(kEpsn, 1, 0);
  sent_.clear();
  for (uint64_t id = 2; id <= 5; ++id) PostWrite(id, 8);
  PostRead(6, 8);
  EXPECT_EQ(sent_.size(), 5u);
}

TEST_F(RcCreditScript, LongSendWithoutCreditWaitsAfterItsFirstPacket) {
  PostWrite(1, 8);
  Ack(kEpsn, 1, 0);
  sent_.clear();
  QueueSend(2, 4 * kMtu);
  pair_.Ring(RcPair::kA);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].opcode, Opcode::kSendFirst);
  EXPECT_TRUE(sent_[0].ack_request);
  Ack(kEpsn + 1, 1, 0);  // taken in: this message has its receive
  EXPECT_EQ(sent_.size(), 4u);
}

TEST_F(RcCreditScript, TheSameAckMayComeAgainWithNewCredits) {
  PostWrite(1, 8);
  Ack(kEpsn, 1, 0);
  sent_.clear();
  for (uint64_t id = 2; id <= 5; ++id) QueueSend(id);
  pair_.Ring(RcPair::kA);
  EXPECT_EQ(sent_.size(), 1u);
  Ack(kEpsn, 1, 3);
  EXPECT_EQ(sent_.size(), 3u);
  Ack(kEpsn, 1, kCreditsNotInUse);
  EXPECT_EQ(sent_.size(), 4u);
}

TEST_F(RcCreditScript, CreditsCountAcrossTheWrapOfTheMsn) {
  PostWrite(1, 8);
  Ack(kEpsn, 0x7f'ffff, 30);  // nonsense, but from a peer: nothing breaks
  Ack(kEpsn, 0xff'fffe, 5);   // four more than the wrap
  sent_.clear();
  QueueSend(2);
  QueueSend(3);
  QueueSend(4);
  pair_.Ring(RcPair::kA);
  EXPECT_EQ(sent_.size(), 3u);
}

}  // namespace
}  // namespace verbena::transport::rc

// What a UC responder takes in, and what it drops without a word.
#include "gtest/gtest.h"
#include "transport/common/qp_script.h"
#include "transport/uc/uc_qp.h"

namespace verbena::transport {
namespace {

using shm::VendorErr;
using shm::WcOpcode;

class UcResponderScript : public QpScript {
 protected:
  void SetUp() override { Build(Config(Service::kUc)); }
  void Build(const QpConfig& config) {
    qp_ = std::make_unique<UcQp>(config, host_);
    BringUp(QpState::kRts);
    source_ = NewBuffer(64 * kMtu, 0x5a);
  }

  // A request PDU with `length` bytes of 0x5a.
  Pdu Request(Opcode opcode, uint32_t psn_offset, uint32_t length) {
    Pdu pdu;
    pdu.service = Service::kUc;
    pdu.opcode = opcode;
    pdu.psn = Psn(kRqPsn + psn_offset);
    pdu.psn_count = {length == 0 ? 1 : static_cast<int32_t>((length + kMtu - 1) / kMtu)};
    pdu.src_qpn = kRemoteQpn;
    pdu.dest_qpn = kLocalQpn;
    source_segment_ = {source_.lkey, source_.length, source_.addr};
    pdu.payload.length = length;
    pdu.payload.segments = &source_segment_;
    pdu.payload.segment_count = 1;
    return pdu;
  }
  Pdu Write(Opcode opcode, uint32_t psn_offset, uint32_t length, const shm::Sge& to,
            uint32_t total) {
    Pdu pdu = Request(opcode, psn_offset, length);
    pdu.remote_addr = to.addr;
    pdu.rkey = RKey(to.lkey);
    pdu.dma_length = total;
    return pdu;
  }

  shm::Sge source_;
  DmaSegment source_segment_;
};

TEST_F(UcResponderScript, SendLandsInTheReceiveBuffers) {
  shm::Sge a = NewBuffer(10);
  shm::Sge b = NewBuffer(10);
  PostRecv(5, {a, b});
  Pdu pdu = Request(Opcode::kSendOnlyWithImm, 0, 15);
  pdu.imm_or_rkey = 0x1234;
  pdu.solicited = true;
  Deliver(pdu);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecv);
  EXPECT_EQ(wc.byte_len, 15u);
  EXPECT_EQ(wc.imm_or_rkey, 0x1234u);
  EXPECT_EQ(wc.wc_flags, shm::kWcWithImm);
  EXPECT_EQ(wc.src_qpn, kRemoteQpn);
  EXPECT_FALSE(wc.is_send);
  EXPECT_TRUE(wc.solicited);
  EXPECT_EQ(ByteAt(a, 9), 0x5a);
  EXPECT_EQ(ByteAt(b, 4), 0x5a);
  EXPECT_EQ(ByteAt(b, 5), 0);
  EXPECT_EQ(host_.recvs_released, 1u);
}

TEST_F(UcResponderScript, PacketsOfOneMessageFillOneWqe) {
  shm::Sge buffer = NewBuffer(3 * kMtu);
  PostRecv(5, {buffer});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendMiddle, 1, kMtu));
  ExpectNoCompletion();
  Deliver(Request(Opcode::kSendLast, 2, 1));
  EXPECT_EQ(NextCompletion().byte_len, 2 * kMtu + 1);
  EXPECT_EQ(ByteAt(buffer, 2 * kMtu), 0x5a);
  EXPECT_EQ(ByteAt(buffer, 2 * kMtu + 1), 0);
}

TEST_F(UcResponderScript, WholeMessagePduConsumesAllItsPsns) {
  PostRecv(1, {NewBuffer(8 * kMtu)});
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 5 * kMtu));
  Deliver(Request(Opcode::kSendOnly, 5, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kSuccess);
  EXPECT_EQ(qp_->counters().out_of_seq_request, 0u);
}

TEST_F(UcResponderScript, EmptySendCompletesWithoutTouchingMemory) {
  PostRecv(1, {});
  Deliver(Request(Opcode::kSendOnly, 0, 0));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 0u);
}

TEST_F(UcResponderScript, WriteLandsSilentlyAndItsImmediateTakesAWqe) {
  shm::Sge target = NewBuffer(100);
  Deliver(Write(Opcode::kWriteOnly, 0, 100, target, 100));
  EXPECT_EQ(ByteAt(target, 99), 0x5a);
  ExpectNoCompletion();

  PostRecv(9, {});
  Pdu pdu = Write(Opcode::kWriteOnlyWithImm, 1, 50, target, 50);
  pdu.imm_or_rkey = 3;
  Deliver(pdu);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(wc.byte_len, 50u);
  EXPECT_EQ(wc.imm_or_rkey, 3u);
}

TEST_F(UcResponderScript, WriteOfSeveralPacketsGoesToConsecutiveAddresses) {
  shm::Sge target = NewBuffer(2 * kMtu + 10);
  Deliver(Write(Opcode::kWriteFirst, 0, kMtu, target, 2 * kMtu + 5));
  Deliver(Request(Opcode::kWriteMiddle, 1, kMtu));
  Deliver(Request(Opcode::kWriteLast, 2, 5));
  EXPECT_EQ(ByteAt(target, 2 * kMtu + 4), 0x5a);
  EXPECT_EQ(ByteAt(target, 2 * kMtu + 5), 0);
}

// --- PSNs and message boundaries
// -------------------------------------------------------------------

TEST_F(UcResponderScript, GapLosesTheMessageAndTheNextFirstStartsAfresh) {
  shm::Sge buffer = NewBuffer(4 * kMtu);
  PostRecv(1, {buffer});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendLast, 2, 8));  // the MIDDLE with PSN 1 is lost
  ExpectNoCompletion();
  EXPECT_EQ(qp_->counters().out_of_seq_request, 1u);
  Deliver(Request(Opcode::kSendFirst, 3, kMtu));
  Deliver(Request(Opcode::kSendLast, 4, 9));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u) << "the lost message's WQE is used again";
  EXPECT_EQ(wc.byte_len, kMtu + 9);
  EXPECT_EQ(qp_->state(), QpState::kRts);
}

TEST_F(UcResponderScript, GapBeforeAnOnlyLosesNothingMore) {
  PostRecv(1, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 7, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, RestOfALostMessageIsDroppedThoughItsPsnsFit) {
  PostRecv(1, {NewBuffer(8 * kMtu)});
  Deliver(Request(Opcode::kSendMiddle, 3, kMtu));  // its FIRST never came
  Deliver(Request(Opcode::kSendMiddle, 4, kMtu));
  Deliver(Request(Opcode::kSendLast, 5, 8));
  ExpectNoCompletion();
  Deliver(Request(Opcode::kSendOnly, 6, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, FirstWithinAMessageEndsTheOldOne) {
  PostRecv(1, {NewBuffer(2 * kMtu)});
  PostRecv(2, {NewBuffer(2 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendFirst, 1, kMtu));
  Deliver(Request(Opcode::kSendLast, 2, 4));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.byte_len, kMtu + 4);
  ExpectNoCompletion();
}

TEST_F(UcResponderScript, MiddleOfAnotherOperationIsDropped) {
  PostRecv(1, {NewBuffer(2 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kWriteMiddle, 1, kMtu));
  Deliver(Request(Opcode::kSendLast, 2, 4));
  ExpectNoCompletion();
}

TEST_F(UcResponderScript, LengthsThatDontFitTheirPlaceAreDropped) {
  PostRecv(1, {NewBuffer(8 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu - 1));
  Deliver(Request(Opcode::kSendLast, 1, 4));
  Deliver(Request(Opcode::kSendFirst, 2, kMtu));
  Deliver(Request(Opcode::kSendLast, 3, 0));
  Pdu fat = Request(Opcode::kSendOnly, 4, kMtu + 1);
  fat.psn_count = {1};
  Deliver(fat);
  ExpectNoCompletion();
  Deliver(Request(Opcode::kSendOnly, 5, 4));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, ForeignOpcodesAndServicesAreDropped) {
  PostRecv(1, {NewBuffer(8)});
  Deliver(Request(Opcode::kReadRequest, 0, 0));
  Deliver(Request(Opcode::kFetchAdd, 0, 0));
  Deliver(Request(Opcode::kSendOnlyWithInvalidate, 0, 8));
  Deliver(Request(Opcode::kAcknowledge, 0, 0));
  Deliver(Request(static_cast<Opcode>(0x15), 0, 0));
  Pdu reliable = Request(Opcode::kSendOnly, 0, 8);
  reliable.service = Service::kRc;
  Deliver(reliable);
  ExpectNoCompletion();
  EXPECT_EQ(qp_->counters().out_of_seq_request, 0u);
}

// --- refusals
// -------------------------------------------------------------------------------------

TEST_F(UcResponderScript, NoReceiveWqeDropsTheMessage) {
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  PostRecv(1, {NewBuffer(2 * kMtu)});
  Deliver(Request(Opcode::kSendLast, 1, 8));
  ExpectNoCompletion();
  EXPECT_EQ(qp_->counters().out_of_buffer, 1u);
  Deliver(Request(Opcode::kSendOnly, 2, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, ImmediateWithoutReceiveWqeWritesNothing) {
  shm::Sge target = NewBuffer(8);
  Deliver(Write(Opcode::kWriteOnlyWithImm, 0, 8, target, 8));
  EXPECT_EQ(ByteAt(target, 0), 0);
  ExpectNoCompletion();
}

TEST_F(UcResponderScript, RkeyViolationsAreSilent) {
  shm::Sge target = NewBuffer(8);
  Pdu bad_key = Write(Opcode::kWriteOnly, 0, 8, target, 8);
  bad_key.rkey = RKey(0xdead);
  Deliver(bad_key);
  Pdu beyond = Write(Opcode::kWriteOnly, 1, 9, target, 9);
  Deliver(beyond);
  memory_.region(target.lkey).access = access::kLocalWrite;
  Deliver(Write(Opcode::kWriteOnly, 2, 8, target, 8));
  EXPECT_EQ(ByteAt(target, 0), 0);
  ExpectNoCompletion();
  ExpectNoEvent();
  EXPECT_EQ(qp_->state(), QpState::kRts);
}

TEST_F(UcResponderScript, WriteNeedsTheQpsConsent) {
  shm::QpAttr attr = {};
  ASSERT_EQ(ModifyTo(QpState::kRts, shm::qp_mask::kAccessFlags, attr), 0);
  shm::Sge target = NewBuffer(8);
  Deliver(Write(Opcode::kWriteOnly, 0, 8, target, 8));
  EXPECT_EQ(ByteAt(target, 0), 0);
}

TEST_F(UcResponderScript, EmptyWriteNeedsNoKey) {
  PostRecv(1, {});
  Pdu pdu = Write(Opcode::kWriteOnlyWithImm, 0, 0, shm::Sge{}, 0);
  pdu.rkey = RKey(0xdead);
  Deliver(pdu);
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, WriteThatDisagreesWithItsLengthIsCutOff) {
  shm::Sge target = NewBuffer(4 * kMtu);
  PostRecv(1, {});
  Deliver(Write(Opcode::kWriteFirst, 0, kMtu, target, kMtu + 8));
  Deliver(Request(Opcode::kWriteMiddle, 1, kMtu));
  Deliver(Request(Opcode::kWriteLastWithImm, 2, 8));
  EXPECT_EQ(ByteAt(target, kMtu), 0);
  Deliver(Write(Opcode::kWriteOnlyWithImm, 3, 8, target, 9));
  ExpectNoCompletion();
}

TEST_F(UcResponderScript, ShortReceiveBufferFailsItsWqeAndTheQp) {
  PostRecv(1, {NewBuffer(kMtu + 7)});
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendLast, 1, 8));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocLenErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kReceiveTooShort);
  ExpectCompletion(2, WcStatus::kWrFlushErr);
  EXPECT_EQ(qp_->state(), QpState::kErr);
  EXPECT_EQ(host_.recvs_released, 2u);
}

TEST_F(UcResponderScript, ReceiveListMayReachBeyondItsRegionButDataMayNot) {
  shm::Sge buffer = NewBuffer(16);
  buffer.length = 64;
  PostRecv(1, {buffer});
  PostRecv(2, {buffer});
  Deliver(Request(Opcode::kSendOnly, 0, 16));
  ExpectCompletion(1, WcStatus::kSuccess);
  Deliver(Request(Opcode::kSendOnly, 1, 17));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kLKeyBounds);
}

TEST_F(UcResponderScript, LyingReceiveRingIsFatal) {
  host_.recv_ring_lies = true;
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  EXPECT_EQ(qp_->state(), QpState::kErr);
  ExpectEvent(EventType::kQpFatal);
  ExpectNoEvent();
}

// --- placement
// ------------------------------------------------------------------------------------

TEST_F(UcResponderScript, CompletesInOrderAndOnlyAfterPlacement) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(8)});
  PostRecv(2, {});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  Deliver(Request(Opcode::kSendOnly, 1, 0));
  ExpectNoCompletion();
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, AcceptsABoundedNumberOfPlacements) {
  hold_placements_ = true;
  for (uint32_t i = 0; i < ReceiveQueue::kMaxPlacements; ++i) {
    PostRecv(i, {NewBuffer(8)});
    EXPECT_TRUE(qp_->CanAccept(Request(Opcode::kSendOnly, i, 8)));
    Deliver(Request(Opcode::kSendOnly, i, 8));
  }
  EXPECT_FALSE(qp_->CanAccept(Request(Opcode::kSendOnly, 16, 8)));
  FinishPlacement();
  EXPECT_TRUE(qp_->CanAccept(Request(Opcode::kSendOnly, 16, 8)));
}

TEST_F(UcResponderScript, SourceFaultIsAsIfTheMessageNeverCame) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(8)});
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  Deliver(Request(Opcode::kSendOnly, 1, 8));
  FinishPlacement(DmaStatus::kSourceFault);
  ExpectNoCompletion();
  FinishPlacement();
  ExpectCompletion(2, WcStatus::kSuccess);
  Deliver(Request(Opcode::kSendOnly, 2, 8));
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
  EXPECT_EQ(qp_->state(), QpState::kRts);
}

TEST_F(UcResponderScript, SourceFaultWithinAMessageDropsItsRest) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(4 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  FinishPlacement(DmaStatus::kSourceFault);
  Deliver(Request(Opcode::kSendLast, 1, 8));
  ExpectNoCompletion();
  Deliver(Request(Opcode::kSendOnly, 2, 8));
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, UnwritableReceiveBufferFailsWqeAndQp) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(4 * kMtu)});
  PostRecv(2, {NewBuffer(8)});
  PostRecv(3, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendLast, 1, 8));
  Deliver(Request(Opcode::kSendOnly, 2, 8));
  FinishPlacement(DmaStatus::kDestinationFault);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kMemoryFault);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecv);
  FinishPlacement();
  FinishPlacement();
  ExpectCompletion(2, WcStatus::kWrFlushErr);
  ExpectCompletion(3, WcStatus::kWrFlushErr);
  ExpectNoCompletion();
  EXPECT_EQ(host_.recvs_released, 3u);
}

TEST_F(UcResponderScript, FaultOfAnAbandonedMessageSparesTheNextOne) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(4 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  Deliver(Request(Opcode::kSendOnly, 5, 8));  // gap: takes the same WQE
  FinishPlacement(DmaStatus::kDestinationFault);
  ExpectNoCompletion();
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, UnwritableWriteTargetIsSilentAndGivesTheImmediatesWqeBack) {
  PostRecv(1, {NewBuffer(8)});
  shm::Sge target = NewBuffer(8);
  memory_.region(target.lkey).is_gone = true;
  Deliver(Write(Opcode::kWriteOnlyWithImm, 0, 8, target, 8));
  ExpectNoCompletion();
  Deliver(Request(Opcode::kSendOnly, 1, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
}

// --- states
// ---------------------------------------------------------------------------------------

TEST_F(UcResponderScript, FirstRequestInRtrEstablishesTheConnection) {
  qp_ = std::make_unique<UcQp>(Config(Service::kUc), host_);
  BringUp(QpState::kRtr);
  PostRecv(1, {NewBuffer(8)});
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  ExpectEvent(EventType::kCommEst);
  Deliver(Request(Opcode::kSendOnly, 1, 8));
  ExpectNoEvent();
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, ReceivingGoesOnInSqeAndSqd) {
  PostRecv(1, {NewBuffer(8)});
  PostRecv(2, {NewBuffer(8)});
  ASSERT_EQ(MoveTo(QpState::kSqd), 0);
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  ExpectCompletion(1, WcStatus::kSuccess);
  ASSERT_EQ(MoveTo(QpState::kRts), 0);
  PostSend(Work(7, shm::WrOpcode::kRdmaRead, {NewBuffer(8)}));
  ExpectNoRequest();
  ExpectCompletion(7, WcStatus::kLocQpOpErr);
  ASSERT_EQ(qp_->state(), QpState::kSqe);
  Deliver(Request(Opcode::kSendOnly, 1, 8));
  ExpectCompletion(2, WcStatus::kSuccess);
}

TEST_F(UcResponderScript, ErrFlushesReceivesAfterWhatWasPlaced) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(8)});
  PostRecv(2, {NewBuffer(2 * kMtu)});
  PostRecv(3, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  Deliver(Request(Opcode::kSendFirst, 1, kMtu));
  ASSERT_EQ(MoveTo(QpState::kErr), 0);
  ExpectNoCompletion();
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
  FinishPlacement();
  ExpectCompletion(2, WcStatus::kWrFlushErr);
  ExpectCompletion(3, WcStatus::kWrFlushErr);
  Deliver(Request(Opcode::kSendLast, 2, 8));
  ExpectNoCompletion();
}

TEST_F(UcResponderScript, QpOfAnSrqFlushesOnlyItsOwnAndSaysWhenDone) {
  QpConfig config = Config(Service::kUc);
  config.has_srq = true;
  Build(config);
  PostRecv(1, {NewBuffer(2 * kMtu)});
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  ASSERT_EQ(MoveTo(QpState::kErr), 0);
  ExpectCompletion(1, WcStatus::kWrFlushErr);
  ExpectNoCompletion();
  ExpectEvent(EventType::kQpLastWqeReached);
  ExpectNoEvent();
  EXPECT_EQ(host_.recvs.size(), 1u);
}

TEST_F(UcResponderScript, ResetGivesTheSrqItsWqesBack) {
  QpConfig config = Config(Service::kUc);
  config.has_srq = true;
  Build(config);
  PostRecv(1, {NewBuffer(2 * kMtu)});
  Deliver(Request(Opcode::kSendFirst, 0, kMtu));
  ASSERT_EQ(MoveTo(QpState::kReset), 0);
  EXPECT_EQ(host_.recvs_released, 1u);
}

TEST_F(UcResponderScript, PlacementsOfAFormerLifeAreIgnored) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  ASSERT_EQ(MoveTo(QpState::kReset), 0);
  BringUp(QpState::kRts);
  PostRecv(2, {NewBuffer(8)});
  Deliver(Request(Opcode::kSendOnly, 0, 8));
  FinishPlacement(DmaStatus::kDestinationFault);
  EXPECT_EQ(qp_->state(), QpState::kRts);
  FinishPlacement();
  ExpectCompletion(2, WcStatus::kSuccess);
}

}  // namespace
}  // namespace verbena::transport

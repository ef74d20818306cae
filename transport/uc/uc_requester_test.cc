// What a UC requester sends, and when it says that it has.
#include "gtest/gtest.h"
#include "transport/common/qp_script.h"
#include "transport/uc/uc_qp.h"

namespace verbena::transport {
namespace {

using shm::VendorErr;
using shm::WrOpcode;

class UcRequesterScript : public QpScript {
 protected:
  void SetUp() override { Build({}); }

  struct Options {
    uint32_t max_pdu_bytes = 0;
    bool reports_release = false;
    bool sq_sig_all = false;
  };
  void Build(Options options) {
    QpConfig config = Config(Service::kUc);
    config.max_pdu_bytes = options.max_pdu_bytes;
    config.reports_release = options.reports_release;
    config.sq_sig_all = options.sq_sig_all;
    config.max_message_bytes = 1 << 20;
    qp_ = std::make_unique<UcQp>(config, host_);
    BringUp(QpState::kRts);
  }
  SendWork Send(uint64_t wr_id, uint32_t length) {
    return Work(wr_id, WrOpcode::kSend, {NewBuffer(length)});
  }
};

TEST_F(UcRequesterScript, PduLimitsOfTheConnectionReplaceThoseOfTheQp) {
  Build({.max_pdu_bytes = 1 << 20});
  ASSERT_EQ(MoveTo(QpState::kReset), 0);
  qp_->SetPduLimits({.max_pdu_bytes = 0, .max_unacked_psns = 1});
  BringUp(QpState::kRts);
  PostSend(Send(1, 2 * kMtu));
  EXPECT_EQ(NextRequest().opcode, Opcode::kSendFirst);
  EXPECT_EQ(NextRequest().opcode, Opcode::kSendLast);  // nothing acknowledges, nothing waits
}

TEST_F(UcRequesterScript, SendLeavesAsOnePacketAndCompletes) {
  SendWork work =
      Work(7, WrOpcode::kSendWithImm, {NewBuffer(100)}, shm::kSendSignaled | shm::kSendSolicited);
  work.wqe.imm_or_rkey = 0xabcd;
  PostSend(work);
  Pdu pdu = NextRequest();
  EXPECT_EQ(pdu.service, Service::kUc);
  EXPECT_EQ(pdu.opcode, Opcode::kSendOnlyWithImm);
  EXPECT_EQ(pdu.psn, Psn(kSqPsn));
  EXPECT_EQ(pdu.psn_count.value, 1);
  EXPECT_EQ(pdu.dest_qpn, kRemoteQpn);
  EXPECT_EQ(pdu.src_qpn, kLocalQpn);
  EXPECT_EQ(pdu.payload.length, 100u);
  EXPECT_EQ(pdu.imm_or_rkey, 0xabcdu);
  EXPECT_TRUE(pdu.solicited);
  EXPECT_FALSE(pdu.ack_request);
  ASSERT_NE(pdu.path, nullptr);
  EXPECT_EQ(pdu.path->dgid, Gid::FromIpv4(0x7f00'0002));
  ExpectCompletion(7, WcStatus::kSuccess);
  EXPECT_EQ(host_.sends_released, 1u);
  ExpectNoRequest();
  ExpectNoCompletion();
}

TEST_F(UcRequesterScript, WriteIsCutIntoPathMtuPacketsAcrossThePsnWrap) {
  SendWork work = Work(7, WrOpcode::kRdmaWriteWithImm, {NewBuffer(1000), NewBuffer(1500)});
  work.wqe.remote_addr = 0x5000;
  work.wqe.rkey = 0x77;
  work.wqe.imm_or_rkey = 5;
  PostSend(work);

  Pdu first = NextRequest();
  EXPECT_EQ(first.opcode, Opcode::kWriteFirst);
  EXPECT_EQ(first.psn, Psn(0xff'fffe));
  EXPECT_EQ(first.remote_addr, 0x5000u);
  EXPECT_EQ(first.rkey, RKey(0x77));
  EXPECT_EQ(first.dma_length, 2500u);
  EXPECT_EQ(first.payload.length, kMtu);
  ExpectNoCompletion();

  Pdu middle = NextRequest();
  EXPECT_EQ(middle.opcode, Opcode::kWriteMiddle);
  EXPECT_EQ(middle.psn, Psn(0xff'ffff));
  EXPECT_EQ(middle.payload.offset, kMtu);
  EXPECT_EQ(middle.imm_or_rkey, 0u);

  Pdu last = NextRequest();
  EXPECT_EQ(last.opcode, Opcode::kWriteLastWithImm);
  EXPECT_EQ(last.psn, Psn(0));
  EXPECT_EQ(last.payload.length, 2500u - 2 * kMtu);
  EXPECT_EQ(last.payload.segment_count, 2);
  EXPECT_EQ(last.imm_or_rkey, 5u);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRdmaWrite);
}

TEST_F(UcRequesterScript, WholeMessageIsOnePduOfAllItsPsns) {
  Build({.max_pdu_bytes = 1 << 20});
  PostSend(Send(1, 5 * kMtu + 1));
  PostSend(Send(2, 0));
  Pdu whole = NextRequest();
  EXPECT_EQ(whole.opcode, Opcode::kSendOnly);
  EXPECT_EQ(whole.psn_count.value, 6);
  EXPECT_EQ(NextRequest().psn, Psn(kSqPsn + 6));
}

TEST_F(UcRequesterScript, PduLimitIsRoundedDownToWholePackets) {
  Build({.max_pdu_bytes = 3 * kMtu - 1});
  PostSend(Send(1, 4 * kMtu));
  Pdu first = NextRequest();
  EXPECT_EQ(first.opcode, Opcode::kSendFirst);
  EXPECT_EQ(first.payload.length, 2 * kMtu);
  EXPECT_EQ(first.psn_count.value, 2);
  Pdu last = NextRequest();
  EXPECT_EQ(last.opcode, Opcode::kSendLast);
  EXPECT_EQ(last.psn, Psn(kSqPsn + 2));
}

TEST_F(UcRequesterScript, UnsignalledSendsCompleteInSilenceButFreeTheirSlots) {
  PostSend(Work(1, WrOpcode::kSend, {NewBuffer(8)}, 0));
  PostSend(Send(2, 8));
  NextRequest();
  ExpectNoCompletion();
  EXPECT_EQ(host_.sends_released, 1u);
  NextRequest();
  ExpectCompletion(2, WcStatus::kSuccess);
  EXPECT_EQ(host_.sends_released, 2u);
}

TEST_F(UcRequesterScript, SqSigAllSignalsEverything) {
  Build({.sq_sig_all = true});
  PostSend(Work(1, WrOpcode::kSend, {NewBuffer(8)}, 0));
  NextRequest();
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UcRequesterScript, InlinePayloadIsTheWqesOwn) {
  PostSend(InlineWork(1, WrOpcode::kSend, "hello"));
  Pdu pdu = NextRequest();
  ASSERT_NE(pdu.payload.bytes, nullptr);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(pdu.payload.bytes), pdu.payload.length),
            "hello");
}

TEST_F(UcRequesterScript, CompletesOnlyWhenThePayloadWasRead) {
  Build({.reports_release = true});
  PostSend(Send(1, 2 * kMtu));
  PostSend(Send(2, 10));
  PostSend(InlineWork(3, WrOpcode::kSend, "x"));
  Pdu first = NextRequest();
  Pdu last = NextRequest();
  Pdu second = NextRequest();
  NextRequest();  // inline: nothing to wait for but its elders
  ExpectNoCompletion();
  Release(second);
  Release(last);
  ExpectNoCompletion();
  EXPECT_EQ(host_.sends_released, 0u);
  Release(first);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kSuccess);
  ExpectCompletion(3, WcStatus::kSuccess);
}

TEST_F(UcRequesterScript, ReleaseOfAnUnknownPsnIsIgnored) {
  Build({.reports_release = true});
  PostSend(Send(1, 10));
  Pdu pdu = NextRequest();
  Pdu stranger = pdu;
  stranger.psn = pdu.psn + PsnCount{500};
  Release(stranger);
  ExpectNoCompletion();
  Release(pdu);
  Release(pdu);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectNoCompletion();
}

TEST_F(UcRequesterScript, UnreleasedWorkIsBounded) {
  Build({.reports_release = true});
  std::vector<Pdu> sent;
  for (uint32_t i = 0; i <= SendQueue::kMaxInFlight; ++i) PostSend(Send(i, 1));
  for (uint32_t i = 0; i < SendQueue::kMaxInFlight; ++i) sent.push_back(NextRequest());
  EXPECT_FALSE(qp_->HasRequestWork());
  ExpectNoRequest();
  Release(sent[0]);
  ExpectCompletion(0, WcStatus::kSuccess);
  EXPECT_TRUE(qp_->HasRequestWork());
  NextRequest();
}

// --- errors
// ---------------------------------------------------------------------------------------

TEST_F(UcRequesterScript, RcOnlyOpcodesFailAndTheRestIsFlushed) {
  for (WrOpcode opcode : {WrOpcode::kRdmaRead, WrOpcode::kAtomicCmpAndSwp,
                          WrOpcode::kAtomicFetchAndAdd, WrOpcode::kSendWithInv, WrOpcode::kTso}) {
    Build({});
    PostSend(Work(1, opcode, {NewBuffer(8)}, 0));
    PostSend(Work(2, WrOpcode::kSend, {NewBuffer(8)}, 0));
    ExpectNoRequest();
    Wc wc = NextCompletion();
    EXPECT_EQ(wc.wr_id, 1u);
    EXPECT_EQ(wc.status, WcStatus::kLocQpOpErr);
    EXPECT_EQ(wc.vendor_err, VendorErr::kBadOpcode);
    EXPECT_TRUE(wc.solicited);
    ExpectCompletion(2, WcStatus::kWrFlushErr);
    EXPECT_EQ(qp_->state(), QpState::kSqe);
  }
}

TEST_F(UcRequesterScript, MessageAboveThePortsLimitIsALengthError) {
  PostSend(Send(1, (1 << 20) + 1));
  ExpectNoRequest();
  ExpectCompletion(1, WcStatus::kLocLenErr);
}

TEST_F(UcRequesterScript, BadLKeyIsAProtectionErrorThatSaysWhich) {
  shm::Sge sge = NewBuffer(8);
  sge.length = 9;
  PostSend(Work(1, WrOpcode::kSend, {sge}));
  ExpectNoRequest();
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kLKeyBounds);
}

TEST_F(UcRequesterScript, SendErrorWaitsForItsEldersAndSqeIsLeftByModify) {
  Build({.reports_release = true});
  PostSend(Send(1, 8));
  PostSend(Work(2, WrOpcode::kRdmaRead, {NewBuffer(8)}));
  Pdu pdu = NextRequest();
  ExpectNoRequest();
  EXPECT_EQ(qp_->state(), QpState::kSqe);
  ExpectNoCompletion();
  Release(pdu);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kLocQpOpErr);
  PostSend(Send(3, 8));
  ExpectCompletion(3, WcStatus::kWrFlushErr);

  ASSERT_EQ(MoveTo(QpState::kRts), 0);
  PostSend(Send(4, 8));
  EXPECT_EQ(NextRequest().psn, Psn(kSqPsn + 1));
}

TEST_F(UcRequesterScript, SourceFaultFailsItsWqeAndFlushesThoseBehind) {
  Build({.reports_release = true});
  PostSend(Send(1, 8));
  PostSend(Send(2, 8));
  PostSend(Send(3, 8));
  Pdu one = NextRequest();
  Pdu two = NextRequest();
  Pdu three = NextRequest();
  qp_->OnSourceFault(now_, two.opcode, two.psn);
  Release(one);
  Release(three);
  ExpectCompletion(1, WcStatus::kSuccess);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kMemoryFault);
  ExpectCompletion(3, WcStatus::kWrFlushErr);
  EXPECT_EQ(qp_->state(), QpState::kSqe);
  ExpectNoEvent();
}

TEST_F(UcRequesterScript, SourceFaultAfterSuccessIsToldByAnEvent) {
  PostSend(Send(1, 8));
  Pdu pdu = NextRequest();
  ExpectCompletion(1, WcStatus::kSuccess);
  qp_->OnSourceFault(now_, pdu.opcode, pdu.psn);
  Drain();
  EXPECT_EQ(qp_->state(), QpState::kErr);
  ExpectEvent(EventType::kQpFatal);
}

TEST_F(UcRequesterScript, LyingRingIsFatalOnce) {
  host_.send_ring_lies = true;
  qp_->OnDoorbell(now_);
  ExpectNoRequest();
  EXPECT_EQ(qp_->state(), QpState::kErr);
  ExpectEvent(EventType::kQpFatal);
  qp_->OnDoorbell(now_);
  Drain();
  ExpectNoEvent();
}

// --- binds and invalidations --------------------------------------------------------------------

TEST_F(UcRequesterScript, LocalOperationsTakeTheirTurnAndNoPacket) {
  host_.key_fault = KeyFault::kNone;
  SendWork bind = Work(2, WrOpcode::kBindMw, {});
  bind.wqe.imm_or_rkey = 0x8000'0102;
  bind.wqe.rkey = 0x77;
  bind.wqe.remote_addr = 0x5000;
  bind.wqe.bind = {0x1'0000'0000, 9, access::kRemoteRead};
  SendWork invalidate = Work(3, WrOpcode::kLocalInv, {});
  invalidate.wqe.imm_or_rkey = 0x8000'0302;
  PostSend(Send(1, 8));
  PostSend(bind);
  PostSend(invalidate);
  PostSend(Send(4, 8));
  EXPECT_EQ(NextRequest().psn, Psn(kSqPsn));
  EXPECT_EQ(NextRequest().psn, Psn(kSqPsn) + PsnCount{1});
  for (uint64_t id = 1; id <= 4; ++id) ExpectCompletion(id, WcStatus::kSuccess);
  ASSERT_EQ(host_.binds.size(), 1u);
  EXPECT_EQ(host_.binds[0].window, 9u);
  EXPECT_EQ(host_.binds[0].rkey, RKey(0x8000'0102));
  EXPECT_EQ(host_.binds[0].lkey, 0x77u);
  EXPECT_EQ(host_.binds[0].addr, 0x5000u);
  EXPECT_EQ(host_.binds[0].length, 0x1'0000'0000u);
  EXPECT_EQ(host_.binds[0].access, access::kRemoteRead);
  EXPECT_EQ(host_.invalidated, std::vector{RKey(0x8000'0302)});
}

TEST_F(UcRequesterScript, LocalInvalidateWaitsForThoseBeforeItAndForTheKeysToSettle) {
  Build({.reports_release = true});
  host_.key_fault = KeyFault::kNone;
  host_.keys_are_settled = false;
  PostSend(Send(1, 8));
  PostSend(Work(2, WrOpcode::kLocalInv, {}));
  PostSend(Send(3, 8));
  Pdu first = NextRequest();
  ExpectNoRequest();
  EXPECT_TRUE(host_.invalidated.empty());
  Release(first);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectNoRequest();
  EXPECT_EQ(host_.invalidated.size(), 1u);
  ExpectNoCompletion();
  qp_->OnKeysSettled(now_, QpRole::kRequester);
  Drain();
  ExpectCompletion(2, WcStatus::kSuccess);
  Release(NextRequest());
  ExpectCompletion(3, WcStatus::kSuccess);
  EXPECT_EQ(host_.invalidated.size(), 1u);  // once
}

TEST_F(UcRequesterScript, ErrorWaitsForTheKeysOfALocalOperation) {
  host_.key_fault = KeyFault::kNone;
  host_.keys_are_settled = false;
  PostSend(Work(1, WrOpcode::kBindMw, {}));
  ExpectNoRequest();
  PostSend(Send(2, 8));
  ASSERT_EQ(MoveTo(QpState::kErr), 0);
  ExpectNoCompletion();
  qp_->OnKeysSettled(now_, QpRole::kRequester);
  Drain();
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kWrFlushErr);
}

TEST_F(UcRequesterScript, RefusedLocalOperationsFail) {
  for (WrOpcode opcode : {WrOpcode::kBindMw, WrOpcode::kLocalInv}) {
    Build({});
    PostSend(Work(1, opcode, {}));
    ExpectNoRequest();
    Wc wc = NextCompletion();
    EXPECT_EQ(wc.status,
              opcode == WrOpcode::kBindMw ? WcStatus::kMwBindErr : WcStatus::kLocQpOpErr);
    EXPECT_EQ(wc.vendor_err, VendorErr::kBadRKey);
    EXPECT_EQ(qp_->state(), QpState::kSqe);
  }
}

// --- states
// ---------------------------------------------------------------------------------------

TEST_F(UcRequesterScript, NothingIsSentBeforeRts) {
  qp_ = std::make_unique<UcQp>(Config(Service::kUc), host_);
  BringUp(QpState::kRtr);
  PostSend(Send(1, 8));
  EXPECT_FALSE(qp_->HasRequestWork());
  ExpectNoRequest();
  ASSERT_EQ(MoveTo(QpState::kRts), 0);
  EXPECT_TRUE(qp_->HasRequestWork());
  NextRequest();
}

TEST_F(UcRequesterScript, SqdFinishesTheMessageBegunAndThenSaysDrained) {
  Build({.reports_release = true});
  PostSend(Send(1, 2 * kMtu));
  PostSend(Send(2, 8));
  Pdu first = NextRequest();
  shm::QpAttr attr = {};
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ModifyTo(QpState::kSqd, shm::qp_mask::kEnSqdAsyncNotify, attr), 0);
  Pdu last = NextRequest();
  ExpectNoRequest();
  ExpectNoEvent();
  EXPECT_EQ(MoveTo(QpState::kRts), EINVAL) << "still draining";
  Release(first);
  Release(last);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectEvent(EventType::kSqDrained);
  shm::QpAttr now_attr = {};
  qp_->Query(now_attr);
  EXPECT_EQ(now_attr.sq_draining, 0);

  ASSERT_EQ(MoveTo(QpState::kRts), 0);
  EXPECT_EQ(NextRequest().payload.length, 8u);
}

TEST_F(UcRequesterScript, IdleSqdIsDrainedAtOnceAndSilentUnlessAsked) {
  ASSERT_EQ(MoveTo(QpState::kSqd), 0);
  ExpectNoEvent();
  shm::QpAttr attr = {};
  qp_->Query(attr);
  EXPECT_EQ(attr.sq_draining, 0);
}

TEST_F(UcRequesterScript, ErrFlushesTheMessageUnderWayAndAllPosted) {
  PostSend(Send(1, 3 * kMtu));
  PostSend(Send(2, 8));
  NextRequest();
  ASSERT_EQ(MoveTo(QpState::kErr), 0);
  ExpectCompletion(1, WcStatus::kWrFlushErr);
  ExpectCompletion(2, WcStatus::kWrFlushErr);
  PostSend(Send(3, 8));
  ExpectCompletion(3, WcStatus::kWrFlushErr);
  ExpectNoRequest();
  EXPECT_EQ(host_.sends_released, 3u);
}

TEST_F(UcRequesterScript, FailRaisesItsEventAndFlushes) {
  PostSend(Send(1, 8));
  qp_->Fail(now_, EventType::kDeviceFatal);
  ExpectCompletion(1, WcStatus::kWrFlushErr);
  ExpectEvent(EventType::kDeviceFatal);
}

TEST_F(UcRequesterScript, ResetForgetsAndStartsAgain) {
  Build({.reports_release = true});
  PostSend(Send(1, 8));
  Pdu old = NextRequest();
  ASSERT_EQ(MoveTo(QpState::kReset), 0);
  ExpectNoCompletion();
  Release(old);
  qp_->OnSourceFault(now_, old.opcode, old.psn);
  EXPECT_EQ(qp_->state(), QpState::kReset);
  BringUp(QpState::kRts);
  PostSend(Send(2, 8));
  EXPECT_EQ(NextRequest().psn, Psn(kSqPsn));
}

TEST_F(UcRequesterScript, NoTimerEverRuns) {
  PostSend(Send(1, 8));
  NextRequest();
  EXPECT_TRUE(qp_->PollTimeout().IsNever());
}

}  // namespace
}  // namespace verbena::transport

#include "transport/rc/rc_qp.h"

#include <algorithm>

#include "core/base/check.h"

namespace verbena::transport::rc {
namespace {

// A DMA token names the role; results come back in order, so it need not say more.
constexpr DmaToken kCompleterToken = 1u << 8;
constexpr DmaToken kEpochMask = 0xff;

}  // namespace

RcQp::RcQp(const QpConfig& config, QpHost* host)
    : host_(host),
      attributes_(config),
      requester_(host, &attributes_, &counters_, &window_),
      responder_(host, &attributes_, &counters_),
      completer_(host, &attributes_, &requester_, &window_) {}

// --- inputs --------------------------------------------------------------------------------------

void RcQp::OnDoorbell(Instant now) {
  window_.sq_may_hold_more = true;
  if (attributes_.state() == QpState::kRts) window_.may_send = true;
}

void RcQp::OnPdu(Instant now, const Pdu& pdu) {
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  if (info == nullptr || !attributes_.CanReceive()) return;
  was_direct_ = false;
  if (info->is_request) {
    bool expected = responder_.OnPdu(pdu, *info);
    if (expected && !comm_established_ && attributes_.state() == QpState::kRtr) {
      PushEvent(EventType::kCommEst);
    }
    comm_established_ = comm_established_ || expected;
  } else if (attributes_.state() != QpState::kRtr && completer_.CanAccept()) {
    completer_.OnPdu(now, pdu, *info);
  }
  Settle();
}

void RcQp::OnDmaDone(Instant now, const DmaResult& result) {
  if ((result.token & kEpochMask) != epoch_) return;
  if ((result.token & kCompleterToken) != 0) {
    completer_.OnDmaDone(now, result);
  } else {
    responder_.OnDmaDone(result);
  }
  Settle();
}

void RcQp::OnSourceFault(Instant now, Opcode opcode, Psn psn) {
  const OpcodeInfo* info = LookUpOpcode(opcode);
  if (info == nullptr) return;
  if (info->is_request) {
    requester_.OnSourceFault(now, psn);
  } else {
    responder_.OnSourceFault(psn);
  }
  Settle();
}

void RcQp::OnKeysSettled(Instant now, QpRole waiter) {
  if (waiter == QpRole::kRequester) {
    requester_.OnKeysSettled(now);
  } else {
    responder_.OnKeysSettled();
  }
  Settle();
}

void RcQp::OnTimeout(Instant now) {
  requester_.OnTimeout(now);
  Settle();
}

ModifyResult RcQp::Modify(Instant now, const shm::QpAttr& attr, uint32_t mask) {
  const QpState from = attributes_.state();
  const bool names_state = (mask & shm::qp_mask::kState) != 0;
  int error = attributes_.Modify(attr, mask, *host_);
  if (error != 0) return {error};
  const QpState to = attributes_.state();
  if (names_state && to == QpState::kReset) {
    Reset();
    return {0};
  }
  if (names_state && to == QpState::kErr) {
    attributes_.set_state(from);  // EnterError does what the transition takes
    EnterError();
    return {0};
  }
  if (to == QpState::kErr) return {0};
  if (from == QpState::kInit && to == QpState::kRtr) responder_.Start(attributes_.rq_psn());
  if (from == QpState::kRtr && to == QpState::kRts) {
    requester_.Start(attributes_.sq_psn());
  } else if (to == QpState::kRts || to == QpState::kSqd) {
    requester_.OnModify();
  }
  responder_.OnModify();
  Settle();
  return {0};
}

void RcQp::SetPduLimits(const PduLimits& limits) {
  const bool is_drained = state() == QpState::kSqd && !attributes_.sq_draining();
  VERBENA_CHECK(state() == QpState::kReset || state() == QpState::kInit || is_drained);
  attributes_.set_pdu_limits(limits);
  if (!is_drained) return;
  requester_.OnModify();
  responder_.OnModify();
}

void RcQp::Fail(Instant now, EventType event) {
  if (attributes_.state() == QpState::kErr) return;
  PushEvent(event);
  EnterError();
}

// --- outputs -------------------------------------------------------------------------------------

bool RcQp::PollRequest(Instant now, Pdu& out) {
  if (!window_.may_send) return false;
  const bool has_pdu = requester_.PollRequest(now, out);
  if (has_pdu) was_direct_ = false;
  if (!window_.may_send) Settle();  // a WQE may have failed, or been done, without a PDU
  return has_pdu;
}

bool RcQp::PollResponse(Instant now, Pdu& out) {
  bool any = responder_.PollResponse(out);
  Settle();
  return any;
}

bool RcQp::PollDma(DmaRequest& out) {
  if (responder_.PollDma(out)) {
    out.token = epoch_;
    return true;
  }
  if (completer_.PollDma(out)) {
    out.token = kCompleterToken | epoch_;
    return true;
  }
  return false;
}

bool RcQp::PollCompletion(Completion& out) {
  // Connected to itself, it has received a message before it has sent it. What failed comes before
  // the receives that are flushed for it.
  const bool has_failed = attributes_.state() == QpState::kErr;
  if ((!has_failed && responder_.PollCompletion(out)) || completer_.PollCompletion(out) ||
      (has_failed && responder_.PollCompletion(out))) {
    // A slot of the window may have come free.
    if (attributes_.state() == QpState::kRts) window_.WakeSender();
    return true;
  }
  if (last_wqe_due_ && responder_.IsFlushed()) {
    last_wqe_due_ = false;
    PushEvent(EventType::kQpLastWqeReached);
  }
  return false;
}

bool RcQp::PollEvent(EventType& out) {
  if (events_.IsEmpty()) return false;
  out = events_.Front();
  events_.PopFront();
  return true;
}

bool RcQp::CanAccept(const Pdu& pdu) const {
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  if (info == nullptr) return true;
  return info->is_request ? responder_.CanAccept(pdu) : completer_.CanAccept();
}

uint32_t RcQp::UnackedPsns() const {
  if (attributes_.state() == QpState::kErr) return 0;  // what was under way concerns it no more
  Psn next = window_.sent_psn;
  if (window_.cursor != window_.tail) {
    const SendRecord& rec = window_.At(window_.cursor);
    if (rec.state == WqeState::kSending) {
      next =
          rec.first_psn + PsnCount{static_cast<int32_t>(rec.sent_bytes / attributes_.mtu_bytes())};
    }
  }
  return static_cast<uint32_t>(std::max(Psn::Delta(window_.unacked_psn, next).value, 0));
}

void RcQp::Query(shm::QpAttr& out) const {
  attributes_.Query(out);
  // Of one that failed: the requests to go on with, on QPs set up anew.
  const bool has_failed = attributes_.state() == QpState::kErr;
  out.sq_psn = (has_failed ? window_.unacked_psn : window_.sent_psn).value();
  out.rq_psn = (has_failed ? responder_.done_psn() : responder_.expected_psn()).value();
}

SendProgress RcQp::Progress() const {
  SendProgress progress;
  progress.unacked_psn = window_.unacked_psn;
  progress.has_unfinished = window_.retired != window_.tail || host_->HasSend();
  progress.awaits_receive = requester_.awaits_receive();
  return progress;
}

// --- joints --------------------------------------------------------------------------------------

// Draws the consequences of an input for the QP as a whole.
void RcQp::Settle() {
  if (attributes_.state() == QpState::kErr) return;
  ResponderFailure failure;
  if (requester_.TakeCorruptQueue()) {
    PushEvent(EventType::kQpFatal);
    EnterError();
    return;
  }
  if (responder_.TakeFailure(&failure)) {
    if (failure.has_event) PushEvent(failure.event);
    EnterError();
    return;
  }
  while (window_.retired != window_.tail) {
    const WqeState state = window_.At(window_.retired).state;
    if (state == WqeState::kError) {
      EnterError();
      return;
    }
    if (state != WqeState::kDone) break;
    window_.Retire();
  }
  if (!attributes_.sq_draining()) return;
  const bool is_drained =
      window_.retired == window_.tail || window_.At(window_.retired).state == WqeState::kPosted;
  if (!is_drained || requester_.awaits_settled_keys()) return;
  attributes_.set_sq_draining(false);
  if (attributes_.wants_sq_drained_event()) PushEvent(EventType::kSqDrained);
}

void RcQp::EnterError() {
  if (attributes_.state() == QpState::kErr) return;
  attributes_.set_state(QpState::kErr);
  attributes_.set_sq_draining(false);
  requester_.Reset();
  window_.may_send = false;
  window_.sq_may_hold_more = true;  // WQEs not fetched yet are flushed too
  responder_.Halt();
  last_wqe_due_ = attributes_.config().has_srq;
}

void RcQp::Reset() {
  ++epoch_;
  window_.Clear();
  requester_.Reset();
  requester_.ForgetKeys();
  completer_.Reset();
  responder_.Reset();
  events_.Clear();
  comm_established_ = was_direct_ = last_wqe_due_ = false;
}

void RcQp::PushEvent(EventType event) {
  if (events_.IsFull()) return;  // nobody listens; the state tells the rest
  events_.PushBack() = event;
}

}  // namespace verbena::transport::rc

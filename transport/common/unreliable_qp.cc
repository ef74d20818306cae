#include "transport/common/unreliable_qp.h"

namespace verbena::transport {

void UnreliableQp::OnPdu(Instant now, const Pdu& pdu) {
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  if (info == nullptr || pdu.service != context_.config.service || !info->is_request ||
      (info->services & (1u << static_cast<int>(pdu.service))) == 0) {
    return;
  }
  if (!context_.attributes.CanReceive() || receive_queue_.IsFull()) return;
  // The first packet in RTR is what a passive side waits for.  Spec: IBTA 11.6.3.1.
  if (state() == QpState::kRtr && pdu.service != Service::kUd && !established_reported_) {
    established_reported_ = true;
    context_.events.Raise(EventType::kCommEst);
  }
  Respond(pdu);
}

void UnreliableQp::OnDmaDone(Instant now, const DmaResult& result) {
  ReceiveQueue::Broken broken = receive_queue_.OnDmaDone(result);
  if (broken.is_broken) OnMessageBroken(broken);
}

void UnreliableQp::OnSourceFault(Instant now, Opcode opcode, Psn psn) {
  if (send_queue_.OnSourceFault(psn)) return;
  // Its completion said success already; only an event can still say that data was lost. A fault
  // of a PDU sent before a reset says nothing about the QP as it is now.
  if (state() == QpState::kRts || state() == QpState::kSqd || state() == QpState::kSqe) {
    context_.EnterFatalError();
  }
}

void UnreliableQp::OnKeysSettled(Instant now, QpRole waiter) {
  send_queue_.OnKeysSettled();
  CheckDrained();
}

ModifyResult UnreliableQp::Modify(Instant now, const shm::QpAttr& attr, uint32_t mask) {
  QpState from = state();
  if (int error = context_.attributes.Modify(attr, mask, context_.host); error != 0) {
    return {error};
  }
  QpState to = state();
  if (to == QpState::kReset) {
    AbandonMessage();
    send_queue_.Reset();
    receive_queue_.Reset();
    context_.events.Clear();
    StartRequester(Psn{});
    StartResponder(Psn{});
    last_wqe_reported_ = established_reported_ = false;
  }
  if (from == QpState::kInit && to == QpState::kRtr) StartResponder(context_.attributes.rq_psn());
  if (from == QpState::kRtr && to == QpState::kRts) StartRequester(context_.attributes.sq_psn());
  // What was posted while sends were suspended rang its doorbell in vain.
  if (to == QpState::kRts || to == QpState::kErr) send_queue_.OnDoorbell();
  CheckDrained();
  return {};
}

void UnreliableQp::Fail(Instant now, EventType event) {
  context_.EnterError();
  context_.events.Raise(event);
  send_queue_.OnDoorbell();
}

bool UnreliableQp::HasRequestWork() const {
  if (send_queue_.IsLocalOperation() && !send_queue_.MayExecuteLocal()) return false;
  if (state() == QpState::kRts) return send_queue_.IsOpen() || send_queue_.HasWork();
  // What was begun before SQD is finished in it.  Spec: IBTA 10.3.1.5.
  return state() == QpState::kSqd && send_queue_.IsOpen();
}

bool UnreliableQp::PollRequest(Instant now, Pdu& out) {
  while (HasRequestWork()) {
    if (!send_queue_.IsOpen() && (!send_queue_.Fetch() || !CheckWqe())) return false;
    if (!send_queue_.IsLocalOperation()) {
      MakePdu(out);
      return true;
    }
    if (send_queue_.MayExecuteLocal()) send_queue_.ExecuteLocal();
  }
  return false;
}

bool UnreliableQp::PollDma(DmaRequest& out) { return PollPlacement(out); }

bool UnreliableQp::PollCompletion(Completion& out) {
  if (send_queue_.PollCompletion(SendsAreFlushed(), out)) return true;
  if (receive_queue_.PollCompletion(out)) return true;
  if (state() == QpState::kErr) {
    AbandonMessage();
    if (receive_queue_.PollFlush(out)) return true;
    CheckLastWqe();
  }
  CheckDrained();
  return false;
}

void UnreliableQp::Query(shm::QpAttr& out) const {
  context_.attributes.Query(out);
  out.sq_psn = NextSendPsn().value();
  out.rq_psn = ExpectedPsn().value();
}

void UnreliableQp::CheckDrained() {
  QpAttributes& attributes = context_.attributes;
  if (state() != QpState::kSqd || !attributes.sq_draining() || !send_queue_.IsIdle()) return;
  attributes.set_sq_draining(false);
  if (attributes.wants_sq_drained_event()) context_.events.Raise(EventType::kSqDrained);
}

// A QP of an SRQ may be destroyed without losing receives once it holds none.  Spec: IBTA 11.6.3.1.
void UnreliableQp::CheckLastWqe() {
  if (!context_.config.has_srq || last_wqe_reported_ || !receive_queue_.IsIdle()) return;
  last_wqe_reported_ = true;
  context_.events.Raise(EventType::kQpLastWqeReached);
}

}  // namespace verbena::transport

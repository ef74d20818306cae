#include "transport/common/send_queue.h"

namespace verbena::transport {
namespace {

// What a completion calls the operation of a work request; kSend for those that never succeed here.
shm::WcOpcode WcOpcodeOf(uint8_t wr_opcode) {
  switch (static_cast<shm::WrOpcode>(wr_opcode)) {
    case shm::WrOpcode::kRdmaWrite:
    case shm::WrOpcode::kRdmaWriteWithImm:
      return shm::WcOpcode::kRdmaWrite;
    case shm::WrOpcode::kRdmaRead:
      return shm::WcOpcode::kRdmaRead;
    case shm::WrOpcode::kAtomicCmpAndSwp:
      return shm::WcOpcode::kCompSwap;
    case shm::WrOpcode::kAtomicFetchAndAdd:
      return shm::WcOpcode::kFetchAdd;
    case shm::WrOpcode::kLocalInv:
      return shm::WcOpcode::kLocalInv;
    case shm::WrOpcode::kBindMw:
      return shm::WcOpcode::kBindMw;
    default:
      return shm::WcOpcode::kSend;
  }
}

}  // namespace

bool SendQueue::Fetch() {
  VERBENA_CHECK(!IsOpen());
  switch (context_.host.FetchSend(work_)) {
    case FetchResult::kEmpty:
      may_hold_work_ = false;
      return false;
    case FetchResult::kInvalid:
      is_broken_ = true;
      context_.EnterFatalError();
      return false;
    case FetchResult::kOk:
      break;
  }
  segment_count_ = 0;
  InFlight& entry = in_flight_.Push();
  entry.outcome.wr_id = work_.wqe.wr_id;
  entry.outcome.opcode = WcOpcodeOf(work_.wqe.opcode);
  entry.is_signaled = context_.config.sq_sig_all || (work_.wqe.flags & shm::kSendSignaled) != 0;
  return true;
}

// Than the open one.
bool SendQueue::AreOlderDone() const {
  for (uint32_t i = 0; i + 1 < in_flight_.size(); ++i) {
    if (in_flight_[i].unreleased_pdus > 0) return false;
  }
  return true;
}

void SendQueue::ExecuteLocal() {
  const shm::SendWqe& wqe = work_.wqe;
  const bool is_bind = static_cast<shm::WrOpcode>(wqe.opcode) == shm::WrOpcode::kBindMw;
  const KeyFault fault =
      is_bind ? context_.host.BindWindow({wqe.bind.mw, RKey(wqe.imm_or_rkey), wqe.rkey,
                                          wqe.remote_addr, wqe.bind.length, wqe.bind.access})
              : context_.host.Invalidate(RKey(wqe.imm_or_rkey));
  if (fault != KeyFault::kNone) {
    FailCurrent(is_bind ? WcStatus::kMwBindErr : WcStatus::kLocQpOpErr, fault);
  } else if (context_.host.SettleKeys(QpRole::kRequester)) {
    Finish();
  } else {
    awaits_settled_keys_ = true;
  }
}

void SendQueue::OnKeysSettled() {
  if (!awaits_settled_keys_) return;
  awaits_settled_keys_ = false;
  Finish();
}

uint64_t SendQueue::PayloadBytes() const {
  if ((work_.wqe.flags & shm::kSendInline) != 0) return work_.wqe.inline_bytes;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < work_.wqe.num_sge; ++i) bytes += work_.sge[i].length;
  return bytes;
}

KeyFault SendQueue::ResolvePayload() {
  if ((work_.wqe.flags & shm::kSendInline) != 0) return KeyFault::kNone;
  return context_.host.ResolveLocal(work_.sge, work_.wqe.num_sge, 0, segments_, &segment_count_);
}

Payload SendQueue::Slice(uint32_t offset, uint32_t length) const {
  Payload payload;
  payload.length = length;
  if (length == 0) return payload;
  if ((work_.wqe.flags & shm::kSendInline) != 0) {
    payload.bytes = work_.inline_data + offset;
  } else {
    payload.segments = segments_;
    payload.segment_count = segment_count_;
    payload.offset = offset;
  }
  return payload;
}

void SendQueue::OnPduMade(const Pdu& pdu) {
  InFlight& entry = in_flight_.back();
  if (!entry.has_pdus) entry.first_psn = pdu.psn;
  entry.has_pdus = true;
  entry.last_psn = pdu.psn + PsnCount{pdu.psn_count.value - 1};
  // Inline data was copied with the WQE, and nothing is read for an empty message.
  bool is_by_reference = pdu.payload.segments != nullptr;
  if (context_.config.reports_release && is_by_reference) ++entry.unreleased_pdus;
}

void SendQueue::FailCurrent(WcStatus status, shm::VendorErr why) {
  InFlight& entry = in_flight_.back();
  entry.is_open = false;
  entry.outcome.SetError(status, why);
  context_.EnterSendError();
}

uint32_t SendQueue::Find(Psn psn) const {
  for (uint32_t i = 0; i < in_flight_.size(); ++i) {
    const InFlight& entry = in_flight_[i];
    if (entry.has_pdus && !psn.Before(entry.first_psn) && !psn.After(entry.last_psn)) return i;
  }
  return in_flight_.size();
}

void SendQueue::OnPayloadReleased(Psn psn) {
  uint32_t i = Find(psn);
  // Not found: it was sent before a reset.
  if (i == in_flight_.size() || in_flight_[i].unreleased_pdus == 0) return;
  --in_flight_[i].unreleased_pdus;
}

bool SendQueue::OnSourceFault(Psn psn) {
  uint32_t i = Find(psn);
  if (i == in_flight_.size()) return false;
  InFlight& entry = in_flight_[i];
  if (entry.unreleased_pdus > 0) --entry.unreleased_pdus;
  entry.is_open = false;
  if (entry.outcome.status == WcStatus::kSuccess) {
    entry.outcome.SetError(WcStatus::kLocProtErr, shm::VendorErr::kMemoryFault);
  }
  // Those behind it may have arrived: a flush does not claim otherwise.  Spec: IBTA 10.8.3.2.
  for (uint32_t k = i + 1; k < in_flight_.size(); ++k) {
    in_flight_[k].is_open &= awaits_settled_keys_;
    if (in_flight_[k].outcome.status == WcStatus::kSuccess) in_flight_[k].outcome.SetFlushed();
  }
  context_.EnterSendError();
  return true;
}

bool SendQueue::PollCompletion(bool flush, Completion& out) {
  if (flush && IsOpen() && !awaits_settled_keys_) {
    in_flight_.back().is_open = false;
    in_flight_.back().outcome.SetFlushed();
  }
  while (!in_flight_.IsEmpty()) {
    InFlight& entry = in_flight_.front();
    if (entry.is_open || entry.unreleased_pdus > 0) return false;
    bool is_reported = entry.is_signaled || entry.outcome.status != WcStatus::kSuccess;
    if (is_reported) WriteCompletion(entry.outcome, context_.config.qpn, /*is_send=*/true, out);
    in_flight_.Pop();
    context_.host.ReleaseSend(1);
    if (is_reported) return true;
  }
  return flush && PollFlush(out);
}

bool SendQueue::PollFlush(Completion& out) {
  if (!HasWork() || !Fetch()) return false;
  InFlight& entry = in_flight_.front();
  entry.outcome.SetFlushed();
  WriteCompletion(entry.outcome, context_.config.qpn, /*is_send=*/true, out);
  in_flight_.Pop();
  context_.host.ReleaseSend(1);
  return true;
}

void SendQueue::Reset() {
  in_flight_.Clear();
  may_hold_work_ = awaits_settled_keys_ = false;
  is_broken_ = false;
}

}  // namespace verbena::transport

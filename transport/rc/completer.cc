#include "transport/rc/completer.h"

#include "core/base/check.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;
using shm::WcOpcode;
using shm::WrOpcode;

WcOpcode WcOpcodeOf(WrOpcode opcode) {
  switch (opcode) {
    case WrOpcode::kRdmaWrite:
    case WrOpcode::kRdmaWriteWithImm:
      return WcOpcode::kRdmaWrite;
    case WrOpcode::kRdmaRead:
      return WcOpcode::kRdmaRead;
    case WrOpcode::kAtomicCmpAndSwp:
      return WcOpcode::kCompSwap;
    case WrOpcode::kAtomicFetchAndAdd:
      return WcOpcode::kFetchAdd;
    case WrOpcode::kLocalInv:
      return WcOpcode::kLocalInv;
    case WrOpcode::kBindMw:
      return WcOpcode::kBindMw;
    case WrOpcode::kAtomicWrite:
      return WcOpcode::kAtomicWrite;
    case WrOpcode::kFlush:
      return WcOpcode::kFlush;
    default:
      return WcOpcode::kSend;
  }
}

RequesterEvent EventOf(NakCode code) {
  switch (code) {
    case NakCode::kPsnSequenceError:
      return RequesterEvent::kSequenceNak;
    case NakCode::kRemoteAccessError:
      return RequesterEvent::kNakRemoteAccess;
    case NakCode::kRemoteOperationalError:
      return RequesterEvent::kNakRemoteOperational;
    case NakCode::kInvalidRequest:
    case NakCode::kInvalidRdRequest:
      break;
  }
  return RequesterEvent::kNakInvalidRequest;
}

}  // namespace

void Completer::Reset() {
  placements_.Clear();
  dma_due_ = failure_told_ = false;
}

void Completer::OnPdu(Instant now, const Pdu& pdu, const OpcodeInfo& info) {
  // Ghosts: for what was acknowledged before, or never sent.  Spec: IBTA 9.7.5.1.1.
  const int32_t distance = Psn::Delta(w_->unacked_psn, pdu.psn).value;
  if (distance < -1 || !pdu.psn.Before(w_->sent_psn)) return;
  // The newest acknowledgement may come again for the sake of its credits.  Spec: IBTA 9.7.7.2.4.
  if (info.has_aeth && pdu.ack_type == AckType::kAck &&
      (pdu.credits != kCreditsNotInUse || requester_->has_credit_limit())) {
    requester_->OnCredits(pdu.msn, pdu.credits);
  }
  if (distance < 0) return;
  // A refusal is no response: it comes as an acknowledgement.
  if (pdu.opcode != Opcode::kAcknowledge && pdu.ack_type != AckType::kAck) return;
  if (info.is_read_response) {
    OnReadResponse(now, pdu, info);
  } else if (pdu.opcode == Opcode::kAtomicAcknowledge) {
    OnAtomicAck(now, pdu);
  } else {
    OnAck(now, pdu);
  }
  // What was acknowledged need not be sent again.
  if (static_cast<int32_t>(w_->acked - w_->cursor) > 0) w_->cursor = w_->acked;
}

void Completer::OnAck(Instant now, const Pdu& pdu) {
  if (pdu.ack_type == AckType::kAck) {
    AckThrough(now, pdu.psn);
    return;
  }
  // A NAK acknowledges all before it.  Spec: IBTA 9.7.5.2.1.
  if (!AckThrough(now, pdu.psn - PsnCount{1})) return;
  for (uint32_t i = w_->acked; i != w_->tail; ++i) {
    SendRecord& rec = w_->At(i);
    if (rec.state == WqeState::kDone || rec.is_taken) continue;
    if (!rec.IsInFlight()) return;
    if (rec.LastPsn().Before(pdu.psn)) continue;
    RequesterEvent event =
        pdu.ack_type == AckType::kRnrNak ? RequesterEvent::kRnrNak : EventOf(pdu.nak_code);
    requester_->Apply(now, {event, i, pdu.psn, pdu.rnr_timer_code, VendorErr::kNone});
    return;
  }
}

// Acknowledges all PSNs up to and including `psn`. False: a READ or atomic among them has no
// response yet, so the acknowledgement tells that its response was lost; a retry is under way.
bool Completer::AckThrough(Instant now, Psn psn) {
  bool progress = false;
  for (; w_->acked != w_->tail; ++w_->acked) {
    SendRecord& rec = w_->At(w_->acked);
    if (rec.state == WqeState::kDone || rec.is_taken) continue;
    if (!rec.IsInFlight()) break;
    if (psn.Before(rec.HasResponse() ? ExpectedPsn(rec) : rec.first_psn)) break;
    if (rec.HasResponse()) {
      if (progress) requester_->OnProgress(now);
      requester_->Apply(
          now, {RequesterEvent::kImpliedNak, w_->acked, ExpectedPsn(rec), 0, VendorErr::kNone});
      return false;
    }
    if (psn.Before(rec.LastPsn())) {  // a part of it
      // A NAK of the same packet as before tells of no progress: retries have to run out at last.
      // Spec: IBTA 9.9.2.4.1.
      if (psn.Before(w_->unacked_psn)) break;
      w_->unacked_psn = psn.Next();
      requester_->OnPartAcked(rec);
      progress = true;
      break;
    }
    w_->unacked_psn = rec.LastPsn().Next();
    requester_->Apply(now, {RequesterEvent::kAcked, w_->acked, psn, 0, VendorErr::kNone});
    progress = true;
  }
  if (progress) requester_->OnProgress(now);
  return true;
}

// First PSN of the response not taken yet.
Psn Completer::ExpectedPsn(const SendRecord& rec) const {
  return rec.first_psn +
         PsnCount{static_cast<int32_t>(rec.received_bytes / attributes_->mtu_bytes())};
}

// The WQE that the response at `psn` is for, if it is the very next piece of it. A response
// acknowledges all before it.
SendRecord* Completer::FindResponseRecord(Instant now, Psn psn) {
  if (!AckThrough(now, psn - PsnCount{1})) return nullptr;
  for (; w_->acked != w_->tail; ++w_->acked) {
    SendRecord& rec = w_->At(w_->acked);
    if (rec.state == WqeState::kDone || rec.is_taken) continue;
    return rec.IsInFlight() && rec.HasResponse() && ExpectedPsn(rec) == psn ? &rec : nullptr;
  }
  return nullptr;
}

void Completer::OnReadResponse(Instant now, const Pdu& pdu, const OpcodeInfo& info) {
  SendRecord* rec = FindResponseRecord(now, pdu.psn);
  if (rec == nullptr || rec->IsAtomic()) return;
  const uint32_t bytes = pdu.payload.length;
  if (rec->IsAtomicWrite() || rec->IsFlush()) {  // the answer says that it is done, and no more
    if (pdu.opcode == Opcode::kReadResponseOnly && bytes == 0) return Take(now, *rec, rec->length);
    requester_->Apply(now, {RequesterEvent::kBadResponse, w_->acked, pdu.psn, 0, VendorErr::kNone});
    return;
  }
  const uint32_t left = requester_->ReadRequestEnd(*rec, rec->received_bytes) - rec->received_bytes;
  // All pieces but the last are whole packets, and the last ends its request exactly.
  const bool fits = info.is_last
                        ? bytes == left
                        : bytes < left && bytes != 0 && bytes % attributes_->mtu_bytes() == 0;
  if (!fits) {
    requester_->Apply(now, {RequesterEvent::kBadResponse, w_->acked, pdu.psn, 0, VendorErr::kNone});
    return;
  }
  if (bytes == 0 || Place(now, *rec, pdu.payload)) Take(now, *rec, bytes);
}

void Completer::OnAtomicAck(Instant now, const Pdu& pdu) {
  SendRecord* rec = FindResponseRecord(now, pdu.psn);
  if (rec == nullptr || !rec->IsAtomic()) return;
  rec->atomic_original = pdu.atomic_original;
  Payload payload;
  payload.length = sizeof(rec->atomic_original);
  payload.bytes = reinterpret_cast<const std::byte*>(&rec->atomic_original);
  if (Place(now, *rec, payload)) Take(now, *rec, payload.length);
}

// Has the response's bytes written where the WQE's SGEs say. The keys are looked at again: the
// region may have gone since the request was sent.
bool Completer::Place(Instant now, SendRecord& rec, const Payload& payload) {
  VendorErr why = host_->ResolveLocal(rec.sges(), rec.num_sge, access::kLocalWrite, rec.segments(),
                                      &rec.segment_count);
  if (why != VendorErr::kNone) {
    requester_->Apply(now, {RequesterEvent::kResultFault, w_->acked, rec.first_psn, 0, why});
    return false;
  }
  placements_.PushBack() = {w_->acked, rec.received_bytes, payload.length};
  ++rec.dma_outstanding;
  dma_source_ = payload;
  dma_due_ = true;
  return true;
}

void Completer::Take(Instant now, SendRecord& rec, uint32_t bytes) {
  const uint32_t index = w_->acked;
  rec.received_bytes += bytes;
  // What comes after all, after a loss was presumed, need not be asked for again.
  if (rec.sent_bytes < rec.received_bytes) rec.sent_bytes = rec.received_bytes;
  if (rec.received_bytes == rec.length) {
    rec.is_taken = true;
    w_->unacked_psn = rec.LastPsn().Next();
    requester_->Apply(now, {RequesterEvent::kResponseTaken, index, {}, 0, VendorErr::kNone});
    if (rec.dma_outstanding == 0) {
      requester_->Apply(now, {RequesterEvent::kResponsePlaced, index, {}, 0, VendorErr::kNone});
    }
  } else {
    w_->unacked_psn = ExpectedPsn(rec);
  }
  requester_->OnProgress(now);
}

bool Completer::PollDma(DmaRequest& out) {
  if (!dma_due_) return false;
  dma_due_ = false;
  const Placement& placement = placements_[placements_.size() - 1];
  SendRecord& rec = w_->At(placement.index);
  out.kind = DmaRequest::Kind::kCopy;
  out.prefix_bytes = 0;
  out.source = dma_source_;
  out.destination = rec.segments();
  out.destination_count = rec.segment_count;
  out.destination_offset = placement.offset;
  return true;
}

void Completer::OnDmaDone(Instant now, const DmaResult& result) {
  VERBENA_CHECK(!placements_.IsEmpty());
  const Placement placement = placements_.Front();
  placements_.PopFront();
  SendRecord& rec = w_->At(placement.index);
  --rec.dma_outstanding;
  switch (result.status) {
    case DmaStatus::kSourceFault:
      Reopen(now, placement);
      return;
    case DmaStatus::kDestinationFault:
      requester_->Apply(
          now, {RequesterEvent::kResultFault, placement.index, {}, 0, VendorErr::kMemoryFault});
      return;
    case DmaStatus::kOk:
      break;
  }
  if (rec.is_taken && rec.dma_outstanding == 0) {
    requester_->Apply(now,
                      {RequesterEvent::kResponsePlaced, placement.index, {}, 0, VendorErr::kNone});
  }
}

// The peer's memory could not be read after all: this piece of the response never came.
void Completer::Reopen(Instant now, const Placement& placement) {
  SendRecord& rec = w_->At(placement.index);
  if (!rec.IsInFlight() || rec.received_bytes <= placement.offset) return;
  rec.received_bytes = placement.offset;
  if (static_cast<int32_t>(w_->acked - placement.index) > 0) w_->acked = placement.index;
  // Of several READs that lost theirs the first is waited for.
  const Psn lost = ExpectedPsn(rec);
  if (lost.Before(w_->unacked_psn)) w_->unacked_psn = lost;
  requester_->Apply(now, {RequesterEvent::kResponseLost, placement.index, {}, 0, VendorErr::kNone});
}

// --- completions ---------------------------------------------------------------------------------

bool Completer::PollCompletion(Completion& out) {
  while (w_->head != w_->retired) {
    const SendRecord& rec = w_->At(w_->head++);
    host_->ReleaseSend(1);
    if (!config().sq_sig_all && (rec.flags & shm::kSendSignaled) == 0) continue;
    Fill(Of(rec), WcStatus::kSuccess, VendorErr::kNone, out);
    return true;
  }
  if (attributes_->state() != QpState::kErr) return false;
  return FlushOne(out);
}

namespace {

// What a peer may know of a WQE that is flushed. Behind a READ whose response could not be placed
// others may be done, which their requester must not send again.
VendorErr HowFar(WqeState state) {
  if (state == WqeState::kPosted) return VendorErr::kFlushed;
  return state == WqeState::kDone ? VendorErr::kFlushedDone : VendorErr::kFlushedSent;
}

}  // namespace

bool Completer::FlushOne(Completion& out) {
  // A buffer is the program's again only when nothing is on its way into it.
  if (!placements_.IsEmpty() || requester_->awaits_settled_keys()) return false;
  if (w_->head != w_->tail) {
    const SendRecord& rec = w_->At(w_->head);
    ++w_->head;
    w_->Retire();
    host_->ReleaseSend(1);
    // One WQE fails; what follows it is flushed, even if it had a fault of its own.
    if (rec.state == WqeState::kError && !failure_told_) {
      Fill(Of(rec), rec.status, rec.vendor_err, out);
    } else {
      Fill(Of(rec), WcStatus::kWrFlushErr, HowFar(rec.state), out);
    }
    failure_told_ = true;
    return true;
  }
  if (!w_->sq_may_hold_more) return false;
  SendWork work;
  if (host_->FetchSend(work) != FetchResult::kOk) {
    w_->sq_may_hold_more = false;
    return false;
  }
  host_->ReleaseSend(1);
  const Completed flushed{work.wqe.wr_id, static_cast<WrOpcode>(work.wqe.opcode), 0};
  Fill(flushed, WcStatus::kWrFlushErr, VendorErr::kFlushed, out);
  return true;
}

void Completer::Fill(Qpn qpn, const Completed& what, WcStatus status, VendorErr why,
                     Completion& out) {
  shm::Cqe& cqe = out.cqe;
  cqe.wr_id = what.wr_id;
  cqe.byte_len = what.length;
  cqe.imm_or_rkey = 0;
  cqe.qpn = qpn.value;
  cqe.src_qpn = 0;
  cqe.vendor_err = static_cast<uint32_t>(why);
  cqe.wc_flags = 0;
  cqe.pkey_index = 0;
  cqe.status = static_cast<uint8_t>(status);
  cqe.opcode = static_cast<uint8_t>(WcOpcodeOf(what.opcode));
  cqe.sl = 0;
  cqe.is_send = 1;
  out.is_send = true;
  // Failures wake those who wait for solicited completions too.  Spec: IBTA 11.4.2.2.
  out.solicited = status != WcStatus::kSuccess;
}

}  // namespace verbena::transport::rc

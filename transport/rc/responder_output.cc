// The responder's outputs: answers in PSN order, completions, placements.
#include <utility>

#include "transport/rc/responder.h"

namespace verbena::transport::rc {

using shm::VendorErr;

// --- answers -------------------------------------------------------------------------------------

// Finishes what is done, oldest first, up to what must wait for PollResponse or a placement.
void Responder::Drain() {
  // Nothing outlives a fault that fails the QP.
  while (!ops_.IsEmpty() && !has_failure_) {
    Op& op = ops_.Front();
    if (op.dma_outstanding || WantsResponse(op)) return;
    if (op.invalidates && op.kind == OpKind::kPlacement && !TakeKeyAway(op)) return;
    if (op.kind == OpKind::kFault) {
      ApplyFault(op);
    } else {
      Finish(op);
    }
    ops_.PopFront();
  }
}

// True: the SEND has its key's end behind it, or became a fault. False: not yet.
bool Responder::TakeKeyAway(Op& op) {
  if (awaits_settled_keys_) return false;
  VendorErr why = host_->Invalidate(RKey(op.imm_or_rkey));
  if (why != VendorErr::kNone) {
    op.kind = OpKind::kFault;
    op.fault = ResponderFault::kInvalidateRefused;
    op.vendor_err = why;
    is_halted_ = true;
  } else if (!host_->SettleKeys(QpRole::kResponder)) {
    awaits_settled_keys_ = true;
    return false;
  }
  op.invalidates = false;
  --invalidations_waiting_;
  return true;
}

void Responder::OnKeysSettled() {
  if (!awaits_settled_keys_) return;
  awaits_settled_keys_ = false;
  if (ops_.IsEmpty()) return;  // failed meanwhile
  ops_.Front().invalidates = false;
  --invalidations_waiting_;
  Drain();
}

void Responder::Finish(Op& op) {
  if (op.kind == OpKind::kAckAgain) {
    ack_due_ = true;
    return;
  }
  done_psn_ = op.psn + op.psn_count;
  nak_due_ = false;  // a gap before this is filled
  if (op.ends_message) msn_ = Msn((msn_.value + 1) & Psn::kMask);
  if (op.ends_message && !op.is_send) host_->OnPeerAccess(/*is_write=*/true, op.written_memory);
  if (op.tells_write) PushWriteCompletion(op);
  if (op.takes_receive) {
    const bool is_cut = op.vendor_err == VendorErr::kTruncated;
    PushReceiveCompletion(op, is_cut ? WcStatus::kLocLenErr : WcStatus::kSuccess, op.vendor_err);
    --receives_used_;
  }
  ack_due_ = ack_due_ || op.wants_ack;
}

void Responder::ApplyFault(const Op& op) {
  const ResponderFaultRow& row = LookUpResponderFault(op.fault);
  nak_due_ = true;
  nak_type_ = row.reply == Reply::kRnrNak ? AckType::kRnrNak : AckType::kNak;
  nak_code_ = row.nak_code;
  nak_psn_ = op.psn;
  if (!row.fails_qp) return;
  bool told = op.takes_receive && row.cqe_status != WcStatus::kSuccess && !receives_.IsEmpty();
  if (told) PushReceiveCompletion(op, row.cqe_status, op.vendor_err);
  has_failure_ = true;
  failure_ = {row.has_event && !told, row.event};
}

// Whose it is, its host says.
void Responder::PushWriteCompletion(const Op& op) {
  ReceiveCompletion& out = completions_.PushBack();
  out = {};
  out.bytes = op.bytes;
  out.imm_or_rkey = op.imm_or_rkey;
  out.wc_flags = op.wc_flags;
  out.wc_opcode = op.wc_opcode;
  out.solicited = op.solicited;
}

void Responder::PushReceiveCompletion(const Op& op, WcStatus status, VendorErr why) {
  ReceiveCompletion& out = completions_.PushBack();
  out.wr_id = receives_.Front().wr_id;
  out.ticket = receives_.Front().ticket;
  out.offset_bytes = receives_.Front().offset_bytes;
  out.bytes = op.bytes;
  out.imm_or_rkey = op.imm_or_rkey;
  out.wc_flags = op.wc_flags;
  out.wc_opcode = op.wc_opcode;
  out.status = status;
  out.vendor_err = why;
  out.solicited = op.solicited || status != WcStatus::kSuccess;
  receives_.PopFront();
  host_->ReleaseRecv(1);
}

void Responder::BuildHeader(Opcode opcode, Psn psn, Pdu& out) const {
  out = Pdu{};
  out.service = Service::kRc;
  out.opcode = opcode;
  out.pkey = attributes_->pkey();
  out.src_qpn = config().qpn;
  out.dest_qpn = attributes_->remote_qpn();
  out.path = &attributes_->path();
  out.psn = psn;
  out.msn = msn_;
}

bool Responder::PollResponse(Pdu& out) {
  if (nak_due_) {
    BuildNak(out);
    return true;
  }
  // All else that is at the front and done was finished by Drain.
  if (!ops_.IsEmpty() && !ops_.Front().dma_outstanding && !awaits_settled_keys_) {
    Op& op = ops_.Front();
    // The answer to a new request acknowledges all before it; the answer to an old one doesn't.
    if (!op.is_duplicate) ack_due_ = false;
    if (!ack_due_) {
      if (op.kind == OpKind::kRead) {
        BuildReadResponse(op, out);
        return true;
      }
      if (op.kind == OpKind::kAtomicWrite || op.kind == OpKind::kFlush) {
        BuildEmptyResponse(op, out);
        return true;
      }
      if (op.kind == OpKind::kAtomic) {
        msn_ = Msn((msn_.value + 1) & Psn::kMask);
        done_psn_ = op.psn.Next();
        nak_due_ = false;
        SaveAtomic(op.psn, op.original);
      }
      BuildHeader(Opcode::kAtomicAcknowledge, op.psn, out);
      out.atomic_original = op.original;
      ops_.PopFront();
      Drain();
      return true;
    }
  }
  if (!ack_due_) return false;
  ack_due_ = false;
  BuildHeader(Opcode::kAcknowledge, done_psn_ - PsnCount{1}, out);
  return true;
}

void Responder::BuildNak(Pdu& out) {
  nak_due_ = ack_due_ = false;
  BuildHeader(Opcode::kAcknowledge, nak_psn_, out);
  out.ack_type = nak_type_;
  out.nak_code = nak_code_;
  out.rnr_timer_code = attributes_->min_rnr_timer_code();
}

void Responder::BuildReadResponse(Op& op, Pdu& out) {
  const uint32_t offset = read_sent_bytes_;
  const uint32_t left = op.bytes - offset;
  const bool is_first = offset == 0;
  const bool is_last = left <= pdu_bytes_max_;
  const uint32_t bytes = is_last ? left : pdu_bytes_max_;
  //= IBTA C9-148: the READ counts as completed with its first response.
  if (is_first && !op.is_duplicate) msn_ = Msn((msn_.value + 1) & Psn::kMask);
  Opcode opcode = is_last ? (is_first ? Opcode::kReadResponseOnly : Opcode::kReadResponseLast)
                          : (is_first ? Opcode::kReadResponseFirst : Opcode::kReadResponseMiddle);
  BuildHeader(opcode, op.psn + PsnCount{static_cast<int32_t>(offset >> mtu_shift_)}, out);
  out.psn_count = PsnsOf(bytes);
  out.payload.length = bytes;
  if (bytes != 0) {
    out.payload.segments = &op.segment;  // stays in its slot until the next request
    out.payload.segment_count = 1;
    out.payload.offset = offset;
  }
  read_sent_bytes_ += bytes;
  if (!is_last) return;
  read_sent_bytes_ = 0;
  --reads_waiting_;
  if (!op.is_duplicate)
    host_->OnPeerAccess(/*is_write=*/false, op.bytes != 0 ? op.segment.memory : 0);
  if (!op.is_duplicate) done_psn_ = op.psn + op.psn_count;
  ops_.PopFront();
  Drain();
}

// Keeps as many results as the peer may have atomics outstanding, at least: after a lower limit was
// set it may still repeat what it sent before.
void Responder::SaveAtomic(Psn psn, uint64_t original) {
  if (attributes_->max_dest_rd_atomic() > atomics_size_) {
    GrowAtomics(attributes_->max_dest_rd_atomic());
  }
  if (atomics_size_ == 0) return;
  atomics_[atomics_next_] = {psn, original};
  atomics_next_ = atomics_next_ + 1 == atomics_size_ ? 0 : atomics_next_ + 1;
  if (atomics_valid_ < atomics_size_) ++atomics_valid_;
}

void Responder::GrowAtomics(uint32_t size) {
  std::unique_ptr<AtomicResource[]> grown(new AtomicResource[size]);
  for (uint32_t i = 0; i < atomics_valid_; ++i) {  // the oldest first
    grown[i] = atomics_[(atomics_next_ + atomics_size_ - atomics_valid_ + i) % atomics_size_];
  }
  atomics_ = std::move(grown);
  atomics_size_ = size;
  atomics_next_ = atomics_valid_;
}

bool Responder::PollDma(DmaRequest& out) {
  if (!dma_due_) return false;
  dma_due_ = false;
  out.kind = dma_kind_;
  out.prefix_bytes = 0;
  if (dma_kind_ != DmaRequest::Kind::kCopy) {
    const Op& op = ops_[ops_.size() - 1];
    out.source = Payload{};
    out.destination = &op.segment;
    out.destination_count = 1;
    out.destination_offset = 0;
    out.compare = op.compare;
    out.swap_or_add = op.swap_or_add;
    return true;
  }
  out.source = dma_source_;
  out.destination = dma_destination_;
  out.destination_count = dma_destination_count_;
  out.destination_offset = dma_destination_offset_;
  return true;
}

// --- completions ---------------------------------------------------------------------------------

bool Responder::PollCompletion(Completion& out) {
  if (!completions_.IsEmpty()) {
    Fill(completions_.Front(), out);
    completions_.PopFront();
    return true;
  }
  return attributes_->state() == QpState::kErr && FlushOne(out);
}

bool Responder::FlushOne(Completion& out) {
  // A buffer may still be written, or a region whose key is gone.
  if (dma_outstanding_ != 0 || awaits_settled_keys_) return false;
  // They wait for another QP's message, as if they had never been taken.
  ReturnReceives(0);
  if (receives_.IsEmpty()) {
    // A shared queue's WQEs belong to its other QPs too.  Spec: IBTA 10.2.9.
    if (config().has_srq) return false;
    if (host_->FetchRecv(receives_.PushBack()) != FetchResult::kOk) {
      receives_.PopBack();
      return false;
    }
  }
  ReceiveCompletion flushed;
  flushed.wr_id = receives_.Front().wr_id;
  flushed.status = WcStatus::kWrFlushErr;
  flushed.vendor_err = VendorErr::kFlushed;
  flushed.solicited = true;
  receives_.PopFront();
  host_->ReleaseRecv(1);
  Fill(flushed, out);
  return true;
}

void Responder::Fill(const ReceiveCompletion& in, Completion& out) const {
  shm::Cqe& cqe = out.cqe;
  cqe.wr_id = in.wr_id;
  cqe.byte_len = in.bytes;
  cqe.imm_or_rkey = in.imm_or_rkey;
  cqe.qpn = config().qpn.value;
  cqe.src_qpn = attributes_->remote_qpn().value;
  cqe.vendor_err = static_cast<uint32_t>(in.vendor_err);
  cqe.wc_flags = in.wc_flags;
  cqe.pkey_index = 0;
  cqe.status = static_cast<uint8_t>(in.status);
  cqe.opcode = static_cast<uint8_t>(in.wc_opcode);
  cqe.sl = 0;
  cqe.is_send = 0;
  cqe.recv_offset_bytes = in.offset_bytes;
  out.recv_ticket = in.ticket;
  out.is_send = false;
  out.solicited = in.solicited;
}

}  // namespace verbena::transport::rc

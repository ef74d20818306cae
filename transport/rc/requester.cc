#include "transport/rc/requester.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/check.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;
using shm::WrOpcode;

// PSNs in flight stay within half the number space.  Spec: IBTA 9.7.2 (duplicate region).
constexpr int32_t kPsnsInFlightMax = (1 << 23) - 1;
static_assert(kMessageBytesMax / 256 <= kPsnsInFlightMax);  // or it would never start
// A long message asks for an acknowledgement now and then, so that a loss late in it doesn't send
// all of it again, and a quarter of the window opens before the rest of it is used up.
constexpr int32_t kAckRequestEveryPsns = 64;
constexpr int32_t kAckRequestsPerWindow = 4;
// What READ requests ask for at once; more of them fill a larger window. A QP with nothing under
// way may always send, and all responses come to one socket.
constexpr int32_t kReadBytesMax = 512 * 1024;

bool IsSend(WrOpcode opcode) {
  return opcode == WrOpcode::kSend || opcode == WrOpcode::kSendWithImm ||
         opcode == WrOpcode::kSendWithInv;
}
bool IsWrite(WrOpcode opcode) {
  return opcode == WrOpcode::kRdmaWrite || opcode == WrOpcode::kRdmaWriteWithImm;
}

// Opcode of one part of a SEND or WRITE.
Opcode PartOpcode(WrOpcode opcode, bool is_first, bool is_last) {
  if (IsWrite(opcode)) {
    bool imm = opcode == WrOpcode::kRdmaWriteWithImm;
    if (is_last) {
      if (is_first) return imm ? Opcode::kWriteOnlyWithImm : Opcode::kWriteOnly;
      return imm ? Opcode::kWriteLastWithImm : Opcode::kWriteLast;
    }
    return is_first ? Opcode::kWriteFirst : Opcode::kWriteMiddle;
  }
  if (!is_last) return is_first ? Opcode::kSendFirst : Opcode::kSendMiddle;
  switch (opcode) {
    case WrOpcode::kSendWithImm:
      return is_first ? Opcode::kSendOnlyWithImm : Opcode::kSendLastWithImm;
    case WrOpcode::kSendWithInv:
      return is_first ? Opcode::kSendOnlyWithInvalidate : Opcode::kSendLastWithInvalidate;
    default:
      return is_first ? Opcode::kSendOnly : Opcode::kSendLast;
  }
}

}  // namespace

void Requester::Start(Psn sq_psn) {
  w_->next_psn = w_->unacked_psn = w_->sent_psn = sq_psn;
  next_ssn_ = Msn(1);
  // WQEs may have been posted in any state before.
  w_->sq_may_hold_more = true;
  OnModify();
}

void Requester::Reset() {
  ack_deadline_ = rnr_deadline_ = Instant::Never();
  implied_nak_served_ = corrupt_queue_ = has_credit_limit_ = repeat_due_ = false;
  is_looking_ = false;
  look_after_ = {0};
  cautious_pdus_ = 0;
  credit_msn_ = Msn{};
}

void Requester::OnModify() {
  mtu_bytes_ = attributes_->mtu_bytes();
  mtu_shift_ = static_cast<uint32_t>(std::countr_zero(mtu_bytes_));
  pdu_bytes_max_ = attributes_->pdu_bytes_max();
  ApplyWindow();
  retries_left_ = retry_count_max_ = attributes_->retry_count_max();
  rnr_retries_left_ = rnr_retry_count_max_ = attributes_->rnr_retry_count_max();
  ack_timeout_ = attributes_->has_ack_timeout() ? attributes_->ack_timeout() : Duration{0};
  w_->may_send = true;
}

// Nothing asked for at once is larger than the window, or it could never be sent.
void Requester::ApplyWindow() {
  window_psns_ = static_cast<int32_t>(
      std::min<uint32_t>(attributes_->pdu_limits().max_unacked_psns, kPsnsInFlightMax));
  is_limited_ = window_psns_ != 0 || has_credit_limit_;
  ack_request_every_psns_ = kAckRequestEveryPsns;
  read_request_bytes_max_ = UINT32_MAX;
  if (window_psns_ == 0) return;
  const uint64_t window_bytes = uint64_t{static_cast<uint32_t>(window_psns_)} << mtu_shift_;
  pdu_bytes_max_ = static_cast<uint32_t>(std::min<uint64_t>(pdu_bytes_max_, window_bytes));
  ack_request_every_psns_ =
      std::clamp(window_psns_ / kAckRequestsPerWindow, 1, kAckRequestEveryPsns);
  // Two halves keep responses coming while the next request travels, if the peer may have two.
  const int32_t most_psns = std::min(window_psns_, kReadBytesMax >> mtu_shift_);
  const int32_t read_psns =
      attributes_->max_rd_atomic() > 1 ? std::max(most_psns / 2, 1) : most_psns;
  const uint64_t read_bytes = uint64_t{static_cast<uint32_t>(read_psns)} << mtu_shift_;
  if (read_bytes < UINT32_MAX) read_request_bytes_max_ = static_cast<uint32_t>(read_bytes);
}

// --- sending -------------------------------------------------------------------------------------

bool Requester::PollRequest(Instant now, Pdu& out) {
  const QpState state = attributes_->state();
  const bool may_work = state == QpState::kRts || state == QpState::kSqd;
  while (may_work && rnr_deadline_.IsNever() && EnsureRecord()) {
    SendRecord& rec = w_->At(w_->cursor);
    if (rec.state == WqeState::kPosted) {
      // SQD finishes messages begun and starts none.  Spec: IBTA 10.3.1.5.
      if (state == QpState::kSqd || !MayStart(rec)) break;
      StartRecord(now, rec);
    }
    if (rec.state == WqeState::kError) break;  // completes after the older ones; nothing follows it
    // Done meanwhile, its response is on its way, or its keys are settling.
    if (rec.state != WqeState::kSending) {
      ++w_->cursor;
      continue;
    }
    if (is_limited_ && !FitsLimits(rec)) break;
    VendorErr why = VendorErr::kNone;
    if (!rec.is_resolved && !Resolve(rec, &why)) {
      rec.status = WcStatus::kLocProtErr;
      Apply(now, {RequesterEvent::kLocalFault, w_->cursor, {}, 0, why});
      break;
    }
    const uint32_t index = w_->cursor;
    const uint32_t offset = rec.sent_bytes;
    BuildPdu(rec, out);
    if (repeat_due_) RewindOne(rec, index, offset);
    Psn end = out.psn + out.psn_count;
    if (w_->sent_psn.Before(end)) w_->sent_psn = end;
    if (ack_deadline_.IsNever()) ArmAckTimer(now);
    if (w_->cursor == w_->tail && !host_->HasSend()) w_->may_send = w_->sq_may_hold_more = false;
    return true;
  }
  w_->may_send = false;
  return false;
}

// The PDU just made is made once more.
void Requester::RewindOne(SendRecord& rec, uint32_t index, uint32_t sent_bytes) {
  repeat_due_ = false;
  rec.sent_bytes = sent_bytes;
  rec.state = WqeState::kSending;
  w_->cursor = index;
}

// True if there is a record at the cursor.
bool Requester::EnsureRecord() {
  if (w_->cursor != w_->tail) return true;
  SendWork work;
  if (!FetchWork(work)) return false;
  LoadRecord(work, w_->Push());
  return true;
}

// Takes the next WQE out of the queue, if the window has room for it.
bool Requester::FetchWork(SendWork& work) {
  if (attributes_->state() != QpState::kRts || !w_->sq_may_hold_more || w_->IsFull()) return false;
  switch (host_->FetchSend(work)) {
    case FetchResult::kOk:
      return true;
    case FetchResult::kInvalid:
      corrupt_queue_ = true;
      [[fallthrough]];
    case FetchResult::kEmpty:
      w_->sq_may_hold_more = false;
      return false;
  }
  return false;
}

void Requester::LoadRecord(const SendWork& work, SendRecord& rec) {
  const shm::SendWqe& wqe = work.wqe;
  rec.wr_id = wqe.wr_id;
  rec.remote_addr = wqe.remote_addr;
  rec.rkey = RKey(wqe.rkey);
  rec.imm_or_rkey = wqe.imm_or_rkey;
  rec.opcode = static_cast<WrOpcode>(wqe.opcode);
  rec.flags = wqe.flags;
  rec.sent_bytes = rec.received_bytes = 0;
  rec.dma_outstanding = rec.segment_count = 0;
  rec.is_resolved = rec.is_taken = rec.is_probe = false;
  rec.state = WqeState::kPosted;
  rec.status = WcStatus::kSuccess;
  rec.vendor_err = VendorErr::kNone;
  if (rec.opcode == WrOpcode::kBindMw) {
    rec.compare = wqe.bind.length;
    rec.swap_or_add = uint64_t{wqe.bind.access} << 32 | wqe.bind.mw;
  } else if (rec.IsFlush()) {
    rec.compare = wqe.flush.length;
    rec.swap_or_add = uint64_t{wqe.flush.level} << 32 | wqe.flush.type;
  } else if (rec.opcode == WrOpcode::kAtomicCmpAndSwp) {
    rec.compare = wqe.atomic.compare_add;
    rec.swap_or_add = wqe.atomic.swap;
  } else {
    rec.compare = 0;
    rec.swap_or_add = wqe.atomic.compare_add;
  }
  if (rec.IsAtomicWrite() || rec.IsFlush()) {  // neither SGEs nor inline data, whatever it says
    rec.flags &= static_cast<uint8_t>(~shm::kSendInline);
    rec.num_sge = 0;
    rec.length = rec.IsFlush() ? 0 : sizeof(rec.swap_or_add);
    return;
  }
  rec.length = MessageBytes(work);
  if (rec.IsInline()) {
    rec.num_sge = 0;
    std::memcpy(rec.ReserveBody(wqe.inline_bytes), work.inline_data, wqe.inline_bytes);
    return;
  }
  rec.num_sge = wqe.num_sge;
  std::byte* body = rec.ReserveBody(wqe.num_sge * (sizeof(shm::Sge) + sizeof(DmaSegment)));
  std::memcpy(body, work.sge, wqe.num_sge * sizeof(shm::Sge));
}

// Whether ordering and limits let a WQE begin now.
bool Requester::MayStart(const SendRecord& rec) {
  // Nothing overtakes a change of keys, and with an invalidation all that came before is complete,
  // which verbs can't ask for and nobody would do without.  Spec: IBTA 10.8.3.3 (ordering).
  if (awaits_settled_keys_) return false;
  if (rec.opcode == WrOpcode::kLocalInv && !AreOlderDone()) return false;
  if (w_->rd_atomic_outstanding != 0) {
    // Spec: IBTA 10.8.3.3: a fence waits for all earlier READs and atomics.
    if ((rec.flags & shm::kSendFence) != 0) return false;
    if (rec.HasResponse() && RdAtomicSlotsUsed() >= attributes_->max_rd_atomic()) {
      // With a limit of 0 nothing is outstanding, and the WQE fails its check instead.
      return false;
    }
  }
  int32_t in_flight = Psn::Delta(w_->unacked_psn, w_->next_psn).value;
  const uint32_t length = std::min(rec.length, config().max_message_bytes);
  return in_flight + PsnsOf(length).value <= kPsnsInFlightMax;
}

// READ requests sent whose responses have not all come.
uint32_t Requester::ReadRequestsOutstanding(const SendRecord& rec) const {
  if (rec.sent_bytes <= rec.received_bytes) return 0;
  return (rec.sent_bytes - 1) / read_request_bytes_max_ -
         rec.received_bytes / read_request_bytes_max_ + 1;
}

// Of the peer's responder resources. A WQE keeps one from its start to its end, so that it can
// always go on; a READ in several requests takes one for each of them.
uint32_t Requester::RdAtomicSlotsUsed() {
  uint32_t slots = w_->rd_atomic_outstanding;
  if (w_->split_reads == 0) return slots;
  for (uint32_t i = w_->acked; i != w_->tail; ++i) {
    const SendRecord& rec = w_->At(i);
    if (!rec.IsInFlight() || !rec.IsRead()) continue;
    const uint32_t requests = ReadRequestsOutstanding(rec);
    if (requests > 1) slots += requests - 1;
  }
  return slots;
}

uint32_t Requester::ReadRequestEnd(const SendRecord& rec, uint32_t offset) const {
  if (rec.length <= read_request_bytes_max_) return rec.length;
  // Requests end where they would have without a loss: a peer that keeps what it was asked for
  // answers a part of that again, and nothing beyond it.  Spec: IBTA 9.7.5.1.1 (READ retried)
  const uint64_t end = (uint64_t{offset} / read_request_bytes_max_ + 1) * read_request_bytes_max_;
  return static_cast<uint32_t>(std::min<uint64_t>(end, rec.length));
}

bool Requester::IsBeyondCredits(const SendRecord& rec) const {
  return has_credit_limit_ && rec.TakesReceive() && MsnDelta(credit_limit_, rec.ssn) > 0;
}

// On a network, where the last was lost or the peer has promised nothing, packets go one by one.
uint32_t Requester::PduBytesMax(const SendRecord& rec) const {
  const bool is_cautious = cautious_pdus_ != 0 || repeat_due_ || rec.is_probe;
  return window_psns_ != 0 && is_cautious ? mtu_bytes_ : pdu_bytes_max_;
}

// Whether the window and the peer's credits let the next PDU of a WQE out now. If not, something is
// outstanding whose acknowledgement or response will ask again.
bool Requester::FitsLimits(SendRecord& rec) {
  const Psn psn = rec.first_psn + PsnCount{static_cast<int32_t>(rec.sent_bytes >> mtu_shift_)};
  const int32_t outstanding = Psn::Delta(w_->unacked_psn, psn).value;
  if (rec.sent_bytes == 0) rec.is_probe = IsBeyondCredits(rec);
  if (rec.IsRead() && ReadRequestsOutstanding(rec) != 0 &&
      RdAtomicSlotsUsed() >= attributes_->max_rd_atomic()) {
    return false;
  }
  if (window_psns_ != 0) {
    const uint32_t bytes = rec.IsRead() ? ReadRequestEnd(rec, rec.sent_bytes) - rec.sent_bytes
                                        : std::min(rec.length - rec.sent_bytes, PduBytesMax(rec));
    if (outstanding + PsnsOf(bytes).value > window_psns_) return false;
  }
  // Without a credit one PDU may go: its answer tells of new ones.  Spec: IBTA 9.7.7.2.5.
  if (rec.sent_bytes == 0) return !rec.is_probe || outstanding <= 0;
  return !rec.is_probe || rec.first_psn.Before(w_->unacked_psn);
}

// What is wrong with a WQE before anything of it is sent; sets rec.status.
RequesterInput Requester::CheckRecord(SendRecord& rec) const {
  auto refuse = [this, &rec](WcStatus status, VendorErr why) {
    rec.status = status;
    return RequesterInput{RequesterEvent::kLocalFault, w_->cursor, {}, 0, why};
  };
  if (!IsSend(rec.opcode) && !IsWrite(rec.opcode) && !rec.HasResponse()) {
    return refuse(WcStatus::kLocQpOpErr, VendorErr::kBadOpcode);
  }
  if (rec.length > config().max_message_bytes || (rec.IsAtomic() && rec.length != 8)) {
    return refuse(WcStatus::kLocLenErr, VendorErr::kMessageTooLong);
  }
  if (rec.IsFlush()) {
    if (!flush::IsPlacementType(rec.flush_type()) || rec.flush_level() > flush::kMr) {
      return refuse(WcStatus::kLocQpOpErr, VendorErr::kBadWqe);
    }
    if (rec.flush_level() == flush::kRange && rec.compare > config().max_message_bytes) {
      return refuse(WcStatus::kLocLenErr, VendorErr::kMessageTooLong);
    }
  }
  if (rec.HasResponse()) {
    if (rec.IsInline()) return refuse(WcStatus::kLocQpOpErr, VendorErr::kBadWqe);
    if (attributes_->max_rd_atomic() == 0) {
      return refuse(WcStatus::kLocQpOpErr, VendorErr::kTooManyRdAtomic);
    }
  }
  return RequesterInput{RequesterEvent::kStart, w_->cursor, {}, 0, VendorErr::kNone};
}

bool Requester::AreOlderDone() const {
  for (uint32_t i = w_->retired; i != w_->cursor; ++i) {
    if (w_->At(i).state != WqeState::kDone) return false;
  }
  return true;
}

// LOCAL_INV, BIND_MW: done here, and complete when nothing moves any more by a key that is gone.
void Requester::StartLocalOperation(Instant now, SendRecord& rec) {
  VendorErr why;
  if (rec.opcode == WrOpcode::kLocalInv) {
    rec.status = WcStatus::kLocQpOpErr;
    why = host_->Invalidate(RKey(rec.imm_or_rkey));
  } else {
    rec.status = WcStatus::kMwBindErr;
    why = host_->BindWindow(rec.Bind());
  }
  if (why != VendorErr::kNone) {
    Apply(now, {RequesterEvent::kLocalFault, w_->cursor, {}, 0, why});
    return;
  }
  rec.status = WcStatus::kSuccess;
  local_operation_ = w_->cursor;
  awaits_settled_keys_ = true;
  if (host_->SettleKeys(QpRole::kRequester)) OnKeysSettled(now);
}

void Requester::OnKeysSettled(Instant now) {
  if (!awaits_settled_keys_) return;
  awaits_settled_keys_ = false;
  Apply(now, {RequesterEvent::kLocalDone, local_operation_, {}, 0, VendorErr::kNone});
}

void Requester::StartRecord(Instant now, SendRecord& rec) {
  if (IsLocalOperation(rec.opcode)) return StartLocalOperation(now, rec);
  RequesterInput input = CheckRecord(rec);
  VendorErr why = VendorErr::kNone;
  if (input.event == RequesterEvent::kStart && !Resolve(rec, &why)) {
    rec.status = WcStatus::kLocProtErr;
    input = {RequesterEvent::kLocalFault, w_->cursor, {}, 0, why};
  }
  Apply(now, input);
}

bool Requester::Resolve(SendRecord& rec, VendorErr* why) {
  if (!rec.IsInline() && rec.num_sge != 0) {
    uint32_t needed = rec.HasResponse() ? access::kLocalWrite : 0;
    *why = host_->ResolveLocal(rec.sges(), rec.num_sge, needed, rec.segments(), &rec.segment_count);
    if (*why != VendorErr::kNone) return false;
  }
  rec.is_resolved = true;
  return true;
}

void Requester::BuildPdu(SendRecord& rec, Pdu& out) {
  out = Pdu{};
  out.service = Service::kRc;
  out.pkey = attributes_->pkey();
  out.src_qpn = config().qpn;
  out.dest_qpn = attributes_->remote_qpn();
  out.path = &attributes_->path();
  out.psn = rec.first_psn;
  if (rec.IsRead()) {
    BuildRead(rec, out);
  } else if (rec.IsAtomic()) {
    BuildAtomic(rec, out);
  } else if (rec.IsAtomicWrite()) {
    BuildAtomicWrite(rec, out);
  } else if (rec.IsFlush()) {
    BuildFlush(rec, out);
  } else {
    BuildMessagePart(rec, out);
  }
}

// Asks for what was not asked for yet: after a loss that is what has not come.
void Requester::BuildRead(SendRecord& rec, Pdu& out) {
  const uint32_t offset = rec.sent_bytes;
  const uint32_t end = ReadRequestEnd(rec, offset);
  const bool is_last = end == rec.length;
  out.opcode = Opcode::kReadRequest;
  out.psn = rec.first_psn + PsnCount{static_cast<int32_t>(offset >> mtu_shift_)};
  out.remote_addr = rec.remote_addr + offset;
  out.rkey = rec.rkey;
  out.dma_length = end - offset;
  out.psn_count = PsnsOf(out.dma_length);
  rec.sent_bytes = end;
  rec.state =
      LookUpRequesterEvent(is_last ? RequesterEvent::kLastPduSent : RequesterEvent::kPduSent).next;
  if (is_last) ++w_->cursor;
}

void Requester::BuildAtomic(SendRecord& rec, Pdu& out) {
  out.opcode = rec.opcode == WrOpcode::kAtomicCmpAndSwp ? Opcode::kCompareSwap : Opcode::kFetchAdd;
  out.remote_addr = rec.remote_addr;
  out.rkey = rec.rkey;
  out.compare = rec.compare;
  out.swap_or_add = rec.swap_or_add;
  rec.state = LookUpRequesterEvent(RequesterEvent::kLastPduSent).next;
  ++w_->cursor;
}

// Spec: IBTA annex A19.
void Requester::BuildAtomicWrite(SendRecord& rec, Pdu& out) {
  out.opcode = Opcode::kAtomicWrite;
  out.remote_addr = rec.remote_addr;
  out.rkey = rec.rkey;
  out.dma_length = rec.length;
  out.payload.length = rec.length;
  out.payload.bytes = reinterpret_cast<const std::byte*>(&rec.swap_or_add);
  rec.state = LookUpRequesterEvent(RequesterEvent::kLastPduSent).next;
  ++w_->cursor;
}

// Of a whole region neither address nor length are looked at.  Spec: IBTA annex A19.
void Requester::BuildFlush(SendRecord& rec, Pdu& out) {
  out.opcode = Opcode::kFlush;
  out.rkey = rec.rkey;
  out.flush_type = static_cast<uint8_t>(rec.flush_type());
  out.flush_level = static_cast<uint8_t>(rec.flush_level());
  if (out.flush_level == flush::kRange) {
    out.remote_addr = rec.remote_addr;
    out.dma_length = static_cast<uint32_t>(rec.compare);
  }
  rec.state = LookUpRequesterEvent(RequesterEvent::kLastPduSent).next;
  ++w_->cursor;
}

void Requester::BuildMessagePart(SendRecord& rec, Pdu& out) {
  const uint32_t offset = rec.sent_bytes;
  const uint32_t left = rec.length - offset;
  const bool is_first = offset == 0;
  const uint32_t bytes_max = PduBytesMax(rec);
  const bool is_last = left <= bytes_max;
  const uint32_t bytes = is_last ? left : bytes_max;
  out.opcode = PartOpcode(rec.opcode, is_first, is_last);
  out.psn = rec.first_psn + PsnCount{static_cast<int32_t>(offset >> mtu_shift_)};
  out.psn_count = PsnsOf(bytes);
  if (is_first && IsWrite(rec.opcode)) {
    out.remote_addr = rec.remote_addr;
    out.rkey = rec.rkey;
    out.dma_length = rec.length;
  }
  if (is_last) {
    out.solicited = (rec.flags & shm::kSendSolicited) != 0;
    out.imm_or_rkey = rec.imm_or_rkey;
    out.ack_request = true;
  } else {
    int32_t sent = Psn::Delta(rec.first_psn, out.psn).value + out.psn_count.value;
    const int32_t every = ack_request_every_psns_;
    out.ack_request = rec.is_probe || sent / every != (sent - out.psn_count.value) / every;
    if (window_psns_ != 0) {  // what follows may have to wait for this acknowledgement
      const int32_t next = static_cast<int32_t>(bytes_max >> mtu_shift_);
      const int32_t outstanding = Psn::Delta(w_->unacked_psn, out.psn).value + out.psn_count.value;
      out.ack_request = out.ack_request || outstanding + next > window_psns_;
    }
    if (cautious_pdus_ != 0) {
      --cautious_pdus_;
      out.ack_request = true;
    }
  }
  out.payload.length = bytes;
  if (rec.IsInline()) {
    out.payload.bytes = rec.body() + offset;
  } else if (bytes != 0) {
    out.payload.segments = rec.segments();
    out.payload.segment_count = rec.segment_count;
    out.payload.offset = offset;
  }
  rec.sent_bytes = offset + bytes;
  rec.state =
      LookUpRequesterEvent(is_last ? RequesterEvent::kLastPduSent : RequesterEvent::kPduSent).next;
  if (is_last) ++w_->cursor;
}

}  // namespace verbena::transport::rc

// Messages between two QPs of one device that need none of what a network needs.
//
// A SEND or WRITE whose bytes can move at once, between two QPs that have nothing under way in that
// direction, comes out the same whether it goes as a request, a placement and an acknowledgement,
// or in one step; and the step takes a fraction of the time. What is not as usual
// (a fault, a missing receive WQE, a limit) is left as it was found, for the usual way to deal
// with.
#include "transport/rc/rc_qp.h"

namespace verbena::transport::rc {
namespace {

using shm::WcOpcode;
using shm::WrOpcode;

// What moves in a microsecond or a few. More gains little, and others wait for their turn.
constexpr uint32_t kDirectBytesMax = 64 * 1024;

bool MayGoDirect(WrOpcode opcode) {
  return opcode == WrOpcode::kRdmaWrite || opcode == WrOpcode::kRdmaWriteWithImm ||
         opcode == WrOpcode::kSend || opcode == WrOpcode::kSendWithImm;
}

bool IsSend(const SendRecord& rec) {
  return rec.opcode == WrOpcode::kSend || rec.opcode == WrOpcode::kSendWithImm;
}

}  // namespace

bool RcQp::SendDirect(Instant now, QpTransport& other) {
  RcQp& peer = static_cast<RcQp&>(other);
  // Its first message has an event of its own.
  if (!peer.comm_established_ || !peer.attributes_.CanReceive()) return false;
  SendRecord* rec = requester_.NextDirect();
  if (rec == nullptr) return false;
  // What fails must not take a receive WQE there, which may be of a queue that others share.
  const bool tells_write = rec->opcode == WrOpcode::kRdmaWriteWithImm && rec->length != 0;
  if (tells_write && !peer.AllowsWrite(*rec)) return false;
  DirectMove move;
  move.length = rec->length;
  if (rec->IsInline()) {
    move.bytes = rec->body();
  } else if (!host_->ResolveDirect(rec->sges(), rec->num_sge, &move)) {
    return false;
  }
  if (!peer.responder_.TakesDirect(window_.next_psn, *rec)) return false;
  if (rec->length != 0) {
    if (IsSend(*rec)) {
      move.receive = &peer.responder_.NextReceive();
    } else {
      move.rkey = rec->rkey;
      move.remote_addr = rec->remote_addr;
    }
    if (!host_->MoveDirect(move, *peer.host_)) return false;
  }
  requester_.EndDirect(now, *rec);
  peer.responder_.EndDirect(*rec);
  return true;
}

bool RcQp::AllowsWrite(const SendRecord& rec) {
  DmaSegment segment;
  return host_->ResolveRemote(rec.rkey, rec.remote_addr, rec.length, access::kRemoteWrite,
                              &segment) == shm::VendorErr::kNone;
}

// The next WQE, if it may go in one step as far as this end is concerned. It stays where it is.
SendRecord* Requester::NextDirect() {
  const bool is_idle = attributes_->state() == QpState::kRts && w_->retired == w_->cursor &&
                       !is_limited_ && rnr_deadline_.IsNever() && !awaits_settled_keys_;
  if (!is_idle || !EnsureRecord()) return nullptr;
  SendRecord& rec = w_->At(w_->cursor);
  if (rec.state != WqeState::kPosted || !MayGoDirect(rec.opcode)) return nullptr;
  // A message of one PDU.
  return rec.length <= kDirectBytesMax && rec.length <= pdu_bytes_max_ ? &rec : nullptr;
}

void Requester::EndDirect(Instant now, SendRecord& rec) {
  AssignPsns(rec);
  w_->unacked_psn = w_->sent_psn = w_->next_psn;
  rec.sent_bytes = rec.length;
  rec.state = WqeState::kDone;
  ++w_->cursor;
  w_->Retire();
  OnProgress(now);
}

bool Responder::TakesDirect(Psn psn, const SendRecord& rec) {
  const bool is_idle = IsNext(psn) && ops_.IsEmpty() && dma_outstanding_ == 0 &&
                       message_.kind == Message::kNone && nak_sent_ == NakSent::kNone &&
                       !nak_due_ && !ack_due_ && completions_.size() < kOpsMax &&
                       rec.length <= config_.max_message_bytes;
  if (!is_idle) return false;
  if (!IsSend(rec) && (attributes_->access_flags() & access::kRemoteWrite) == 0) return false;
  if (!rec.TakesReceive()) return true;
  if (!IsSend(rec) && config_.writes_take_no_receive) return host_->HasRoomToTell();
  if (EnsureReceive() != ResponderFault::kNone) return false;
  return !IsSend(rec) || rec.length <= ReceiveRoomBytes();
}

void Responder::EndDirect(const SendRecord& rec) {
  epsn_ = done_psn_ = rec.first_psn + PsnsOf(rec.length);
  msn_ = Msn((msn_.value + 1) & Psn::kMask);
  if (!rec.TakesReceive()) return;
  Op op;
  op.bytes = rec.length;
  op.wc_opcode = IsSend(rec) ? WcOpcode::kRecv : WcOpcode::kRecvRdmaWithImm;
  op.wc_flags = shm::kWcGrh;
  const bool has_imm = rec.opcode != WrOpcode::kSend;
  if (has_imm) op.wc_flags |= shm::kWcWithImm;
  op.imm_or_rkey = has_imm ? rec.imm_or_rkey : 0;
  op.solicited = (rec.flags & shm::kSendSolicited) != 0;
  if (!IsSend(rec) && config_.writes_take_no_receive) return PushWriteCompletion(op);
  if (NextReceive().ticket != 0) host_->SettleRecv(NextReceive(), IsSend(rec) ? rec.length : 0);
  PushReceiveCompletion(op, WcStatus::kSuccess, shm::VendorErr::kNone);
}

}  // namespace verbena::transport::rc

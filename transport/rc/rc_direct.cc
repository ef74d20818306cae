// Messages between two QPs of one device that need none of what a network needs.
//
// A SEND, WRITE or READ whose bytes can move at once, between two QPs that have nothing under way
// in that direction, comes out the same whether it goes as a request, a placement and an answer, or
// in one step; and the step takes a fraction of the time. What is not as usual (a fault, a missing
// receive WQE, a limit, another path MTU at the other end) is left to the usual way: at most, of
// the WQE there is a record in the window then, and a receive WQE is at hand.
#include "transport/rc/rc_qp.h"

namespace verbena::transport::rc {
namespace {

using shm::WcOpcode;
using shm::WrOpcode;

// What moves in a microsecond or a few. More gains little, and others wait for their turn.
constexpr uint32_t kDirectBytesMax = 64 * 1024;

bool MayGoDirect(WrOpcode opcode) {
  return opcode == WrOpcode::kRdmaWrite || opcode == WrOpcode::kRdmaWriteWithImm ||
         opcode == WrOpcode::kSend || opcode == WrOpcode::kSendWithImm ||
         opcode == WrOpcode::kRdmaRead;
}

bool IsSend(const SendRecord& rec) {
  return rec.opcode == WrOpcode::kSend || rec.opcode == WrOpcode::kSendWithImm;
}

}  // namespace

Direct RcQp::SendDirect(Instant now, QpTransport& other, Completion& out) {
  RcQp& peer = static_cast<RcQp&>(other);
  if (!peer.attributes_.CanReceive()) return Direct::kNot;
  // The request that was refused goes the usual way, as all that is not new.
  if (requester_.IsLookingForReceive()) {
    requester_.OnLookedForReceive(peer.responder_.HasReceive());
  }
  // Its first message has an event of its own.
  if (!peer.comm_established_) return Direct::kNot;
  SendWork work;
  switch (requester_.FetchDirect(work)) {
    case Requester::NextDirect::kNone:
      return Direct::kNot;
    case Requester::NextDirect::kWork:
      return WriteDirect(now, peer, work, out);
    case Requester::NextDirect::kRecord:
      return SendRecordDirect(now, peer);
  }
  return Direct::kNot;
}

// A WRITE that nobody but its sender is told of, with nothing before it: it is over at once, and no
// record of it is made, whose lines would come from far away where there are many QPs.
Direct RcQp::WriteDirect(Instant now, RcQp& peer, const SendWork& work, Completion& out) {
  const shm::SendWqe& wqe = work.wqe;
  DirectMove move;
  move.length = MessageBytes(work);
  move.rkey = RKey(wqe.rkey);
  move.remote_addr = wqe.remote_addr;
  if ((wqe.flags & shm::kSendInline) != 0) move.bytes = work.inline_data;
  const PsnCount psns = requester_.PsnsOf(move.length);
  const bool has_moved = requester_.FitsDirect(move.length) &&
                         peer.responder_.TakesDirectWrite(window_.next_psn, psns, move.length) &&
                         FindDirect(work.sge, wqe.num_sge, &move) &&
                         (move.length == 0 || host_->MoveDirect(move, *peer.host_));
  if (!has_moved) {
    requester_.KeepDirect(work);
    return Direct::kNot;
  }
  peer.responder_.EndDirectWrite(window_.next_psn, psns);
  requester_.EndDirectWrite(now, psns);
  was_direct_ = peer.was_direct_ = true;
  const QpConfig& config = attributes_.config();
  if (!config.sq_sig_all && (wqe.flags & shm::kSendSignaled) == 0) return Direct::kDone;
  const Completer::Completed done{wqe.wr_id, static_cast<WrOpcode>(wqe.opcode), move.length};
  Completer::Fill(config.qpn, done, WcStatus::kSuccess, shm::VendorErr::kNone, out);
  return Direct::kCompleted;
}

Direct RcQp::SendRecordDirect(Instant now, RcQp& peer) {
  SendRecord& rec = window_.At(window_.cursor);
  if (rec.IsRead()) return ReadDirect(now, peer, rec);
  // What fails must not take a receive WQE there, which may be of a queue that others share.
  const bool tells_write = rec.opcode == WrOpcode::kRdmaWriteWithImm && rec.length != 0;
  if (tells_write && !peer.AllowsWrite(rec)) return Direct::kNot;
  DirectMove move;
  move.length = rec.length;
  if (rec.IsInline()) move.bytes = rec.body();
  if (!FindDirect(rec.sges(), rec.num_sge, &move)) return Direct::kNot;
  const PsnCount psns = requester_.PsnsOf(rec.length);
  if (!peer.responder_.TakesDirect(window_.next_psn, psns, rec)) return Direct::kNot;
  if (rec.length != 0) {
    if (IsSend(rec)) {
      move.receive = &peer.responder_.NextReceive();
    } else {
      move.rkey = rec.rkey;
      move.remote_addr = rec.remote_addr;
    }
    if (!host_->MoveDirect(move, *peer.host_)) return Direct::kNot;
  }
  requester_.EndDirect(now, rec);
  peer.responder_.EndDirect(rec);
  was_direct_ = peer.was_direct_ = false;
  return Direct::kSent;
}

Direct RcQp::ReadDirect(Instant now, RcQp& peer, SendRecord& rec) {
  DirectMove move;
  move.length = rec.length;
  move.rkey = rec.rkey;
  move.remote_addr = rec.remote_addr;
  const bool may_ask = attributes_.max_rd_atomic() != 0 && !rec.IsInline();
  const bool has_moved =
      may_ask &&
      peer.responder_.TakesDirectRead(window_.next_psn, requester_.PsnsOf(rec.length),
                                      rec.length) &&
      (rec.length == 0 || host_->ReadDirect(move, rec.sges(), rec.num_sge, *peer.host_));
  if (!has_moved) return Direct::kNot;
  requester_.EndDirect(now, rec);
  peer.responder_.EndDirect(rec);
  was_direct_ = peer.was_direct_ = false;
  return Direct::kSent;
}

bool RcQp::FindDirect(const shm::Sge* sge, uint32_t num_sge, DirectMove* move) {
  return move->bytes != nullptr || host_->ResolveDirect(sge, num_sge, move);
}

bool RcQp::AllowsWrite(const SendRecord& rec) {
  DmaSegment segment;
  return host_->ResolveRemote(rec.rkey, rec.remote_addr, rec.length, access::kRemoteWrite,
                              &segment) == shm::VendorErr::kNone;
}

Requester::NextDirect Requester::FetchDirect(SendWork& work) {
  const bool is_idle = attributes_->state() == QpState::kRts && w_->retired == w_->cursor &&
                       !is_limited_ && rnr_deadline_.IsNever() && !awaits_settled_keys_;
  if (!is_idle) return NextDirect::kNone;
  if (w_->cursor == w_->tail) {
    if (!FetchWork(work)) {
      // PollRequest need not look as well, but it does what a queue that lies asks for.
      if (!corrupt_queue_) w_->WakeSender();
      return NextDirect::kNone;
    }
    // Behind others its completion waits for theirs.
    const bool is_first = w_->head == w_->tail;
    if (is_first && work.wqe.opcode == static_cast<uint8_t>(WrOpcode::kRdmaWrite)) {
      return NextDirect::kWork;
    }
    KeepDirect(work);
  }
  const SendRecord& rec = w_->At(w_->cursor);
  const bool may_go =
      rec.state == WqeState::kPosted && MayGoDirect(rec.opcode) && FitsDirect(rec.length);
  return may_go ? NextDirect::kRecord : NextDirect::kNone;
}

// A message of one PDU.
bool Requester::FitsDirect(uint32_t bytes) const {
  return bytes <= kDirectBytesMax && bytes <= pdu_bytes_max_;
}

void Requester::EndDirect(Instant now, SendRecord& rec) {
  AssignPsns(rec);
  if (rec.HasResponse()) --w_->rd_atomic_outstanding;
  rec.sent_bytes = rec.length;
  rec.state = WqeState::kDone;
  ++w_->cursor;
  w_->Retire();
  EndDirect(now);
}

void Requester::EndDirectWrite(Instant now, PsnCount psns) {
  w_->next_psn = w_->next_psn + psns;
  next_ssn_ = Msn((next_ssn_.value + 1) & Psn::kMask);
  EndDirect(now);
}

// All that was sent is acknowledged.
void Requester::EndDirect(Instant now) {
  w_->unacked_psn = w_->sent_psn = w_->next_psn;
  OnProgress(now);
}

// Both ends count the message's packets, and have to come to the same number.
bool Responder::IsIdle(Psn psn, PsnCount psns, uint32_t bytes) const {
  return IsNext(psn) && psns == PsnsOf(bytes) && ops_.IsEmpty() && dma_outstanding_ == 0 &&
         message_.kind == Message::kNone && nak_sent_ == NakSent::kNone && !nak_due_ && !ack_due_ &&
         completions_.size() < kOpsMax && bytes <= config().max_message_bytes;
}

bool Responder::TakesDirectWrite(Psn psn, PsnCount psns, uint32_t bytes) const {
  return IsIdle(psn, psns, bytes) && (attributes_->access_flags() & access::kRemoteWrite) != 0;
}

bool Responder::TakesDirectRead(Psn psn, PsnCount psns, uint32_t bytes) const {
  return IsIdle(psn, psns, bytes) && attributes_->max_dest_rd_atomic() != 0 &&
         (attributes_->access_flags() & access::kRemoteRead) != 0;
}

bool Responder::TakesDirect(Psn psn, PsnCount psns, const SendRecord& rec) {
  const uint32_t bytes = rec.length;
  if (!(IsSend(rec) ? IsIdle(psn, psns, bytes) : TakesDirectWrite(psn, psns, bytes))) return false;
  if (!rec.TakesReceive()) return true;
  if (!IsSend(rec) && config().writes_take_no_receive) return host_->HasRoomToTell();
  if (EnsureReceive() != ResponderFault::kNone) return false;
  return !IsSend(rec) || rec.length <= ReceiveRoomBytes();
}

void Responder::EndDirectWrite(Psn psn, PsnCount psns) {
  epsn_ = done_psn_ = psn + psns;
  msn_ = Msn((msn_.value + 1) & Psn::kMask);
}

void Responder::EndDirect(const SendRecord& rec) {
  EndDirectWrite(rec.first_psn, rec.psn_count);
  if (!rec.TakesReceive()) return;
  Op op;
  op.bytes = rec.length;
  op.wc_opcode = IsSend(rec) ? WcOpcode::kRecv : WcOpcode::kRecvRdmaWithImm;
  op.wc_flags = shm::kWcGrh;
  const bool has_imm = rec.opcode != WrOpcode::kSend;
  if (has_imm) op.wc_flags |= shm::kWcWithImm;
  op.imm_or_rkey = has_imm ? rec.imm_or_rkey : 0;
  op.solicited = (rec.flags & shm::kSendSolicited) != 0;
  if (!IsSend(rec) && config().writes_take_no_receive) return PushWriteCompletion(op);
  if (NextReceive().ticket != 0) host_->SettleRecv(NextReceive(), IsSend(rec) ? rec.length : 0);
  PushReceiveCompletion(op, WcStatus::kSuccess, shm::VendorErr::kNone);
}

}  // namespace verbena::transport::rc

#include "transport/rc/responder.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;
using shm::WcOpcode;

constexpr uint32_t kAtomicBytes = 8;

bool IsRead(const Pdu& pdu) { return pdu.opcode == Opcode::kReadRequest; }

}  // namespace

void Responder::Reset() {
  // A private queue is reset with its QP; a shared one lives on and wants its slots back.
  if (config().has_srq && !receives_.IsEmpty()) host_->ReleaseRecv(receives_.size());
  ops_.Clear();
  receives_.Clear();
  completions_.Clear();
  receives_used_ = 0;
  reads_waiting_ = invalidations_waiting_ = dma_outstanding_ = results_to_ignore_ =
      read_sent_bytes_ = 0;
  message_ = MessageState{};
  epsn_ = done_psn_ = Psn{};
  msn_ = Msn{};
  is_halted_ = true;
  nak_sent_ = NakSent::kNone;
  seen_psns_ = 0;
  dma_due_ = ack_due_ = nak_due_ = has_failure_ = awaits_settled_keys_ = false;
  atomics_next_ = atomics_valid_ = 0;
}

void Responder::Start(Psn rq_psn) {
  epsn_ = done_psn_ = rq_psn;
  is_halted_ = false;
  OnModify();
}

void Responder::OnModify() {
  mtu_bytes_ = attributes_->mtu_bytes();
  mtu_shift_ = static_cast<uint32_t>(std::countr_zero(mtu_bytes_));
  pdu_bytes_max_ = attributes_->pdu_bytes_max();
  // Until a READ's response is out, nothing changes what it reads, where the port can keep what
  // comes next. A wire can't: losing a request costs a time-out, and the order of a READ and what
  // follows is the fence's business anyway.  Spec: IBTA 9.5, 10.8.3.3.
  reads_hold_back_ = attributes_->pdu_limits().max_unacked_psns == 0;
}

void Responder::Halt() {
  is_halted_ = true;
  // The peer has a part of the answers of these, perhaps, and goes on asking in their middle.
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (op.is_duplicate) continue;
    if (op.kind != OpKind::kRead && op.kind != OpKind::kAtomic) break;
    done_psn_ = op.psn + op.psn_count;
  }
  results_to_ignore_ = dma_outstanding_;
  ops_.Clear();
  reads_waiting_ = invalidations_waiting_ = read_sent_bytes_ = 0;
  receives_used_ = 0;
  message_ = MessageState{};
  ack_due_ = false;
}

bool Responder::CanAccept(const Pdu& pdu) const {
  if (is_halted_) return true;  // it will be dropped, which takes no room
  // One slot stays free for the fault of a response that can't be read.
  if (ops_.size() >= kOpsMax - 1 || completions_.size() >= kOpsMax) return false;
  // A request's rights are looked at when it is taken in, so after an invalidation before it is
  // done.
  if (invalidations_waiting_ != 0) return false;
  return reads_waiting_ == 0 || IsRead(pdu) || !reads_hold_back_;
}

bool Responder::OnPdu(const Pdu& pdu, const OpcodeInfo& info) {
  if (is_halted_ || !CanAccept(pdu)) return false;
  check_vendor_err_ = VendorErr::kNone;
  check_took_receive_ = false;
  ResponderFault fault = RunChecks(pdu, info);
  if (fault == ResponderFault::kNone) {
    Execute(pdu, info);
  } else {
    OnFault(pdu, info, fault);
  }
  Drain();
  return fault == ResponderFault::kNone;
}

// --- the chain -----------------------------------------------------------------------------------

ResponderFault Responder::RunChecks(const Pdu& pdu, const OpcodeInfo& info) {
  for (size_t i = 0; i < kResponderCheckCount; ++i) {
    ResponderFault fault = Check(kResponderChecks[i].check, pdu, info);
    if (fault != ResponderFault::kNone) return fault;
  }
  return ResponderFault::kNone;
}

ResponderFault Responder::Check(ResponderCheck check, const Pdu& pdu, const OpcodeInfo& info) {
  switch (check) {
    case ResponderCheck::kPsn:
      return CheckPsn(pdu.psn);
    case ResponderCheck::kOpcodeSequence:
      return CheckOpcodeSequence(info);
    case ResponderCheck::kOpcodeSupported:
      return CheckOpcodeSupported(pdu, info);
    case ResponderCheck::kResource:
      return CheckResource(pdu, info);
    case ResponderCheck::kLength:
      return CheckLength(pdu, info);
    case ResponderCheck::kRkey:
      return CheckRkey(pdu, info);
  }
  return ResponderFault::kUnsupportedOpcode;
}

ResponderFault Responder::CheckPsn(Psn psn) const {
  int32_t distance = Psn::Delta(epsn_, psn).value;
  if (distance == 0) return ResponderFault::kNone;
  if (distance < 0) return ResponderFault::kDuplicate;
  return MayTellOfGap(distance) ? ResponderFault::kPsnGap : ResponderFault::kPsnGapAgain;
}

// What comes behind an RNR NAK was under way when it went out, unless it has come before: then the
// peer is sending again, and what was expected is lost. Untold, it would wait for its ACK timeout,
// which may be infinite. Where the network doubles or reorders packets this may be wrong, and costs
// the peer a retry, as any gap does.  Spec: IBTA 9.7.5.2.6, 9.7.5.2.8
bool Responder::MayTellOfGap(int32_t distance) const {
  return nak_sent_ == NakSent::kNone || (nak_sent_ == NakSent::kNotReady && distance <= seen_psns_);
}

ResponderFault Responder::CheckOpcodeSequence(const OpcodeInfo& info) const {
  Message continues = Message::kNone;
  if (!info.is_first && (info.is_middle || info.is_last)) {
    continues = info.is_send ? Message::kSend : Message::kWrite;
  }
  return continues == message_.kind ? ResponderFault::kNone : ResponderFault::kOpcodeSequence;
}

ResponderFault Responder::CheckOpcodeSupported(const Pdu& pdu, const OpcodeInfo& info) const {
  if (!info.is_request || (info.services >> static_cast<int>(Service::kRc) & 1) == 0) {
    return ResponderFault::kUnsupportedOpcode;
  }
  if (info.is_flush) return CheckFlush(pdu);
  uint32_t needed = info.is_write || info.is_atomic_write ? access::kRemoteWrite
                    : info.is_atomic                      ? access::kRemoteAtomic
                    : IsRead(pdu)                         ? access::kRemoteRead
                                                          : 0;
  if ((attributes_->access_flags() & needed) == needed) return ResponderFault::kNone;
  return ResponderFault::kAccessDisabled;
}

ResponderFault Responder::CheckResource(const Pdu& pdu, const OpcodeInfo& info) {
  if (IsRead(pdu) || info.is_atomic || info.is_atomic_write) {
    return RdAtomicsWaiting() >= attributes_->max_dest_rd_atomic()
               ? ResponderFault::kTooManyRdAtomic
               : ResponderFault::kNone;
  }
  if (!info.is_send && !info.has_imm) return ResponderFault::kNone;
  if (!info.is_send && config().writes_take_no_receive) {
    return host_->HasRoomToTell() ? ResponderFault::kNone : ResponderFault::kNoReceiveWqe;
  }
  ResponderFault fault = ResponderFault::kNone;
  // A whole WRITE of several packets: its rkey comes with the first of them, and the immediate, for
  // which a receive is taken, with the last.  Spec: IBTA 9.7.4.1.5, 9.7.4.1.7.
  if (info.is_write && info.is_first && pdu.psn_count.value > 1) fault = CheckRkey(pdu, info);
  if (fault == ResponderFault::kNone) fault = EnsureReceive();
  if (fault != ResponderFault::kNone) return fault;
  check_took_receive_ = true;
  if (!info.is_send || pdu.payload.length == 0) return ResponderFault::kNone;
  const uint64_t before = info.is_first ? 0 : message_.received_bytes;
  return ResolveReceive(before + pdu.payload.length);
}

// READs and atomics not answered yet. A peer that keeps to what was agreed has never more of them
// outstanding, since it counts each until the answer arrived. Duplicates are no new ones. FLUSHes
// are not counted: kernel rxe sends as many as it likes, and each keeps nothing but its place.
uint32_t Responder::RdAtomicsWaiting() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (!op.is_duplicate && WantsResponse(op) && op.kind != OpKind::kFlush) ++count;
  }
  return count;
}

// Has the receive WQE for the current message at hand.
ResponderFault Responder::EnsureReceive() {
  if (receives_.size() > receives_used_) return ResponderFault::kNone;
  FetchResult result = host_->FetchRecv(receives_.PushBack());
  if (result == FetchResult::kOk) return ResponderFault::kNone;
  receives_.PopBack();
  return result == FetchResult::kEmpty ? ResponderFault::kNoReceiveWqe
                                       : ResponderFault::kCorruptQueue;
}

// Resolves the buffers of the message's first `bytes`.
ResponderFault Responder::ResolveReceive(uint64_t bytes) {
  const RecvWork& work = receives_[receives_used_];
  if (receive_segments_ == nullptr) receive_segments_.reset(new DmaSegment[shm::kMaxSge]);
  shm::Sge needed[shm::kMaxSge];
  const uint32_t count = TrimSges(work.sge, work.num_sge, bytes, needed);
  check_vendor_err_ = host_->ResolveLocal(needed, count, access::kLocalWrite,
                                          receive_segments_.get(), &receive_segment_count_);
  return check_vendor_err_ == VendorErr::kNone ? ResponderFault::kNone
                                               : ResponderFault::kMalformedWqe;
}

ResponderFault Responder::CheckLength(const Pdu& pdu, const OpcodeInfo& info) const {
  const uint32_t bytes = pdu.payload.length;
  if (IsRead(pdu)) {
    return pdu.dma_length <= config().max_message_bytes ? ResponderFault::kNone
                                                        : ResponderFault::kBadLength;
  }
  if (info.is_atomic) {
    return pdu.remote_addr % kAtomicBytes == 0 ? ResponderFault::kNone
                                               : ResponderFault::kMisalignedAtomic;
  }
  if (info.is_atomic_write) return CheckAtomicWriteLength(pdu);
  if (info.is_flush) return CheckFlushLength(pdu);
  // Parts but the last are whole packets, and no part of several is empty.
  if (pdu.psn_count != PsnsOf(bytes)) return ResponderFault::kBadLength;
  if (!info.is_last && bytes % mtu_bytes_ != 0) return ResponderFault::kBadLength;
  if (bytes == 0 && !(info.is_first && info.is_last)) return ResponderFault::kBadLength;

  const uint64_t so_far = uint64_t{message_.received_bytes} + bytes;
  if (so_far > config().max_message_bytes) return ResponderFault::kBadLength;
  if (info.is_write) {
    uint64_t total = info.is_first ? pdu.dma_length : message_.total_bytes;
    if (total > config().max_message_bytes) return ResponderFault::kBadLength;
    bool fits = info.is_last ? so_far == total : so_far < total;
    return fits ? ResponderFault::kNone : ResponderFault::kBadLength;
  }
  uint64_t room = message_.room_bytes;
  if (info.is_first) room = ReceiveRoomBytes();
  return so_far <= room || config().truncates ? ResponderFault::kNone
                                              : ResponderFault::kReceiveTooShort;
}

ResponderFault Responder::CheckRkey(const Pdu& pdu, const OpcodeInfo& info) {
  RKey rkey = pdu.rkey;
  uint64_t addr = pdu.remote_addr;
  uint64_t length = pdu.dma_length;
  uint32_t needed = access::kRemoteRead;
  if (info.is_send) return ResponderFault::kNone;
  if (info.is_atomic_write) return CheckAtomicWriteRkey(pdu);
  if (info.is_flush) return CheckFlushRkey(pdu);
  if (info.is_atomic) {
    length = kAtomicBytes;
    needed = access::kRemoteAtomic;
  } else if (info.is_write) {
    needed = access::kRemoteWrite;
    if (!info.is_first) {  // the whole range was granted with the first; it may be revoked since
      rkey = message_.rkey;
      addr = message_.next_addr;
      length = pdu.payload.length;
    }
  }
  if (length == 0) return ResponderFault::kNone;  //= IBTA C9-88
  check_vendor_err_ = host_->ResolveRemote(rkey, addr, length, needed, &remote_segment_);
  if (check_vendor_err_ != VendorErr::kNone) return ResponderFault::kRkeyViolation;
  // A region's addresses on the wire need not be aligned as those in memory, and a locked operation
  // across two lines of the cache delays the whole machine.
  const bool is_aligned = !info.is_atomic || remote_segment_.addr % kAtomicBytes == 0;
  return is_aligned ? ResponderFault::kNone : ResponderFault::kMisalignedAtomic;
}

// --- execution -----------------------------------------------------------------------------------

Responder::Op& Responder::PushOp(OpKind kind, Psn psn, PsnCount count) {
  Op& op = ops_.PushBack();
  static_cast<OpHead&>(op) = OpHead{};
  op.kind = kind;
  op.psn = psn;
  op.psn_count = count;
  return op;
}

void Responder::Execute(const Pdu& pdu, const OpcodeInfo& info) {
  nak_sent_ = NakSent::kNone;
  if (IsRead(pdu)) {
    Op& op = PushOp(OpKind::kRead, pdu.psn, PsnsOf(pdu.dma_length));
    op.before = message_;
    op.segment = remote_segment_;
    op.bytes = pdu.dma_length;
    ++reads_waiting_;
    epsn_ = op.psn + op.psn_count;
    return;
  }
  if (info.is_atomic) {
    Op& op = PushOp(OpKind::kAtomic, pdu.psn, PsnCount{1});
    op.before = message_;
    op.segment = remote_segment_;
    op.dma_outstanding = true;
    dma_kind_ = pdu.opcode == Opcode::kCompareSwap ? DmaRequest::Kind::kCompareSwap
                                                   : DmaRequest::Kind::kFetchAdd;
    op.compare = pdu.compare;
    op.swap_or_add = pdu.swap_or_add;
    ++dma_outstanding_;
    dma_due_ = true;
    epsn_ = op.psn.Next();
    return;
  }
  if (info.is_atomic_write) return ExecuteAtomicWrite(pdu);
  if (info.is_flush) return ExecuteFlush(pdu);
  Op& op = PushOp(OpKind::kPlacement, pdu.psn, pdu.psn_count);
  ExecutePlacement(pdu, info, op);
  epsn_ = op.psn + op.psn_count;
}

void Responder::ExecutePlacement(const Pdu& pdu, const OpcodeInfo& info, Op& op) {
  const uint32_t bytes = pdu.payload.length;
  op.before = message_;
  op.wants_ack = pdu.ack_request;
  op.is_send = info.is_send;
  uint32_t placed = bytes;
  uint64_t room = message_.room_bytes;
  if (info.is_send && config().truncates) {
    if (info.is_first) room = ReceiveRoomBytes();
    const uint64_t left = room - std::min<uint64_t>(room, message_.received_bytes);
    placed = static_cast<uint32_t>(std::min<uint64_t>(bytes, left));
  }
  if (placed != 0) {
    op.dma_outstanding = true;
    ++dma_outstanding_;
    dma_due_ = true;
    dma_kind_ = DmaRequest::Kind::kCopy;
    dma_source_ = pdu.payload;
    dma_source_.length = placed;
    dma_destination_ = info.is_send ? receive_segments_.get() : &remote_segment_;
    dma_destination_count_ = info.is_send ? receive_segment_count_ : 1;
    dma_destination_offset_ = info.is_send ? message_.received_bytes : 0;
  }
  const uint32_t so_far = message_.received_bytes + bytes;
  if (info.is_last) {
    op.ends_message = true;
    op.bytes = so_far;
    op.takes_receive = info.is_send || (info.has_imm && !config().writes_take_no_receive);
    op.tells_write = info.has_imm && !op.takes_receive;
    op.wc_opcode = info.is_send ? WcOpcode::kRecv : WcOpcode::kRecvRdmaWithImm;
    // A GRH is always there on RoCE, and rxe says so on connected services too.
    op.wc_flags = shm::kWcGrh;
    if (info.has_imm) op.wc_flags |= shm::kWcWithImm;
    if (info.has_ieth) op.wc_flags |= shm::kWcWithInv;
    op.invalidates = info.has_ieth;
    if (op.invalidates) ++invalidations_waiting_;
    if (info.is_write) op.written_memory = so_far != 0 ? remote_segment_.memory : 0;
    if (info.is_send && config().truncates && so_far > room) op.vendor_err = VendorErr::kTruncated;
    // Whatever the work request of a plain SEND held there, no packet would bring it.
    op.imm_or_rkey = info.has_imm || info.has_ieth ? pdu.imm_or_rkey : 0;
    op.solicited = pdu.solicited;
    if (op.takes_receive) {
      const RecvWork& work = NextReceive();
      const uint64_t taken = info.is_send ? std::min<uint64_t>(so_far, ReceiveRoomBytes()) : 0;
      if (work.ticket != 0) host_->SettleRecv(work, taken);
      ++receives_used_;
    }
    message_ = MessageState{};
    return;
  }
  if (info.is_first) {
    message_.kind = info.is_send ? Message::kSend : Message::kWrite;
    if (info.is_send) {
      const uint64_t room = ReceiveRoomBytes();
      message_.room_bytes = room > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(room);
    } else {
      message_.rkey = pdu.rkey;
      message_.next_addr = pdu.remote_addr;
      message_.total_bytes = pdu.dma_length;
    }
  }
  message_.received_bytes = so_far;
  message_.next_addr += bytes;
}

bool Responder::IsAtomicUnderWay(Psn psn) const {
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind == OpKind::kAtomic && ops_[i].psn == psn) return true;
  }
  return false;
}

// The newest first: an older one of this PSN is of 2^24 PSNs ago.
const Responder::AtomicResource* Responder::FindAtomic(Psn psn) const {
  for (uint32_t age = 1; age <= atomics_valid_; ++age) {
    const AtomicResource& saved = atomics_[(atomics_next_ + atomics_size_ - age) % atomics_size_];
    if (saved.psn == psn) return &saved;
  }
  return nullptr;
}

// Spec: IBTA C9-105 and following: SEND and WRITE are acknowledged again and not executed, a READ
// is read again, an atomic is answered from its saved result, an ATOMIC_WRITE or FLUSH as before.
void Responder::ExecuteDuplicate(const Pdu& pdu, const OpcodeInfo& info) {
  if (info.is_send || info.is_write) {
    if (pdu.ack_request || info.is_last) PushOp(OpKind::kAckAgain, pdu.psn, pdu.psn_count);
    return;
  }
  if (info.is_atomic) {
    if (IsAtomicUnderWay(pdu.psn)) return;
    if (const AtomicResource* saved = FindAtomic(pdu.psn); saved != nullptr) {
      Op& op = PushOp(OpKind::kAtomicReplay, pdu.psn, PsnCount{1});
      op.original = saved->original;
      op.is_duplicate = true;
    }
    return;  // too old, or still being executed: silence, IBTA 9.9.3 class D
  }
  if (info.is_atomic_write) return ReplayAtomicWrite(pdu);
  if (info.is_flush) return ReplayFlush(pdu);
  if (!IsRead(pdu)) return;
  PsnCount count = PsnsOf(pdu.dma_length);
  if (epsn_.Before(pdu.psn + count)) return;  // no READ there was so long
  ResponderFault fault = CheckOpcodeSupported(pdu, info);
  if (fault == ResponderFault::kNone) fault = CheckLength(pdu, info);
  if (fault == ResponderFault::kNone) fault = CheckRkey(pdu, info);
  if (fault != ResponderFault::kNone) {
    OnFault(pdu, info, fault);
    return;
  }
  Op& op = PushOp(OpKind::kRead, pdu.psn, count);
  op.before = message_;
  op.segment = remote_segment_;
  op.bytes = pdu.dma_length;
  op.is_duplicate = true;
  ++reads_waiting_;
}

// Which packet of a PDU of several a NAK is to name: of a message that is too long the one that
// brings more than there is room for, of one that is too short the last.  Spec: IBTA 9.7.5.1.1.
PsnCount Responder::PacketAtFault(const Pdu& pdu, const OpcodeInfo& info,
                                  ResponderFault fault) const {
  const bool is_length =
      fault == ResponderFault::kBadLength || fault == ResponderFault::kReceiveTooShort;
  if (!is_length || pdu.psn_count.value <= 1) return {0};
  uint64_t room = message_.room_bytes;
  if (info.is_write) {
    room = info.is_first ? pdu.dma_length : message_.total_bytes;
  } else if (info.is_first) {
    room = ReceiveRoomBytes();
  }
  const uint64_t left = room - std::min<uint64_t>(room, message_.received_bytes);
  const auto last = static_cast<uint64_t>(pdu.psn_count.value - 1);
  return {static_cast<int32_t>(std::min(left / mtu_bytes_, last))};
}

void Responder::OnFault(const Pdu& pdu, const OpcodeInfo& info, ResponderFault fault) {
  const ResponderFaultRow& row = LookUpResponderFault(fault);
  if (row.counter != nullptr) ++(counters_->*row.counter);
  switch (row.reply) {
    case Reply::kSilence:
      if (fault == ResponderFault::kPsnGapAgain) {
        seen_psns_ = Psn::Delta(epsn_, pdu.psn).value + pdu.psn_count.value - 1;
      }
      if (!row.fails_qp) return;
      break;
    case Reply::kReplay:
      ExecuteDuplicate(pdu, info);
      return;
    case Reply::kNak:
    case Reply::kRnrNak:
      break;
  }
  // The answer waits its turn: a NAK acknowledges all before it.
  const Psn psn =
      fault == ResponderFault::kPsnGap ? epsn_ : pdu.psn + PacketAtFault(pdu, info, fault);
  Op& op = PushOp(OpKind::kFault, psn, PsnCount{0});
  op.fault = fault;
  op.vendor_err = check_vendor_err_;
  nak_sent_ = row.reply == Reply::kRnrNak ? NakSent::kNotReady : NakSent::kLast;
  seen_psns_ = 0;
  if (row.fails_qp) {
    op.takes_receive = message_.kind == Message::kSend || check_took_receive_;
    is_halted_ = true;
  }
}

// The request at `op_index` and all after it never came.
void Responder::TakeBack(uint32_t op_index) {
  epsn_ = ops_[op_index].psn;
  message_ = ops_[op_index].before;
  nak_sent_ = NakSent::kNone;
  while (ops_.size() > op_index) {
    const Op& op = ops_[ops_.size() - 1];
    if (op.dma_outstanding) ++results_to_ignore_;
    if (op.takes_receive && op.kind == OpKind::kPlacement) --receives_used_;
    if (op.kind == OpKind::kRead) --reads_waiting_;
    if (op.invalidates) --invalidations_waiting_;
    if (op.kind == OpKind::kFault) is_halted_ = false;
    ops_.PopBack();
  }
  const bool is_mid_send = message_.kind == Message::kSend;
  ReturnReceives(receives_used_ + (is_mid_send ? 1 : 0));
  if (!is_mid_send || NextReceive().ticket == 0) return;
  const uint64_t room = host_->ReopenRecv(NextReceive());
  message_.room_bytes = static_cast<uint32_t>(std::min<uint64_t>(message_.room_bytes, room));
}

void Responder::ReturnReceives(uint32_t keep) {
  while (receives_.size() > keep && receives_[receives_.size() - 1].ticket != 0) {
    host_->ReturnRecv(receives_[receives_.size() - 1]);
    receives_.PopBack();
  }
}

void Responder::OnDmaDone(const DmaResult& result) {
  VERBENA_CHECK(dma_outstanding_ != 0);
  --dma_outstanding_;
  if (results_to_ignore_ != 0) {
    --results_to_ignore_;
    return;
  }
  uint32_t i = 0;
  while (!ops_[i].dma_outstanding) ++i;
  Op& op = ops_[i];
  op.dma_outstanding = false;
  op.original = result.atomic_original;
  if (result.status == DmaStatus::kSourceFault) {
    TakeBack(i);
  } else if (result.status == DmaStatus::kDestinationFault) {
    op.kind = OpKind::kFault;
    op.fault = ResponderFault::kMemoryFault;
    op.vendor_err = VendorErr::kMemoryFault;
    is_halted_ = true;
    // The WQE of a message in parts is taken, though only its last part would use it up.
    op.takes_receive = op.takes_receive || op.is_send;
  }
  Drain();
}

void Responder::OnSourceFault(Psn psn) {
  if (is_halted_) return;
  Op& op = PushOp(OpKind::kFault, psn, PsnCount{0});
  op.fault = ResponderFault::kMemoryFault;
  op.vendor_err = VendorErr::kMemoryFault;
  is_halted_ = true;
  Drain();
}

}  // namespace verbena::transport::rc

#include "transport/uc/uc_responder.h"

namespace verbena::transport {

void UcResponder::Start(Psn psn) {
  epsn_ = psn;
  stage_ = Stage::kIdle;
  slot_ = ReceiveQueue::kNoSlot;
  has_placement_ = false;
}

void UcResponder::OnPdu(const Pdu& pdu) {
  const OpcodeInfo& info = *LookUpOpcode(pdu.opcode);
  UnreliableFault fault = Check(pdu, info);
  if (fault == UnreliableFault::kNone) {
    Execute(pdu, info);
  } else {
    Refuse(fault);
  }
}

UnreliableFault UcResponder::Check(const Pdu& pdu, const OpcodeInfo& info) {
  UnreliableFault fault = CheckPsn(pdu, info);
  if (fault == UnreliableFault::kNone) fault = CheckSequence(info);
  if (fault == UnreliableFault::kNone) fault = CheckLength(pdu, info);
  if (fault == UnreliableFault::kNone) fault = CheckResource(pdu, info);
  return fault;
}

// A gap loses the message under way, and the one it falls into unless that starts here.
// Spec: IBTA 9.8.2.2.1 (UC PSN verification).
UnreliableFault UcResponder::CheckPsn(const Pdu& pdu, const OpcodeInfo& info) {
  bool is_expected = pdu.psn == epsn_;
  epsn_ = pdu.psn + pdu.psn_count;
  if (is_expected) return UnreliableFault::kNone;
  if (!info.is_first) return UnreliableFault::kPsnGap;
  Refuse(UnreliableFault::kPsnGap);
  return UnreliableFault::kNone;
}

// A message that starts ends whatever was under way; one that goes on must have started as the same
// operation.  Spec: IBTA 9.8.2.2.2 (UC opcode sequence).
UnreliableFault UcResponder::CheckSequence(const OpcodeInfo& info) {
  if (info.is_first) {
    AbandonMessage();
    stage_ = Stage::kIdle;
    return UnreliableFault::kNone;
  }
  bool goes_on =
      (stage_ == Stage::kSend && info.is_send) || (stage_ == Stage::kWrite && info.is_write);
  return goes_on ? UnreliableFault::kNone : UnreliableFault::kOpcodeSequence;
}

// FIRST and MIDDLE carry whole packets, LAST at least a byte.  Spec: IBTA 9.8.2.2.4.
UnreliableFault UcResponder::CheckLength(const Pdu& pdu, const OpcodeInfo& info) const {
  uint32_t length = pdu.payload.length;
  bool fills_its_psns = pdu.psn_count == context_.attributes.PsnsOf(length);
  bool is_whole = length % context_.attributes.mtu_bytes() == 0;
  bool is_only = info.is_first && info.is_last;
  bool fits = fills_its_psns && (info.is_last || is_whole) && (length > 0 || is_only);
  return fits ? UnreliableFault::kNone : UnreliableFault::kBadLength;
}

UnreliableFault UcResponder::CheckResource(const Pdu& pdu, const OpcodeInfo& info) {
  if (info.is_first) {
    ++message_;
    received_bytes_ = 0;
    UnreliableFault fault = info.is_send ? BeginSend() : BeginWrite(pdu);
    if (fault != UnreliableFault::kNone) return fault;
  }
  return info.is_send ? CheckReceive(pdu) : CheckWrite(pdu, info);
}

UnreliableFault UcResponder::BeginSend() {
  slot_ = receive_queue_.Take();
  if (slot_ == ReceiveQueue::kNoSlot) return UnreliableFault::kNoReceiveWqe;
  stage_ = Stage::kSend;
  capacity_bytes_ = receive_queue_.CapacityBytes(slot_);
  return UnreliableFault::kNone;
}

UnreliableFault UcResponder::BeginWrite(const Pdu& pdu) {
  stage_ = Stage::kWrite;
  capacity_bytes_ = pdu.dma_length;
  segment_count_ = 0;
  if ((context_.attributes.access_flags() & access::kRemoteWrite) == 0) {
    return UnreliableFault::kAccessDisabled;
  }
  if (pdu.dma_length > context_.config.max_message_bytes) return UnreliableFault::kBadLength;
  if (pdu.dma_length == 0) return UnreliableFault::kNone;
  segment_count_ = 1;
  KeyFault refusal = context_.host.ResolveRemote(pdu.rkey, pdu.remote_addr, pdu.dma_length,
                                                 access::kRemoteWrite, segments_);
  return refusal == KeyFault::kNone ? UnreliableFault::kNone : UnreliableFault::kRkeyViolation;
}

UnreliableFault UcResponder::CheckReceive(const Pdu& pdu) {
  uint64_t total_bytes = uint64_t{received_bytes_} + pdu.payload.length;
  if (total_bytes > capacity_bytes_) return UnreliableFault::kReceiveTooShort;
  key_fault_ = receive_queue_.Resolve(slot_, total_bytes, segments_, &segment_count_);
  return key_fault_ == KeyFault::kNone ? UnreliableFault::kNone : UnreliableFault::kMalformedWqe;
}

UnreliableFault UcResponder::CheckWrite(const Pdu& pdu, const OpcodeInfo& info) {
  uint64_t total_bytes = uint64_t{received_bytes_} + pdu.payload.length;
  if (total_bytes > capacity_bytes_ || (info.is_last && total_bytes != capacity_bytes_)) {
    return UnreliableFault::kBadLength;
  }
  if (!info.has_imm) return UnreliableFault::kNone;
  // The immediate needs a WQE before anything of this PDU is written.
  slot_ = receive_queue_.Take();
  return slot_ == ReceiveQueue::kNoSlot ? UnreliableFault::kNoReceiveWqe : UnreliableFault::kNone;
}

void UcResponder::Refuse(UnreliableFault fault) {
  const UnreliableFaultRow& row = LookUpUnreliableFault(fault);
  if (row.counter != nullptr) ++(context_.counters.*row.counter);
  if (row.effect == FaultEffect::kFailReceive) {
    // Placements under way go to the buffer of a WQE that has failed.
    receive_queue_.MarkLost(message_);
    receive_queue_.AddFailure(slot_, message_, row, key_fault_);
    slot_ = ReceiveQueue::kNoSlot;
  } else {
    AbandonMessage();
  }
  stage_ = Stage::kDropping;
}

void UcResponder::Execute(const Pdu& pdu, const OpcodeInfo& info) {
  ReceiveQueue::Placement& placement = receive_queue_.Add();
  placement.message = message_;
  placement.slot = slot_;
  placement.is_last = info.is_last;
  placement.is_write = info.is_write;
  placement.is_done = pdu.payload.length == 0;
  // A placement that fails completes the WQE wherever in the message it stands.
  placement.outcome.opcode = info.is_write ? shm::WcOpcode::kRecvRdmaWithImm : shm::WcOpcode::kRecv;
  if (pdu.payload.length > 0) {
    placement_ = DmaRequest{};
    placement_.token = placement.token;
    placement_.source = pdu.payload;
    placement_.destination = segments_;
    placement_.destination_count = segment_count_;
    placement_.destination_offset = received_bytes_;
    has_placement_ = true;
  }
  received_bytes_ += pdu.payload.length;
  if (!info.is_last) return;

  WorkOutcome& outcome = placement.outcome;
  outcome.byte_len = received_bytes_;
  outcome.src_qpn = context_.attributes.remote_qpn();
  outcome.solicited = pdu.solicited;
  if (info.has_imm) {
    outcome.wc_flags = shm::kWcWithImm;
    outcome.imm_or_rkey = pdu.imm_or_rkey;
  }
  slot_ = ReceiveQueue::kNoSlot;
  stage_ = Stage::kIdle;
}

void UcResponder::AbandonMessage() {
  if (stage_ != Stage::kSend && stage_ != Stage::kWrite) return;
  receive_queue_.MarkLost(message_);
  if (slot_ != ReceiveQueue::kNoSlot) receive_queue_.Return(slot_);
  slot_ = ReceiveQueue::kNoSlot;
  stage_ = Stage::kIdle;
}

void UcResponder::OnMessageBroken(const ReceiveQueue::Broken& broken) {
  bool is_under_way = stage_ == Stage::kSend || stage_ == Stage::kWrite;
  if (!is_under_way || broken.message != message_) return;
  if (broken.slot_is_spent) slot_ = ReceiveQueue::kNoSlot;
  AbandonMessage();
  stage_ = Stage::kDropping;
}

bool UcResponder::PollPlacement(DmaRequest& out) {
  if (!has_placement_) return false;
  has_placement_ = false;
  out = placement_;
  return true;
}

}  // namespace verbena::transport

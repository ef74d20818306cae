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
  if (!CheckPsn(pdu, info) || !CheckSequence(info)) return;
  if (!CheckLength(pdu, info) || !CheckResource(pdu, info)) {
    Drop();
    return;
  }
  Execute(pdu, info);
}

// A gap loses the message under way, and the one it falls into unless that starts here.
// Spec: IBTA 9.8.2.2.1 (UC PSN verification).
bool UcResponder::CheckPsn(const Pdu& pdu, const OpcodeInfo& info) {
  bool is_expected = pdu.psn == epsn_;
  epsn_ = pdu.psn + pdu.psn_count;
  if (is_expected) return true;
  ++context_.counters.out_of_seq_request;
  AbandonMessage();
  stage_ = info.is_first ? Stage::kIdle : Stage::kDropping;
  return info.is_first;
}

// A message that starts ends whatever was under way; one that goes on must have started as the same
// operation.  Spec: IBTA 9.8.2.2.2 (UC opcode sequence).
bool UcResponder::CheckSequence(const OpcodeInfo& info) {
  if (info.is_first) {
    AbandonMessage();
    stage_ = Stage::kIdle;
    return true;
  }
  if ((stage_ == Stage::kSend && info.is_send) || (stage_ == Stage::kWrite && info.is_write)) {
    return true;
  }
  Drop();
  return false;
}

// FIRST and MIDDLE carry whole packets, LAST at least a byte.  Spec: IBTA 9.8.2.2.4.
bool UcResponder::CheckLength(const Pdu& pdu, const OpcodeInfo& info) const {
  if (pdu.psn_count != context_.attributes.PsnsOf(pdu.payload.length)) return false;
  if (!info.is_last && pdu.payload.length % context_.attributes.mtu_bytes() != 0) return false;
  return pdu.payload.length > 0 || (info.is_first && info.is_last);
}

bool UcResponder::CheckResource(const Pdu& pdu, const OpcodeInfo& info) {
  if (info.is_first) {
    ++message_;
    received_bytes_ = 0;
    if (!(info.is_send ? BeginSend() : BeginWrite(pdu))) return false;
  }
  uint64_t total_bytes = uint64_t{received_bytes_} + pdu.payload.length;
  if (info.is_send) {
    if (total_bytes > capacity_bytes_) {
      return FailReceive(WcStatus::kLocLenErr, shm::VendorErr::kReceiveTooShort);
    }
    KeyFault fault = receive_queue_.Resolve(slot_, total_bytes, segments_, &segment_count_);
    return fault == KeyFault::kNone || FailReceive(WcStatus::kLocProtErr, fault);
  }
  if (total_bytes > capacity_bytes_ || (info.is_last && total_bytes != capacity_bytes_)) {
    return false;
  }
  // The immediate needs a WQE before anything of this PDU is written.
  if (!info.has_imm) return true;
  slot_ = receive_queue_.Take();
  return slot_ != ReceiveQueue::kNoSlot;
}

bool UcResponder::BeginSend() {
  slot_ = receive_queue_.Take();
  if (slot_ == ReceiveQueue::kNoSlot) return false;
  stage_ = Stage::kSend;
  capacity_bytes_ = receive_queue_.CapacityBytes(slot_);
  return true;
}

bool UcResponder::BeginWrite(const Pdu& pdu) {
  stage_ = Stage::kWrite;
  capacity_bytes_ = pdu.dma_length;
  segment_count_ = 0;
  if ((context_.attributes.access_flags() & access::kRemoteWrite) == 0) return false;
  if (pdu.dma_length > context_.config.max_message_bytes) return false;
  if (pdu.dma_length == 0) return true;
  segment_count_ = 1;
  return context_.host.ResolveRemote(pdu.rkey, pdu.remote_addr, pdu.dma_length,
                                     access::kRemoteWrite, segments_) == KeyFault::kNone;
}

void UcResponder::Execute(const Pdu& pdu, const OpcodeInfo& info) {
  ReceiveQueue::Placement& placement = receive_queue_.Add();
  placement.message = message_;
  placement.slot = slot_;
  placement.is_last = info.is_last;
  placement.is_write = info.is_write;
  placement.is_done = pdu.payload.length == 0;
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
  outcome.opcode = info.is_write ? shm::WcOpcode::kRecvRdmaWithImm : shm::WcOpcode::kRecv;
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

bool UcResponder::FailReceive(WcStatus status, shm::VendorErr why) {
  // Placements under way go to the buffer of a WQE that has failed.
  receive_queue_.MarkLost(message_);
  receive_queue_.AddFailure(slot_, message_, status, why);
  slot_ = ReceiveQueue::kNoSlot;
  stage_ = Stage::kDropping;
  return false;
}

void UcResponder::Drop() {
  AbandonMessage();
  stage_ = Stage::kDropping;
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
  Drop();
}

bool UcResponder::PollPlacement(DmaRequest& out) {
  if (!has_placement_) return false;
  has_placement_ = false;
  out = placement_;
  return true;
}

}  // namespace verbena::transport

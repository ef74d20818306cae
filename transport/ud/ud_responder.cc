#include "transport/ud/ud_responder.h"

#include "transport/ud/grh.h"

namespace verbena::transport {

void UdResponder::OnPdu(const Pdu& pdu) {
  slot_ = ReceiveQueue::kNoSlot;
  ++datagram_;
  UnreliableFault fault = Check(pdu);
  if (fault == UnreliableFault::kNone) {
    Execute(pdu);
  } else {
    Refuse(fault);
  }
}

UnreliableFault UdResponder::Check(const Pdu& pdu) {
  uint32_t bytes = kGrhBytes + pdu.payload.length;
  if (pdu.path == nullptr || pdu.payload.length > context_.config.port_mtu_bytes) {
    return UnreliableFault::kBadLength;
  }
  if (pdu.qkey != context_.attributes.qkey()) return UnreliableFault::kQKeyViolation;
  slot_ = receive_queue_.Take();
  if (slot_ == ReceiveQueue::kNoSlot) return UnreliableFault::kNoReceiveWqe;
  const uint64_t room = receive_queue_.CapacityBytes(slot_);
  const bool is_cut = bytes > room && context_.config.truncates && room >= kGrhBytes;
  if (bytes > room && !is_cut) return UnreliableFault::kReceiveTooShort;
  placed_bytes_ = is_cut ? static_cast<uint32_t>(room) : bytes;
  key_fault_ = receive_queue_.Resolve(slot_, placed_bytes_, segments_, &segment_count_);
  return key_fault_ == KeyFault::kNone ? UnreliableFault::kNone : UnreliableFault::kMalformedWqe;
}

void UdResponder::Refuse(UnreliableFault fault) {
  const UnreliableFaultRow& row = LookUpUnreliableFault(fault);
  if (row.counter != nullptr) ++(context_.counters.*row.counter);
  if (row.effect == FaultEffect::kFailReceive) {
    receive_queue_.AddFailure(slot_, datagram_, row, key_fault_);
  } else if (slot_ != ReceiveQueue::kNoSlot) {
    receive_queue_.Return(slot_);
  }
}

void UdResponder::Execute(const Pdu& pdu) {
  bool has_imm = pdu.opcode == Opcode::kSendOnlyWithImm;
  ReceiveQueue::Placement& placement = receive_queue_.Add();
  placement.message = datagram_;
  placement.slot = slot_;
  placement.is_last = true;
  WorkOutcome& outcome = placement.outcome;
  outcome.opcode = shm::WcOpcode::kRecv;
  outcome.byte_len = kGrhBytes + pdu.payload.length;
  outcome.src_qpn = pdu.src_qpn;
  outcome.sl = ServiceLevelOf(*pdu.path);
  outcome.wc_flags = has_imm ? shm::kWcGrh | shm::kWcWithImm : shm::kWcGrh;
  outcome.imm_or_rkey = has_imm ? pdu.imm_or_rkey : 0;
  outcome.solicited = pdu.solicited;
  if (placed_bytes_ < outcome.byte_len) {
    outcome.SetError(WcStatus::kLocLenErr, shm::VendorErr::kTruncated);
  }

  placement_ = DmaRequest{};
  placement_.token = placement.token;
  placement_.prefix_bytes = kGrhBytes;
  WriteGrh(*pdu.path, pdu.payload.length, has_imm, placement_.prefix);
  placement_.source = pdu.payload;
  placement_.source.length = placed_bytes_ - kGrhBytes;
  placement_.destination = segments_;
  placement_.destination_count = segment_count_;
  has_placement_ = true;
}

bool UdResponder::PollPlacement(DmaRequest& out) {
  if (!has_placement_) return false;
  has_placement_ = false;
  out = placement_;
  return true;
}

}  // namespace verbena::transport

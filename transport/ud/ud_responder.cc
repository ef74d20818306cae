#include "transport/ud/ud_responder.h"

#include "transport/ud/grh.h"

namespace verbena::transport {

bool UdResponder::Accepts(const Pdu& pdu) {
  if (pdu.path == nullptr || pdu.payload.length > context_.config.port_mtu_bytes) return false;
  if (pdu.qkey == context_.attributes.qkey()) return true;
  ++context_.counters.qkey_violation;
  return false;
}

void UdResponder::OnPdu(const Pdu& pdu) {
  if (!Accepts(pdu)) return;
  ReceiveQueue::SlotIndex slot = receive_queue_.Take();
  if (slot == ReceiveQueue::kNoSlot) return;
  ++datagram_;
  uint32_t bytes = kGrhBytes + pdu.payload.length;
  if (bytes > receive_queue_.CapacityBytes(slot)) {
    receive_queue_.AddFailure(slot, datagram_, WcStatus::kLocLenErr,
                              shm::VendorErr::kReceiveTooShort);
    return;
  }
  uint16_t segment_count = 0;
  KeyFault fault = receive_queue_.Resolve(slot, bytes, segments_, &segment_count);
  if (fault != KeyFault::kNone) {
    receive_queue_.AddFailure(slot, datagram_, WcStatus::kLocProtErr, fault);
    return;
  }
  Execute(pdu, slot, segment_count);
}

void UdResponder::Execute(const Pdu& pdu, ReceiveQueue::SlotIndex slot, uint16_t segment_count) {
  bool has_imm = pdu.opcode == Opcode::kSendOnlyWithImm;
  ReceiveQueue::Placement& placement = receive_queue_.Add();
  placement.message = datagram_;
  placement.slot = slot;
  placement.is_last = true;
  WorkOutcome& outcome = placement.outcome;
  outcome.opcode = shm::WcOpcode::kRecv;
  outcome.byte_len = kGrhBytes + pdu.payload.length;
  outcome.src_qpn = pdu.src_qpn;
  outcome.sl = ServiceLevelOf(*pdu.path);
  outcome.wc_flags = has_imm ? shm::kWcGrh | shm::kWcWithImm : shm::kWcGrh;
  outcome.imm_or_rkey = has_imm ? pdu.imm_or_rkey : 0;
  outcome.solicited = pdu.solicited;

  placement_ = DmaRequest{};
  placement_.token = placement.token;
  placement_.prefix_bytes = kGrhBytes;
  WriteGrh(*pdu.path, pdu.payload.length, has_imm, placement_.prefix);
  placement_.source = pdu.payload;
  placement_.destination = segments_;
  placement_.destination_count = segment_count;
  has_placement_ = true;
}

bool UdResponder::PollPlacement(DmaRequest& out) {
  if (!has_placement_) return false;
  has_placement_ = false;
  out = placement_;
  return true;
}

}  // namespace verbena::transport

#include "transport/uc/uc_requester.h"

#include <algorithm>

namespace verbena::transport {
namespace {

bool IsWrite(uint8_t opcode) {
  auto op = static_cast<shm::WrOpcode>(opcode);
  return op == shm::WrOpcode::kRdmaWrite || op == shm::WrOpcode::kRdmaWriteWithImm;
}
bool IsSend(uint8_t opcode) {
  auto op = static_cast<shm::WrOpcode>(opcode);
  return op == shm::WrOpcode::kSend || op == shm::WrOpcode::kSendWithImm;
}
bool HasImm(uint8_t opcode) {
  auto op = static_cast<shm::WrOpcode>(opcode);
  return op == shm::WrOpcode::kSendWithImm || op == shm::WrOpcode::kRdmaWriteWithImm;
}

}  // namespace

bool UcRequester::Fail(WcStatus status, shm::VendorErr why) {
  send_queue_.FailCurrent(status, why);
  return false;
}

bool UcRequester::CheckWqe() {
  uint8_t opcode = send_queue_.wqe().opcode;
  if (send_queue_.IsLocalOperation()) return true;
  if (!IsWrite(opcode) && !IsSend(opcode)) {
    return Fail(WcStatus::kLocQpOpErr, shm::VendorErr::kBadOpcode);
  }
  uint64_t bytes = send_queue_.PayloadBytes();
  if (bytes > context_.config.max_message_bytes) {
    return Fail(WcStatus::kLocLenErr, shm::VendorErr::kMessageTooLong);
  }
  if (KeyFault fault = send_queue_.ResolvePayload(); fault != KeyFault::kNone) {
    return Fail(WcStatus::kLocProtErr, fault);
  }
  message_bytes_ = static_cast<uint32_t>(bytes);
  sent_bytes_ = 0;
  return true;
}

Opcode UcRequester::OpcodeFor(bool is_first, bool is_last) const {
  uint8_t wr = send_queue_.wqe().opcode;
  bool imm = HasImm(wr);
  if (IsWrite(wr)) {
    if (is_first && is_last) return imm ? Opcode::kWriteOnlyWithImm : Opcode::kWriteOnly;
    if (is_first) return Opcode::kWriteFirst;
    if (is_last) return imm ? Opcode::kWriteLastWithImm : Opcode::kWriteLast;
    return Opcode::kWriteMiddle;
  }
  if (is_first && is_last) return imm ? Opcode::kSendOnlyWithImm : Opcode::kSendOnly;
  if (is_first) return Opcode::kSendFirst;
  if (is_last) return imm ? Opcode::kSendLastWithImm : Opcode::kSendLast;
  return Opcode::kSendMiddle;
}

void UcRequester::MakePdu(Pdu& out) {
  const shm::SendWqe& wqe = send_queue_.wqe();
  uint32_t left = message_bytes_ - sent_bytes_;
  uint32_t length = std::min(left, context_.attributes.pdu_bytes_max());
  bool is_first = sent_bytes_ == 0;
  bool is_last = length == left;

  out = Pdu{};
  out.service = Service::kUc;
  out.opcode = OpcodeFor(is_first, is_last);
  out.solicited = is_last && (wqe.flags & shm::kSendSolicited) != 0;
  out.pkey = context_.attributes.pkey();
  out.src_qpn = context_.config.qpn;
  out.dest_qpn = context_.attributes.remote_qpn();
  out.psn = next_psn_;
  out.psn_count = context_.attributes.PsnsOf(length);
  out.path = &context_.attributes.path();
  if (is_first && IsWrite(wqe.opcode)) {
    out.remote_addr = wqe.remote_addr;
    out.rkey = RKey(wqe.rkey);
    out.dma_length = message_bytes_;
  }
  if (is_last && HasImm(wqe.opcode)) out.imm_or_rkey = wqe.imm_or_rkey;
  out.payload = send_queue_.Slice(sent_bytes_, length);

  send_queue_.OnPduMade(out);
  next_psn_ = next_psn_ + out.psn_count;
  sent_bytes_ += length;
  if (is_last) send_queue_.Finish();
}

}  // namespace verbena::transport

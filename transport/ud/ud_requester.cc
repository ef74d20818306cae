#include "transport/ud/ud_requester.h"

namespace verbena::transport {
namespace {

// A work request's Q_Key with this bit set stands for the QP's own: only a privileged program sets
// such Q_Keys on a QP.  Spec: IBTA 10.2.5.
constexpr uint32_t kControlledQKey = 0x8000'0000;

}  // namespace

bool UdRequester::Fail(WcStatus status, shm::VendorErr why) {
  send_queue_.FailCurrent(status, why);
  return false;
}

bool UdRequester::CheckWqe() {
  const shm::SendWqe& wqe = send_queue_.wqe();
  auto opcode = static_cast<shm::WrOpcode>(wqe.opcode);
  if (opcode != shm::WrOpcode::kSend && opcode != shm::WrOpcode::kSendWithImm) {
    return Fail(WcStatus::kLocQpOpErr, shm::VendorErr::kBadOpcode);
  }
  if (!context_.host.ResolveAh(wqe.ah, &path_)) {
    return Fail(WcStatus::kLocQpOpErr, shm::VendorErr::kBadAh);
  }
  // A datagram is one packet.  Spec: IBTA 9.8.3.1.
  if (send_queue_.PayloadBytes() > context_.attributes.mtu_bytes()) {
    return Fail(WcStatus::kLocLenErr, shm::VendorErr::kMessageTooLong);
  }
  if (KeyFault fault = send_queue_.ResolvePayload(); fault != KeyFault::kNone) {
    return Fail(WcStatus::kLocProtErr, fault);
  }
  return true;
}

void UdRequester::MakePdu(Pdu& out) {
  const shm::SendWqe& wqe = send_queue_.wqe();
  bool has_imm = static_cast<shm::WrOpcode>(wqe.opcode) == shm::WrOpcode::kSendWithImm;
  bool uses_qp_qkey = (wqe.remote_qkey & kControlledQKey) != 0;

  out = Pdu{};
  out.service = Service::kUd;
  out.opcode = has_imm ? Opcode::kSendOnlyWithImm : Opcode::kSendOnly;
  out.solicited = (wqe.flags & shm::kSendSolicited) != 0;
  out.pkey = context_.attributes.pkey();
  out.src_qpn = context_.config.qpn;
  out.dest_qpn = Qpn(wqe.remote_qpn & kMulticastQpn.value);
  out.psn = next_psn_;
  out.path = &path_;
  out.qkey = uses_qp_qkey ? context_.attributes.qkey() : QKey(wqe.remote_qkey);
  if (has_imm) out.imm_or_rkey = wqe.imm_or_rkey;
  out.payload = send_queue_.Slice(0, static_cast<uint32_t>(send_queue_.PayloadBytes()));

  send_queue_.OnPduMade(out);
  next_psn_ = next_psn_.Next();
  send_queue_.Finish();
}

}  // namespace verbena::transport

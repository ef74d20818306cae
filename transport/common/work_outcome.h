// How one work request ended: what a completion says of it.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "core/shm/attach.h"
#include "core/shm/layout.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

struct WorkOutcome {
  uint64_t wr_id = 0;
  uint32_t byte_len = 0;
  uint32_t imm_or_rkey = 0;
  Qpn src_qpn;
  shm::VendorErr vendor_err = shm::VendorErr::kNone;
  uint16_t wc_flags = 0;
  WcStatus status = WcStatus::kSuccess;
  shm::WcOpcode opcode = shm::WcOpcode::kSend;
  uint8_t sl = 0;
  bool solicited = false;

  void SetError(WcStatus error, shm::VendorErr why) {
    status = error;
    vendor_err = why;
  }
  void SetFlushed() { SetError(WcStatus::kWrFlushErr, shm::VendorErr::kFlushed); }
};

// Errors count as solicited: a consumer that waits for solicited completions must see them.
// Spec: IBTA 11.4.2.2 (request completion notification).
inline void WriteCompletion(const WorkOutcome& outcome, Qpn qpn, bool is_send, Completion& out) {
  shm::Cqe& cqe = out.cqe;
  cqe.wr_id = outcome.wr_id;
  cqe.timestamp_ns = 0;
  cqe.byte_len = outcome.byte_len;
  cqe.imm_or_rkey = outcome.imm_or_rkey;
  cqe.qpn = qpn.value;
  cqe.src_qpn = outcome.src_qpn.value;
  cqe.vendor_err = static_cast<uint32_t>(outcome.vendor_err);
  cqe.qp_handle = 0;
  cqe.wc_flags = outcome.wc_flags;
  cqe.pkey_index = 0;
  cqe.status = static_cast<uint8_t>(outcome.status);
  cqe.opcode = static_cast<uint8_t>(outcome.opcode);
  cqe.sl = outcome.sl;
  cqe.is_send = is_send ? 1 : 0;
  cqe.recv_offset_bytes = cqe.place = cqe.reserved = 0;
  out.recv_ticket = 0;
  out.is_send = is_send;
  out.solicited = outcome.solicited || outcome.status != WcStatus::kSuccess;
}

}  // namespace verbena::transport

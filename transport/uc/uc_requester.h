// The requester of a UC QP: SEND and WRITE, cut into PDUs. A WQE is complete once it is sent.
//
// Spec: IBTA 9.8.1.
#pragma once

#include "transport/common/qp_context.h"
#include "transport/common/send_queue.h"
#include "transport/pdu.h"

namespace verbena::transport {

class UcRequester {
 public:
  UcRequester(QpContext& context, SendQueue& send_queue)
      : context_(context), send_queue_(send_queue) {}

  void Start(Psn psn) { next_psn_ = psn; }
  Psn next_psn() const { return next_psn_; }
  // Checks the WQE just opened; one that can't be sent has failed when this returns false.
  bool CheckWqe();
  // The next PDU of the open WQE.
  void MakePdu(Pdu& out);

 private:
  bool Fail(WcStatus status, shm::VendorErr why);
  Opcode OpcodeFor(bool is_first, bool is_last) const;

  QpContext& context_;
  SendQueue& send_queue_;
  Psn next_psn_;
  uint32_t message_bytes_ = 0;
  uint32_t sent_bytes_ = 0;
};

}  // namespace verbena::transport

// The requester of a UD QP: each WQE is one datagram to the address its handle stands for.
//
// Spec: IBTA 9.8.3.1.
#pragma once

#include "transport/common/qp_context.h"
#include "transport/common/send_queue.h"
#include "transport/pdu.h"

namespace verbena::transport {

class UdRequester {
 public:
  UdRequester(QpContext& context, SendQueue& send_queue)
      : context_(context), send_queue_(send_queue) {}

  void Start(Psn psn) { next_psn_ = psn; }
  Psn next_psn() const { return next_psn_; }
  // Checks the WQE just opened; one that can't be sent has failed when this returns false.
  bool CheckWqe();
  // The datagram of the open WQE.
  void MakePdu(Pdu& out);

 private:
  bool Fail(WcStatus status, shm::VendorErr why);

  QpContext& context_;
  SendQueue& send_queue_;
  Psn next_psn_;
  Path path_;
};

}  // namespace verbena::transport

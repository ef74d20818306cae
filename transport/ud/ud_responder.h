// The responder of a UD QP: takes in datagrams that carry its Q_Key, behind 40 bytes of network
// header.
//
// What it can't take it drops. Only a fault of its own receive WQE is told anyone, by that WQE's
// completion.  Spec: IBTA 9.8.3.2.
#pragma once

#include "transport/common/qp_context.h"
#include "transport/common/receive_queue.h"
#include "transport/common/unreliable_faults.h"
#include "transport/pdu.h"

namespace verbena::transport {

class UdResponder {
 public:
  UdResponder(QpContext& context, ReceiveQueue& receive_queue)
      : context_(context), receive_queue_(receive_queue) {}

  void Start() { has_placement_ = false; }
  // Precondition: the opcode is a UD request; the receive queue is not full.
  void OnPdu(const Pdu& pdu);
  bool PollPlacement(DmaRequest& out);

 private:
  // The checks, in order; the first that finds a fault decides.
  UnreliableFault Check(const Pdu& pdu);
  // Does what the fault's row says.
  void Refuse(UnreliableFault fault);
  void Execute(const Pdu& pdu);

  QpContext& context_;
  ReceiveQueue& receive_queue_;
  uint32_t datagram_ = 0;
  // Of the datagram at hand.
  ReceiveQueue::SlotIndex slot_ = ReceiveQueue::kNoSlot;
  uint32_t placed_bytes_ = 0;  // of the datagram in hand, its GRH included
  uint16_t segment_count_ = 0;
  KeyFault key_fault_ = KeyFault::kNone;

  bool has_placement_ = false;
  DmaSegment segments_[shm::kMaxSge];
  DmaRequest placement_;
};

}  // namespace verbena::transport

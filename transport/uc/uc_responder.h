// The responder of a UC QP: takes in SEND and WRITE; what it can't take it drops, message by
// message.
//
// A gap in the PSNs loses the message it fell into; the next FIRST or ONLY starts afresh. Only a
// fault of the responder's own receive WQE is told anyone, by that WQE's completion. Spec:
// IBTA 9.8.2.2 (UC responder), 9.9.3 (responder fault classes).
#pragma once

#include "transport/common/qp_context.h"
#include "transport/common/receive_queue.h"
#include "transport/common/unreliable_faults.h"
#include "transport/pdu.h"

namespace verbena::transport {

class UcResponder {
 public:
  UcResponder(QpContext& context, ReceiveQueue& receive_queue)
      : context_(context), receive_queue_(receive_queue) {}

  void Start(Psn psn);
  Psn expected_psn() const { return epsn_; }
  // Precondition: the opcode is a UC request; the receive queue is not full.
  void OnPdu(const Pdu& pdu);
  bool PollPlacement(DmaRequest& out);
  void OnMessageBroken(const ReceiveQueue::Broken& broken);
  // Gives the message under way up. Whether the rest of it is to be dropped is the caller's matter.
  void AbandonMessage();

 private:
  // What the responder is in the middle of.
  enum class Stage : uint8_t {
    kIdle,      // between messages
    kSend,      // of a SEND; slot_ is taken
    kWrite,     // of a WRITE
    kDropping,  // of a message that is lost: until the next FIRST or ONLY
  };
  // The checks, in order; the first that finds a fault decides.
  UnreliableFault Check(const Pdu& pdu, const OpcodeInfo& info);
  UnreliableFault CheckPsn(const Pdu& pdu, const OpcodeInfo& info);
  UnreliableFault CheckSequence(const OpcodeInfo& info);
  UnreliableFault CheckLength(const Pdu& pdu, const OpcodeInfo& info) const;
  UnreliableFault CheckResource(const Pdu& pdu, const OpcodeInfo& info);
  UnreliableFault CheckReceive(const Pdu& pdu);
  UnreliableFault CheckWrite(const Pdu& pdu, const OpcodeInfo& info);
  UnreliableFault BeginSend();
  UnreliableFault BeginWrite(const Pdu& pdu);
  // Does what the fault's row says.
  void Refuse(UnreliableFault fault);
  void Execute(const Pdu& pdu, const OpcodeInfo& info);

  QpContext& context_;
  ReceiveQueue& receive_queue_;
  Psn epsn_;
  Stage stage_ = Stage::kIdle;
  uint32_t message_ = 0;  // number of the message under way
  ReceiveQueue::SlotIndex slot_ = ReceiveQueue::kNoSlot;
  uint32_t received_bytes_ = 0;
  KeyFault key_fault_ = KeyFault::kNone;  // which rule refused, with kMalformedWqe
  uint64_t capacity_bytes_ = 0;           // of the receive WQE, or the WRITE's DMA length
  bool has_placement_ = false;
  uint16_t segment_count_ = 0;
  DmaSegment segments_[shm::kMaxSge];
  DmaRequest placement_;
};

}  // namespace verbena::transport

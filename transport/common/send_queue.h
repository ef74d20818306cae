// The send queue of an unreliable service: takes WQEs, remembers those whose payload is not read
// yet, completes them in order, flushes the rest.
//
// A WQE is copied once, then: Fetch → (checks by the role) → ResolvePayload → OnPduMade… → Finish,
// or FailCurrent. It completes when it is finished and every PDU's payload was released.
#pragma once

#include <cstdint>

#include "transport/common/fixed_fifo.h"
#include "transport/common/qp_context.h"
#include "transport/common/work_outcome.h"

namespace verbena::transport {

class SendQueue {
 public:
  // WQEs in flight; more wait in the ring until the port has released some.
  static constexpr uint32_t kMaxInFlight = 64;

  explicit SendQueue(QpContext& context) : context_(context) {}

  // --- what the role does
  // -------------------------------------------------------------------------
  void OnDoorbell() { may_hold_work_ = true; }
  // Whether Fetch might find a WQE.
  bool HasWork() const { return may_hold_work_ && !is_broken_ && !in_flight_.IsFull(); }
  // Opens the next WQE. False: none, or the ring lies (the QP is in the error state then).
  // Precondition: !IsOpen(), HasWork().
  bool Fetch();
  // A WQE is open: fetched, and not all its PDUs made.
  bool IsOpen() const { return !in_flight_.IsEmpty() && in_flight_.back().is_open; }

  // The open WQE.
  const shm::SendWqe& wqe() const { return work_.wqe; }
  // It is a bind or an invalidation; the rest is about those. Nothing overtakes one, and it is
  // done once: at its turn, or when all older WQEs are complete, and then ends here or in
  // OnKeysSettled.  Spec: IBTA 10.8.3.3.
  bool IsLocalOperation() const {
    return IsOpen() && transport::IsLocalOperation(static_cast<shm::WrOpcode>(work_.wqe.opcode));
  }
  bool MayExecuteLocal() const {
    const bool waits_for_older =
        static_cast<shm::WrOpcode>(work_.wqe.opcode) == shm::WrOpcode::kLocalInv;
    return !awaits_settled_keys_ && (!waits_for_older || AreOlderDone());
  }
  void ExecuteLocal();
  void OnKeysSettled();
  uint64_t PayloadBytes() const;
  // kNone: the payload may be read by Slice.  Spec: IBTA 10.6.3.
  KeyFault ResolvePayload();
  Payload Slice(uint32_t offset, uint32_t length) const;
  void OnPduMade(const Pdu& pdu);
  void Finish() { in_flight_.back().is_open = false; }
  // Completes the open WQE in error; what follows it is flushed.
  void FailCurrent(WcStatus status, shm::VendorErr why);

  // --- what the port reports
  // ----------------------------------------------------------------------
  void OnPayloadReleased(Psn psn);
  // True: the PDU's WQE was still in flight, and completes in error now.
  bool OnSourceFault(Psn psn);

  // --- completions
  // -------------------------------------------------------------------------------- `flush`: the
  // QP is in SQE or ERR. Unsignalled successes pass in silence.
  bool PollCompletion(bool flush, Completion& out);
  bool IsIdle() const { return in_flight_.IsEmpty(); }

  // Forgets everything: the ring starts again at zero.
  void Reset();

 private:
  struct InFlight {
    WorkOutcome outcome;
    Psn first_psn;
    Psn last_psn;
    uint32_t unreleased_pdus = 0;
    bool has_pdus = false;
    bool is_open = true;
    bool is_signaled = false;
  };
  // Index of the WQE that made the PDU, or in_flight_.size().
  uint32_t Find(Psn psn) const;
  bool AreOlderDone() const;
  bool PollFlush(Completion& out);

  QpContext& context_;
  bool may_hold_work_ = false;
  bool awaits_settled_keys_ = false;  // the open WQE does
  bool is_broken_ = false;            // the ring lied: it is not looked at again before a reset
  uint16_t segment_count_ = 0;
  FixedFifo<InFlight, kMaxInFlight> in_flight_;
  DmaSegment segments_[shm::kMaxSge];
  SendWork work_;
};

}  // namespace verbena::transport

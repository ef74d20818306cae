// The receive side of an unreliable service: receive WQEs in use, placements of payload under way,
// completions in order of arrival, flush.
//
// A WQE taken for a message that then gets lost goes back, and the next message takes it: nothing
// was received. Placements are carried out in order, so a reused buffer is never written by an
// earlier message after a later one.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/common/fixed_fifo.h"
#include "transport/common/qp_context.h"
#include "transport/common/unreliable_faults.h"
#include "transport/common/work_outcome.h"

namespace verbena::transport {

class ReceiveQueue {
 public:
  // Placements under way; the port holds further PDUs back (CanAccept).
  static constexpr uint32_t kMaxPlacements = 16;
  // One WQE for each placement, and one for the message being assembled.
  static constexpr uint32_t kSlots = kMaxPlacements + 1;
  using SlotIndex = uint8_t;
  static constexpr SlotIndex kNoSlot = 0xff;

  explicit ReceiveQueue(QpContext& context) : context_(context) {}

  // --- receive WQEs
  // ------------------------------------------------------------------------------- The oldest WQE
  // not in use, or kNoSlot. A ring that lies takes the QP to the error state.
  SlotIndex Take();
  void Return(SlotIndex slot);
  uint64_t CapacityBytes(SlotIndex slot) const;
  // Segments of the first `bytes` of the WQE's buffers: a list may reach beyond its regions as long
  // as no data does. Writes at most shm::kMaxSge. Precondition: bytes <= CapacityBytes(slot).
  KeyFault Resolve(SlotIndex slot, uint64_t bytes, DmaSegment* out, uint16_t* out_count);

  // --- placements
  // ---------------------------------------------------------------------------------
  struct Placement {
    WorkOutcome outcome;       // without wr_id: the slot knows it
    uint32_t message = 0;      // which message of the role it belongs to
    SlotIndex slot = kNoSlot;  // the message's WQE: of every placement of a SEND
    bool is_last = false;      // completes the WQE, if there is one
    bool is_done = false;      // nothing to wait for
    bool is_lost = false;      // its message will not complete
    bool is_write = false;     // remote memory is its destination
    DmaToken token = 0;
  };
  bool IsFull() const { return placements_.IsFull(); }
  // Appends one, with its token. Precondition: !IsFull().
  Placement& Add();
  // Appends the completion in error of `slot` and takes the QP to the error state: a receive queue
  // knows no other. `why` goes into the completion where the row has no vendor_err of its own.
  // Precondition: the row's effect is kFailReceive.  Spec: IBTA 10.3.1.7.
  void AddFailure(SlotIndex slot, uint32_t message, const UnreliableFaultRow& row,
                  shm::VendorErr why);

  // Books the result. Returns the message it broke, if it did: the role drops what follows of it.
  struct Broken {
    bool is_broken = false;
    uint32_t message = 0;
    bool slot_is_spent = false;  // its WQE completes in error: the role must not return it
  };
  Broken OnDmaDone(const DmaResult& result);
  // The role gave the message up: its placements under way complete nothing.
  void MarkLost(uint32_t message);

  // --- completions
  // --------------------------------------------------------------------------------
  bool PollCompletion(Completion& out);
  // In ERR, after PollCompletion said no.
  bool PollFlush(Completion& out);
  bool IsIdle() const { return placements_.IsEmpty(); }

  void Reset();

 private:
  struct Slot {
    enum class Use : uint8_t { kFree, kTaken, kSpare };
    uint64_t wr_id = 0;
    uint32_t sequence = 0;  // in order of fetching
    Use use = Use::kFree;
    std::vector<shm::Sge> sges;
  };
  SlotIndex OldestSpare() const;
  SlotIndex FetchIntoFreeSlot();
  void Complete(SlotIndex slot);
  Broken FailDestination(uint32_t index, const UnreliableFaultRow& row);
  // What is wrong with one receive does not end the QP.
  bool FailsAlone() const {
    return context_.config.service == Service::kUd && context_.config.truncates;
  }

  QpContext& context_;
  bool is_broken_ = false;
  uint8_t spare_count_ = 0;
  uint32_t next_sequence_ = 0;
  DmaToken next_token_ = 0;  // never reset: results of a QP's former life match nothing
  Slot slots_[kSlots];
  FixedFifo<Placement, kMaxPlacements> placements_;
};

}  // namespace verbena::transport

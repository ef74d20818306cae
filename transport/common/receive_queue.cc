#include "transport/common/receive_queue.h"

namespace verbena::transport {

ReceiveQueue::SlotIndex ReceiveQueue::OldestSpare() const {
  SlotIndex oldest = kNoSlot;
  for (SlotIndex i = 0; i < kSlots; ++i) {
    if (slots_[i].use != Slot::Use::kSpare) continue;
    if (oldest == kNoSlot ||
        static_cast<int32_t>(slots_[i].sequence - slots_[oldest].sequence) < 0) {
      oldest = i;
    }
  }
  return oldest;
}

ReceiveQueue::SlotIndex ReceiveQueue::FetchIntoFreeSlot() {
  SlotIndex index = 0;
  while (index < kSlots && slots_[index].use != Slot::Use::kFree) ++index;
  if (index == kSlots || is_broken_) return kNoSlot;
  RecvWork work;
  FetchResult result = context_.host.FetchRecv(work);
  if (result == FetchResult::kInvalid) {
    is_broken_ = true;
    context_.EnterFatalError();
  }
  if (result != FetchResult::kOk) return kNoSlot;
  Slot& slot = slots_[index];
  slot.wr_id = work.wr_id;
  slot.sequence = next_sequence_++;
  slot.use = Slot::Use::kTaken;
  VERBENA_CHECK(work.num_sge <= shm::kMaxSge);
  slot.sges.assign(work.sge, work.sge + work.num_sge);
  return index;
}

ReceiveQueue::SlotIndex ReceiveQueue::Take() {
  if (spare_count_ == 0) return FetchIntoFreeSlot();
  SlotIndex slot = OldestSpare();
  slots_[slot].use = Slot::Use::kTaken;
  --spare_count_;
  return slot;
}

void ReceiveQueue::Return(SlotIndex slot) {
  VERBENA_CHECK(slots_[slot].use == Slot::Use::kTaken);
  slots_[slot].use = Slot::Use::kSpare;
  ++spare_count_;
}

void ReceiveQueue::Complete(SlotIndex slot) {
  VERBENA_CHECK(slots_[slot].use == Slot::Use::kTaken);
  slots_[slot].use = Slot::Use::kFree;
  context_.host.ReleaseRecv(1);
}

uint64_t ReceiveQueue::CapacityBytes(SlotIndex slot) const {
  uint64_t bytes = 0;
  for (const shm::Sge& sge : slots_[slot].sges) bytes += sge.length;
  return bytes;
}

KeyFault ReceiveQueue::Resolve(SlotIndex slot, uint64_t bytes, DmaSegment* out,
                               uint16_t* out_count) {
  const std::vector<shm::Sge>& sges = slots_[slot].sges;
  shm::Sge needed[shm::kMaxSge];
  const uint32_t count = TrimSges(sges.data(), static_cast<uint32_t>(sges.size()), bytes, needed);
  *out_count = 0;
  if (count == 0) return KeyFault::kNone;
  return context_.host.ResolveLocal(needed, count, access::kLocalWrite, out, out_count);
}

ReceiveQueue::Placement& ReceiveQueue::Add() {
  Placement& placement = placements_.Push();
  placement.token = next_token_++;
  return placement;
}

void ReceiveQueue::AddFailure(SlotIndex slot, uint32_t message, const UnreliableFaultRow& row,
                              shm::VendorErr why) {
  VERBENA_CHECK(row.effect == FaultEffect::kFailReceive);
  Placement& placement = Add();
  placement.message = message;
  placement.slot = slot;
  placement.is_last = true;
  placement.is_done = true;
  placement.outcome.opcode = shm::WcOpcode::kRecv;
  placement.outcome.SetError(row.status,
                             row.vendor_err == shm::VendorErr::kNone ? why : row.vendor_err);
  if (!FailsAlone()) context_.EnterError();
}

namespace {

UnreliableFault FaultOf(DmaStatus status, bool is_write) {
  if (status == DmaStatus::kOk) return UnreliableFault::kNone;
  if (status == DmaStatus::kSourceFault) return UnreliableFault::kSourceFault;
  return is_write ? UnreliableFault::kWriteTargetFault : UnreliableFault::kReceiveMemoryFault;
}

}  // namespace

ReceiveQueue::Broken ReceiveQueue::OnDmaDone(const DmaResult& result) {
  for (uint32_t i = 0; i < placements_.size(); ++i) {
    Placement& placement = placements_[i];
    if (placement.token != result.token || placement.is_done) continue;
    placement.is_done = true;
    const UnreliableFaultRow& row =
        LookUpUnreliableFault(FaultOf(result.status, placement.is_write));
    if (row.effect == FaultEffect::kNone) return {};
    if (row.effect == FaultEffect::kFailReceive) return FailDestination(i, row);
    MarkLost(placement.message);
    return {true, placement.message, false};
  }
  return {};
}

void ReceiveQueue::MarkLost(uint32_t message) {
  for (uint32_t i = 0; i < placements_.size(); ++i) {
    if (placements_[i].message == message) placements_[i].is_lost = true;
  }
}

// The WQE's own buffer could not be written: it completes here, and nothing after it succeeds,
// unless it fails alone.
ReceiveQueue::Broken ReceiveQueue::FailDestination(uint32_t index, const UnreliableFaultRow& row) {
  Placement& failed = placements_[index];
  if (failed.is_lost) return {};  // the WQE is not this message's any more
  failed.is_last = true;
  failed.outcome.SetError(row.status, row.vendor_err);
  for (uint32_t i = index + 1; i < placements_.size(); ++i) {
    Placement& later = placements_[i];
    if (later.message == failed.message) {
      later.slot = kNoSlot;
      later.is_last = false;
    } else if (later.outcome.status == WcStatus::kSuccess && !FailsAlone()) {
      later.outcome.SetFlushed();
    }
  }
  if (!FailsAlone()) context_.EnterError();
  return {true, failed.message, true};
}

bool ReceiveQueue::PollCompletion(Completion& out) {
  while (!placements_.IsEmpty() && placements_.front().is_done) {
    Placement& placement = placements_.front();
    bool completes = placement.is_last && placement.slot != kNoSlot;
    bool is_reported = completes && !placement.is_lost;
    if (is_reported) {
      placement.outcome.wr_id = slots_[placement.slot].wr_id;
      WriteCompletion(placement.outcome, context_.config.qpn, /*is_send=*/false, out);
      Complete(placement.slot);
    } else if (completes) {
      Return(placement.slot);
    }
    placements_.Pop();
    if (is_reported) return true;
  }
  return false;
}

bool ReceiveQueue::PollFlush(Completion& out) {
  if (!placements_.IsEmpty()) return false;
  // WQEs still in an SRQ belong to all its QPs, not to this one.
  if (spare_count_ == 0 && context_.config.has_srq) return false;
  SlotIndex slot = Take();
  if (slot == kNoSlot) return false;
  WorkOutcome outcome;
  outcome.wr_id = slots_[slot].wr_id;
  outcome.opcode = shm::WcOpcode::kRecv;
  outcome.SetFlushed();
  WriteCompletion(outcome, context_.config.qpn, /*is_send=*/false, out);
  Complete(slot);
  return true;
}

void ReceiveQueue::Reset() {
  for (Slot& slot : slots_) {
    // An SRQ outlives the reset: what this QP took from it must not shrink it for ever.
    if (slot.use != Slot::Use::kFree && context_.config.has_srq) context_.host.ReleaseRecv(1);
    slot.use = Slot::Use::kFree;
  }
  spare_count_ = 0;
  is_broken_ = false;
  placements_.Clear();
}

}  // namespace verbena::transport

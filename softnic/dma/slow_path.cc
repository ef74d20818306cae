// The part of ProcessDma that keeps clients with hanging memory away from all others.
//
// Invariants: a stream in blocked_ has operations in other threads' hands or in a slow process's
// queue, and all its later ones wait behind; a slow process has at most one unit out at a time, so
// that its atomics never run concurrently.
#include <algorithm>

#include "core/base/check.h"
#include "softnic/dma/process_dma.h"

namespace verbena::softnic {

using transport::DmaStatus;

namespace {

constexpr int64_t kQuickNs = 1'000'000;  // the same millisecond that makes the watchdog act

}  // namespace

void ProcessDma::MarkSlow(TargetProcess* process) {
  process->quick_streak = 0;
  if (process->slow) return;
  process->slow = true;
  process->times_slow += 1;
  slow_.push_back(process);
}

// A client that hangs again after every good turn costs its neighbours a millisecond each time, so
// each time it has to prove itself twice as long.
bool ProcessDma::HasProvenFast(const TargetProcess& process) const {
  uint32_t needed = process.times_slow < 14 ? 1u << process.times_slow : kStreakMax;
  return process.waiting.empty() && process.charges == 0 && process.quick_streak >= needed;
}

// The thread that leads now took over from one that hung in `running_`.
void ProcessDma::AdoptHungUnit() {
  CopyUnit* unit = running_;
  running_ = nullptr;
  TargetProcess* hung = crew_->CurrentTarget(unit);
  // It may have come out meanwhile; then either end may have been the cause.
  if (hung == nullptr) hung = unit->destination != nullptr ? unit->destination : unit->source;
  MarkSlow(hung);
  hung->charges += 1;
  (hung == unit->source ? unit->holds_source : unit->holds_destination) = true;
  unit->hung_at = hung;
  for (uint32_t i = 0; i < unit->count; ++i) blocked_[unit->ops[i]->stream].held += 1;
  out_units_.push_back(unit);
}

// Moves the operation that heads `lane` off the fast path if it must not run there.
bool ProcessDma::DivertIfHeldBack(uint32_t lane) {
  if (slow_.empty() && blocked_.empty()) return false;
  DmaOp* op = lanes_[lane].first;
  auto it = blocked_.find(op->stream);
  if (it != blocked_.end()) {
    it->second.waiting.push_back(PopLane(lane));
    return true;
  }
  if (op->IsMapped() || op->kind == DmaOp::Kind::kFailed) return false;
  TargetProcess* slow = nullptr;
  if (op->source != nullptr && op->source->slow) slow = op->source;
  if (op->destination != nullptr && op->destination->slow) slow = op->destination;
  if (slow == nullptr) return false;
  blocked_[op->stream].held = 1;
  slow->waiting.push_back(PopLane(lane));
  return true;
}

// The stream's operations in others' hands are done: its later ones go back to the head of its
// lane.
void ProcessDma::Unblock(uint64_t stream) {
  auto it = blocked_.find(stream);
  if (it == blocked_.end() || it->second.held != 0) return;
  std::deque<DmaOp*> waiting = std::move(it->second.waiting);
  blocked_.erase(it);
  for (auto op = waiting.rbegin(); op != waiting.rend(); ++op) PushFront(*op);
}

void ProcessDma::CollectFinished() {
  crew_->TakeFinished(&finished_);
  for (CopyUnit* unit : finished_) {
    std::erase(out_units_, unit);
    bool quick = unit->elapsed_ns != 0 && unit->elapsed_ns < kQuickNs;
    auto release = [&](TargetProcess* process, bool held) {
      if (!held) return;
      VERBENA_CHECK(process->charges > 0);
      process->charges -= 1;
      process->quick_streak = quick ? process->quick_streak + 1 : 0;
    };
    release(unit->source, unit->holds_source);
    release(unit->destination, unit->holds_destination);
    uint64_t streams[kUnitOpsMax];
    for (uint32_t i = 0; i < unit->count; ++i) {
      DmaOp* op = unit->ops[i];
      streams[i] = op->stream;
      BlockedStream& blocked = blocked_[op->stream];
      blocked.held -= 1;
      if (op->is_revoked && op->progress_bytes < op->length_bytes) {
        op->status = DmaStatus::kSourceFault;
      }
      bool unfinished = op->kind == DmaOp::Kind::kCopy && op->status == DmaStatus::kOk &&
                        op->progress_bytes < op->length_bytes;
      if (unfinished) {
        blocked.waiting.push_front(op);
      } else {
        Report(op);
      }
    }
    for (uint32_t i = 0; i < unit->count; ++i) Unblock(streams[i]);
    free_units_.push_back(unit);
  }
  finished_.clear();
}

// A unit that hangs at one end no longer counts against the other: whoever merely talked to a
// hanging client goes on with everybody else.
void ProcessDma::ReleaseHungCharges() {
  for (CopyUnit* unit : out_units_) {
    if (unit->hung_at != nullptr || !unit->stuck.load(std::memory_order_acquire)) continue;
    TargetProcess* hung = crew_->CurrentTarget(unit);
    if (hung == nullptr) continue;
    unit->hung_at = hung;
    MarkSlow(hung);
    bool at_source = hung == unit->source && hung != unit->destination;
    bool& other_held = at_source ? unit->holds_destination : unit->holds_source;
    bool& hung_held = at_source ? unit->holds_source : unit->holds_destination;
    if (other_held) (at_source ? unit->destination : unit->source)->charges -= 1;
    other_held = false;
    if (!hung_held) hung->charges += 1;
    hung_held = true;
  }
}

// Gives the process's next operation to a worker. False: no thread for it now.
bool ProcessDma::StartSlow(TargetProcess* process) {
  while (!process->waiting.empty() && process->charges == 0) {
    DmaOp* op = process->waiting.front();
    process->waiting.pop_front();
    TargetProcess* other = op->source == process ? op->destination : op->source;
    if (other == process || (other != nullptr && !other->slow)) other = nullptr;
    if (other != nullptr && other->charges != 0) {
      // It waits for the other one, and this one's later operations do not.
      other->waiting.push_back(op);
      continue;
    }
    CopyUnit* unit = NewUnit();
    unit->ops[0] = op;
    unit->count = 1;
    unit->chunk_bytes[0] = static_cast<uint32_t>(
        std::min<uint64_t>(op->length_bytes - op->progress_bytes, kBounceBytes));
    unit->source = op->source;
    unit->destination = op->destination;
    unit->source_assistant = op->source_assistant;
    unit->destination_assistant = op->destination_assistant;
    unit->holds_source = op->source != nullptr && op->source->slow;
    unit->holds_destination =
        op->destination != nullptr && op->destination->slow && op->destination != op->source;
    if (!crew_->Assign(unit)) {
      process->waiting.push_front(op);
      free_units_.push_back(unit);
      return false;
    }
    if (unit->holds_source) unit->source->charges += 1;
    if (unit->holds_destination) unit->destination->charges += 1;
    out_units_.push_back(unit);
  }
  return true;
}

// Whether a session waits for this operation with a fence, and it is another's hang that holds it.
static bool IsHeldUp(const DmaOp::Hold& hold, const TargetProcess* hung) {
  return hold.session != nullptr && hold.session->epochs.size() > 1 &&
         hold.session->process != hung;
}

// Whether others may be let go of the process: a system call in its memory is taken to hang after a
// tick of the watchdog, but a helper may be waiting for a CPU for some time.
bool ProcessDma::MayHang(const TargetProcess& process) const {
  if (process.hanging_helpers.load(std::memory_order_acquire) != 0) return true;
  return std::any_of(out_units_.begin(), out_units_.end(), [&](const CopyUnit* unit) {
    return (unit->source == &process && unit->source_assistant == nullptr) ||
           (unit->destination == &process && unit->destination_assistant == nullptr);
  });
}

// An operation that waits for a hanging client: the other end need not wait with it. It is reported
// in its turn, as if the peer's payload could not be read.
void ProcessDma::RevokeQueued(DmaOp* op) {
  TargetProcess* hung = nullptr;
  for (TargetProcess* end : {op->source, op->destination}) {
    if (end != nullptr && end->slow && end->charges != 0 && MayHang(*end)) hung = end;
  }
  if (hung == nullptr || op->kind != DmaOp::Kind::kCopy) return;
  for (DmaOp::Hold& hold : op->holds) {
    if (!IsHeldUp(hold, hung)) continue;
    (&hold == &op->holds[0] ? op->source : op->destination) = nullptr;  // may be gone soon
    ReleaseHold(&hold);
    op->kind = DmaOp::Kind::kFailed;
    op->status = DmaStatus::kSourceFault;
    op->is_revoked = true;
  }
}

// What was revoked comes again, and what was to come after it does then.
void ProcessDma::RevokeBehind(uint64_t stream) {
  auto revoke = [stream](DmaOp* op) {
    if (op->stream != stream || op->kind == DmaOp::Kind::kProbe) return;
    if (op->kind == DmaOp::Kind::kFailed) return;
    op->kind = DmaOp::Kind::kFailed;
    op->status = DmaStatus::kSourceFault;
    op->is_revoked = true;
  };
  if (auto it = blocked_.find(stream); it != blocked_.end()) {
    for (DmaOp* op : it->second.waiting) revoke(op);
  }
  for (DmaOp* op = lanes_[LaneOf(stream)].first; op != nullptr; op = op->next) revoke(op);
}

// A unit in a hanging thread's hands: its source end is free once all is read, its destination end
// once the thread can't write any more, and NIC memory, which may be at either end beside the
// process that hangs, once neither is left to do there.
void ProcessDma::RevokeUnit(CopyUnit* unit) {
  TargetProcess* hung = unit->hung_at;
  if (hung == nullptr) return;
  if (!MayHang(*hung)) return;
  bool any = false, any_of_nic = false;
  for (uint32_t i = 0; i < unit->count; ++i) {
    for (const DmaOp::Hold& hold : unit->ops[i]->holds) {
      if (!IsHeldUp(hold, hung)) continue;
      any = true;
      any_of_nic = any_of_nic || hold.session == nic_session_;
    }
  }
  if (!any) return;
  const bool at_source = hung == unit->source;
  if (!at_source && !unit->sources_done.load(std::memory_order_acquire)) return;
  if (at_source || any_of_nic) {
    // Revoke, then look: either the thread still hangs where it was seen to and will see the flag
    // before it goes elsewhere, or it has moved on and is soon done.
    unit->revoked.store(true, std::memory_order_seq_cst);
    if (crew_->CurrentTarget(unit) != hung) return;
  }
  for (uint32_t i = 0; i < unit->count; ++i) {
    DmaOp* op = unit->ops[i];
    for (DmaOp::Hold& hold : op->holds) {
      if (!IsHeldUp(hold, hung)) continue;
      ReleaseHold(&hold);
      op->is_revoked = true;
    }
  }
}

// A client that deregisters memory or goes away must not wait for a peer that hangs.
void ProcessDma::RevokeForFences() {
  if (waiting_fences_ == 0) return;
  for (CopyUnit* unit : out_units_) RevokeUnit(unit);
  for (TargetProcess* process : slow_) {
    for (DmaOp* op : process->waiting) RevokeQueued(op);
  }
  for (auto& [stream, blocked] : blocked_) {
    for (DmaOp* op : blocked.waiting) RevokeQueued(op);
  }
  for (TargetProcess* process : slow_) ReportRevoked(process);
}

// At once: the queue may be that of the end which was let go, and it leaves with its last session.
// Earlier operations of these streams there are none, and later ones wait in blocked_.
void ProcessDma::ReportRevoked(TargetProcess* process) {
  std::deque<DmaOp*>& waiting = process->waiting;
  auto first = std::stable_partition(waiting.begin(), waiting.end(), [](const DmaOp* op) {
    return op->kind != DmaOp::Kind::kFailed;
  });
  const std::vector<DmaOp*> revoked(first, waiting.end());
  waiting.erase(first, waiting.end());
  for (DmaOp* op : revoked) {
    const uint64_t stream = op->stream;
    blocked_[stream].held -= 1;
    Report(op);
    Unblock(stream);
  }
}

void ProcessDma::RunSlow() {
  ReleaseHungCharges();
  RevokeForFences();
  for (TargetProcess* process : slow_) {
    if (!StartSlow(process)) break;
  }
  std::erase_if(slow_, [this](TargetProcess* process) {
    if (!HasProvenFast(*process)) return false;
    process->slow = false;
    return true;
  });
}

}  // namespace verbena::softnic

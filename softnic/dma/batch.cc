// The leader's part of ProcessDma: units out of lanes, carried out at once.
#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "softnic/dma/process_dma.h"

namespace verbena::softnic {

using transport::DmaStatus;

namespace {

bool Overlaps(const std::vector<iovec>& a, const std::vector<iovec>& b) {
  for (const iovec& x : a) {
    auto x0 = reinterpret_cast<uintptr_t>(x.iov_base);
    for (const iovec& y : b) {
      auto y0 = reinterpret_cast<uintptr_t>(y.iov_base);
      if (x0 < y0 + y.iov_len && y0 < x0 + x.iov_len) return true;
    }
  }
  return false;
}

}  // namespace

CopyUnit* ProcessDma::NewUnit() {
  CopyUnit* unit;
  if (free_units_.empty()) {
    unit = &unit_storage_.emplace_back();
  } else {
    unit = free_units_.back();
    free_units_.pop_back();
  }
  unit->count = 0;
  unit->source = unit->destination = nullptr;
  unit->source_assistant = unit->destination_assistant = nullptr;
  unit->elapsed_ns = 0;
  unit->stuck.store(false, std::memory_order_relaxed);
  unit->sources_done.store(false, std::memory_order_relaxed);
  unit->revoked.store(false, std::memory_order_relaxed);
  unit->holds_source = unit->holds_destination = false;
  unit->hung_at = nullptr;
  return unit;
}

DmaOp* ProcessDma::PopLane(uint32_t lane) {
  DmaOp* op = lanes_[lane].first;
  lanes_[lane].first = op->next;
  queued_ -= 1;
  if (op->next == nullptr) {
    lanes_[lane].last = nullptr;
    lane_mask_ &= ~(1ull << lane);
  }
  op->next = nullptr;
  return op;
}

// Whether `op` may be carried out in one go with the unit's operations: all reads come before all
// writes then, so it must not read what an earlier one writes.
bool ProcessDma::Fits(const CopyUnit& unit, const DmaOp& op) const {
  if (op.kind != DmaOp::Kind::kCopy || unit.ops[0]->kind != DmaOp::Kind::kCopy) return false;
  if (op.destination != unit.destination) return false;
  if (op.destination_assistant != unit.destination_assistant) return false;
  if (op.source_is_mapped || op.destination_is_mapped || unit.ops[0]->source_is_mapped ||
      unit.ops[0]->destination_is_mapped) {
    return false;  // the same page has two addresses
  }
  if (op.IsMixed() || unit.ops[0]->IsMixed()) return false;
  // Nor if it has no source and the others have: it would wait for theirs, should that hang.
  if (op.source != unit.source || op.source_assistant != unit.source_assistant) return false;
  if (op.source == nullptr || op.source != unit.destination) return true;
  for (uint32_t i = 0; i < unit.count; ++i) {
    if (Overlaps(op.source_pieces, unit.ops[i]->destination_pieces)) return false;
  }
  return true;
}

// Takes operations from the head of `lane` while they fit. False: the unit is full.
bool ProcessDma::TakeFromLane(uint32_t lane, CopyUnit* unit, uint64_t* bytes, uint32_t* reads,
                              uint32_t* writes) {
  while (lanes_[lane].first != nullptr) {
    if (DivertIfHeldBack(lane)) continue;
    DmaOp* op = lanes_[lane].first;
    if (op->kind == DmaOp::Kind::kFailed) {
      // Its report must not overtake those of the unit's operations.
      if (unit->count != 0) return false;
      Report(PopLane(lane));
      continue;
    }
    if (op->IsMapped()) {
      if (unit->count == 0) RunMapped(lane, bytes);
      return false;
    }
    uint32_t op_reads = static_cast<uint32_t>(op->source_pieces.size());
    uint32_t op_writes = static_cast<uint32_t>(op->destination_pieces.size());
    uint64_t left = op->length_bytes - op->progress_bytes;
    if (unit->count != 0) {
      if (unit->count == kUnitOpsMax || *bytes + left > kBounceBytes ||
          *reads + op_reads > kUnitPiecesMax || *writes + op_writes > kUnitPiecesMax) {
        return false;
      }
      if (!Fits(*unit, *op)) return true;  // another lane may have one that does
    }
    uint64_t chunk = std::min<uint64_t>(left, kBounceBytes);
    PopLane(lane);
    unit->ops[unit->count] = op;
    unit->chunk_bytes[unit->count] = static_cast<uint32_t>(chunk);
    unit->count += 1;
    unit->source = op->source;
    unit->source_assistant = op->source_assistant;
    unit->destination = op->destination;
    unit->destination_assistant = op->destination_assistant;
    *bytes += chunk;
    *reads += op_reads;
    *writes += op_writes;
    if (op->kind != DmaOp::Kind::kCopy || chunk < left) return false;
  }
  return true;
}

// Round-robin over lanes, so that a stream of large copies delays others by one system call each.
// Whose lane did not fit into this unit begins one of the next: only who begins loses its turn.
// False: there was nothing for a unit; *mapped_bytes grows by what was moved without one.
bool ProcessDma::BuildUnit(CopyUnit* unit, uint64_t* mapped_bytes) {
  uint64_t bytes = 0;
  uint32_t reads = 0, writes = 0;
  uint32_t from = next_lane_;
  uint64_t untried = ~uint64_t{0};
  while ((lane_mask_ & untried) != 0) {
    const uint64_t rotated = std::rotr(lane_mask_ & untried, static_cast<int>(from));
    const uint32_t lane = (from + static_cast<uint32_t>(std::countr_zero(rotated))) % kLanes;
    untried &= ~(uint64_t{1} << lane);
    from = (lane + 1) % kLanes;
    if (unit->count == 0) next_lane_ = from;
    if (!TakeFromLane(lane, unit, &bytes, &reads, &writes)) break;
  }
  if (unit->count == 0) *mapped_bytes += bytes;
  return unit->count != 0;
}

void ProcessDma::RetireUnit(CopyUnit* unit) {
  // Only the last one of a unit can be unfinished.
  for (uint32_t i = 0; i < unit->count; ++i) {
    DmaOp* op = unit->ops[i];
    bool unfinished = op->kind == DmaOp::Kind::kCopy && op->status == DmaStatus::kOk &&
                      op->progress_bytes < op->length_bytes;
    if (unfinished) {
      VERBENA_CHECK(i + 1 == unit->count);
      PushFront(op);
    } else {
      Report(op);
    }
  }
}

ProcessDma::Batch ProcessDma::RunBatch(CopyThread& me, uint64_t budget_bytes) {
  if (running_ != nullptr) AdoptHungUnit();
  bool worked = false;
  if (crew_->HasFinished()) {
    CollectFinished();
    worked = true;
  }
  if (!slow_.empty()) RunSlow();
  attention_due_ = false;
  uint64_t spent = 0;
  while (lane_mask_ != 0 && spent < budget_bytes) {
    CopyUnit* unit = NewUnit();
    if (!BuildUnit(unit, &spent)) {
      free_units_.push_back(unit);
      worked = true;  // refused or diverted operations, or mapped ones
      continue;
    }
    worked = true;
    running_ = unit;
    if (!me.ExecuteAsLeader(unit)) return Batch::kDeposed;
    running_ = nullptr;
    units_executed_ += 1;
    // A system call costs as much as copying some kilobytes: many small units are work too.
    spent += 16 * 1024;
    for (uint32_t i = 0; i < unit->count; ++i) spent += unit->chunk_bytes[i];
    RetireUnit(unit);
    free_units_.push_back(unit);
  }
  if (!slow_.empty() && worked) RunSlow();
  return worked ? Batch::kWorked : Batch::kIdle;
}

}  // namespace verbena::softnic

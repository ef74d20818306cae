// The judge of a flow: completions, and memory against the model.
#include <algorithm>
#include <cstring>

#include "tests/simulation/flow.h"
#include "tests/simulation/world.h"

namespace verbena::simulation {

using shm::WcOpcode;
using shm::WrOpcode;

namespace {

constexpr std::byte kMarginByte{0xc3};

WcOpcode WcOpcodeOf(const Op& op) {
  if (op.IsWrite()) return WcOpcode::kRdmaWrite;
  if (op.opcode == WrOpcode::kRdmaRead) return WcOpcode::kRdmaRead;
  if (op.opcode == WrOpcode::kLocalInv) return WcOpcode::kLocalInv;
  if (op.opcode == WrOpcode::kAtomicFetchAndAdd) return WcOpcode::kFetchAdd;
  if (op.opcode == WrOpcode::kAtomicCmpAndSwp) return WcOpcode::kCompSwap;
  if (op.opcode == WrOpcode::kAtomicWrite) return WcOpcode::kAtomicWrite;
  if (op.IsFlush()) return WcOpcode::kFlush;
  return WcOpcode::kSend;
}

WcStatus StatusOf(Bad bad) {
  switch (bad) {
    case Bad::kNone:
      return WcStatus::kSuccess;
    case Bad::kRkey:
    case Bad::kBounds:
    case Bad::kInvalidated:
      return WcStatus::kRemAccessErr;
    case Bad::kLkey:
      return WcStatus::kLocProtErr;
    case Bad::kOpcode:
      return WcStatus::kLocQpOpErr;
    case Bad::kReceiveTooShort:
      return WcStatus::kRemInvReqErr;
  }
  return WcStatus::kSuccess;
}

}  // namespace

void Flow::Wrong(uint32_t index, const char* what) {
  world_->Violate("QP " + std::to_string(from_->number) + ", request " + std::to_string(index) +
                  " (opcode " + std::to_string(static_cast<int>(ops_[index].opcode)) + ", " +
                  std::to_string(ops_[index].length) + " bytes" +
                  (ops_[index].bad == Bad::kNone
                       ? ""
                       : ", planned fault " + std::to_string(static_cast<int>(ops_[index].bad))) +
                  "): " + what);
}

// --- completions ---------------------------------------------------------------------------------

void Flow::OnCompletion(const shm::Cqe& cqe) {
  if (cqe.wr_id >= next_post_) {
    return world_->Violate("QP " + std::to_string(from_->number) +
                           ": a completion of a request not posted");
  }
  const uint32_t index = static_cast<uint32_t>(cqe.wr_id);
  if (index < next_done_) return Wrong(index, "completed twice, or out of order");
  for (; next_done_ < index; ++next_done_) {
    const Op& op = ops_[next_done_];
    if (is_failed_) return Wrong(next_done_, "not completed after a failure");
    if ((op.flags & shm::kSendSignaled) != 0) return Wrong(next_done_, "never completed");
    Succeed(next_done_);
  }
  const auto status = static_cast<WcStatus>(cqe.status);
  const Op& op = ops_[index];
  if (status != WcStatus::kSuccess) {
    Fail(index, status);
  } else {
    if (is_failed_) Wrong(index, "success after a failure");
    if (cqe.opcode != static_cast<uint8_t>(WcOpcodeOf(op))) Wrong(index, "wrong opcode");
    if ((op.flags & shm::kSendSignaled) == 0) Wrong(index, "completed unsignalled");
    Succeed(index);
  }
  ++next_done_;
}

void Flow::Succeed(uint32_t index) {
  Op& op = ops_[index];
  op.is_done = true;
  ++succeeded_;
  if (op.bad != Bad::kNone) Wrong(index, "success of what must fail");
  CheckMargins(op);
  if (op.TakesReceive()) ++messages_done_;
  if (service_ == Service::kRc && !to_->client_state->is_crashed) {
    if (op.IsWrite()) CheckWrite(op, index);
    if (op.opcode == WrOpcode::kRdmaRead) CheckRead(op, index);
    if (op.IsAtomic()) CheckAtomic(op);
  }
  local_.GiveBack(op.local_until);
  remote_.GiveBack(op.remote_until);
}

void Flow::Fail(uint32_t index, WcStatus status) {
  const Op& op = ops_[index];
  CheckMargins(op);
  if (status == WcStatus::kWrFlushErr) {
    from_->must_fail = true;  // what made it fail may be told later, by its receive queue
  } else if (is_failed_) {
    Wrong(index, "a second failure");
  } else if (!MayFailWith(op, status)) {
    Wrong(index,
          ("failed without a reason, status " + std::to_string(static_cast<int>(status))).c_str());
  } else {
    from_->has_reason = true;
  }
  is_failed_ = true;
  local_.GiveBack(op.local_until);
  remote_.GiveBack(op.remote_until);
  world_->OnEndFailed(from_);
}

bool Flow::MayFailWith(const Op& op, WcStatus status) const {
  if (op.bad != Bad::kNone && status == StatusOf(op.bad)) return true;
  if (service_ != Service::kRc) return false;
  if (status == WcStatus::kRetryExcErr) return world_->IsLossy(*from_);
  if (status == WcStatus::kRnrRetryExcErr) return from_->plan.rnr_retry_count != 7;
  return false;
}

void Flow::CheckMargins(const Op& op) {
  if (op.piece_count == 0) return;
  const std::byte* start = local_region_.memory + op.local_at;
  for (uint32_t i = 0; i < kMarginBytes; ++i) {
    if (start[-1 - static_cast<int>(i)] != kMarginByte || start[op.length + i] != kMarginByte) {
      return world_->Violate("QP " + std::to_string(from_->number) +
                             ": bytes beside a buffer were written");
    }
  }
}

// --- memory --------------------------------------------------------------------------------------

bool Flow::Matches(const Op& op, const std::byte* bytes, uint32_t length, uint32_t skip) const {
  return std::memcmp(bytes + skip, Pattern() + op.pattern + skip, length - skip) == 0;
}

bool Flow::MatchesStamped(const Op& op, const std::byte* bytes, uint32_t index) const {
  if (op.length < 8) return Matches(op, bytes, op.length, 0);
  std::byte stamp[8];
  Stamp(index, stamp);
  return std::memcmp(bytes, stamp, 8) == 0 && Matches(op, bytes, op.length, 8);
}

// Whether a request posted after `index` and before `end` may have put this byte there.
bool Flow::ExplainedByLater(uint32_t index, uint32_t end, uint32_t at, std::byte value) const {
  for (uint32_t i = index + 1; i < end; ++i) {
    const Op& later = ops_[i];
    if (!later.IsWrite() || at < later.remote_at || at - later.remote_at >= later.length) continue;
    if (Pattern()[later.pattern + at - later.remote_at] == value) return true;
  }
  return false;
}

void Flow::CheckWrite(const Op& op, uint32_t index) {
  if (op.length == 0) return;
  std::byte* target = target_ + op.remote_at;
  if (!TargetHolds(op)) {
    for (uint32_t i = 0; i < op.length; ++i) {
      if (target[i] == Pattern()[op.pattern + i]) continue;
      if (!ExplainedByLater(index, next_post_, op.remote_at + i, target[i])) {
        return Wrong(index, "success, but its bytes are not at the peer");
      }
    }
  }
  std::memcpy(shadow_ + op.remote_at, Pattern() + op.pattern, op.length);
}

void Flow::CheckWriteArrived(const Op& op) {
  if (TargetHolds(op)) return;
  const uint32_t index = IndexOf(op);
  for (uint32_t i = 0; i < op.length; ++i) {
    const std::byte value = target_[op.remote_at + i];
    if (value == Pattern()[op.pattern + i]) continue;
    if (!ExplainedByLater(index, next_post_, op.remote_at + i, value)) {
      return Wrong(index, "its immediate came, its bytes did not");
    }
  }
}

const std::byte* Flow::GatherResult(const Op& op) const {
  const std::byte* start = local_region_.memory + op.local_at;
  if (op.first_piece == 0) return start;
  std::byte* out = world_->scratch();
  const std::byte* from = start;
  for (uint32_t k = 0; k < op.piece_count; ++k) {
    const uint32_t piece = (op.first_piece + k) % op.piece_count;
    uint32_t logical = 0;
    for (uint32_t i = 0; i < piece; ++i) logical += op.lengths[i];
    std::memcpy(out + logical, from, op.lengths[piece]);
    from += op.lengths[piece];
  }
  return out;
}

// All requests before it are done: it saw what they left, or what later ones have put there, but
// for those behind a fence.
void Flow::CheckRead(const Op& op, uint32_t index) {
  const std::byte* result = GatherResult(op);
  const std::byte* model = shadow_ + op.remote_at;
  if (std::memcmp(result, model, op.length) == 0) return;
  uint32_t fence = index + 1;
  while (fence < next_post_ && (ops_[fence].flags & shm::kSendFence) == 0) ++fence;
  for (uint32_t i = 0; i < op.length; ++i) {
    if (result[i] == model[i]) continue;
    if (!ExplainedByLater(index, fence, op.remote_at + i, result[i])) {
      return Wrong(index, "it read what was never there");
    }
  }
}

void Flow::CheckAtomic(const Op& op) {
  if (op.opcode == WrOpcode::kAtomicWrite) return;  // it tells nothing
  uint64_t result;
  std::memcpy(&result, local_region_.memory + op.local_at, sizeof(result));
  if (op.is_shared) {
    world_->NoteShared(to_, op.remote_at, result);
  } else if (result != op.original) {
    Wrong(IndexOf(op), "an atomic found another value than its elders left");
  }
}

void Flow::CheckMemory() {
  if (to_ == nullptr || to_->client_state->is_crashed) return;
  for (uint32_t i = 0; i < next_post_; ++i) {
    const Op& op = ops_[i];
    if (service_ == Service::kRc && op.is_done) continue;
    if (op.bad == Bad::kNone && op.IsWrite()) AllowUnfinished(op);
  }
  if (service_ == Service::kRc) CheckWords();
  CheckSpares();
  const uint32_t from = service_ == Service::kRc ? kWords * 8 : 0;
  if (std::memcmp(target_ + from, shadow_ + from, target_bytes_ - from) != 0) {
    uint32_t at = from;
    while (target_[at] == shadow_[at]) ++at;
    world_->Violate("what QP " + std::to_string(from_->number) + " writes to: byte " +
                    std::to_string(at) + " of " + std::to_string(target_bytes_) +
                    " is nothing that was written there");
  }
}

// A WRITE not known to be done that may have put this byte there; nullptr: none.
const Op* Flow::FindUnfinished(uint32_t at) const {
  const bool is_orderly = service_ == Service::kRc && !is_failed_;
  for (uint32_t i = is_orderly ? next_done_ : 0; i < next_post_; ++i) {
    const Op& op = ops_[i];
    if ((service_ == Service::kRc && op.is_done) || op.bad != Bad::kNone || !op.IsWrite()) continue;
    if (at < op.remote_at || at - op.remote_at >= op.length) continue;
    if (Pattern()[op.pattern + at - op.remote_at] == target_[at]) return &op;
  }
  return nullptr;
}

void Flow::CheckMemoryNow() {
  // What has completed has given its buffer back, and the next one may lie there.
  for (uint32_t i = next_done_; i < next_post_; ++i) CheckMargins(ops_[i]);
  if (to_ == nullptr || to_->client_state->is_crashed) return;
  if (service_ == Service::kRc) CheckWords();
  CheckSpares();
  constexpr uint32_t kPieceBytes = 64;  // most are as they were
  // Where no READ is compared with the model any more, it takes over what has been explained.
  const bool is_model_free = service_ != Service::kRc || is_failed_;
  const uint32_t from = service_ == Service::kRc ? kWords * 8 : 0;
  for (uint32_t piece = from; piece < target_bytes_; piece += kPieceBytes) {
    const uint32_t end = std::min(piece + kPieceBytes, target_bytes_);
    if (std::memcmp(target_ + piece, shadow_ + piece, end - piece) == 0) continue;
    for (uint32_t at = piece; at < end;) {
      if (target_[at] == shadow_[at]) {
        ++at;
        continue;
      }
      const Op* op = FindUnfinished(at);
      if (op == nullptr) {
        return world_->Violate("what QP " + std::to_string(from_->number) + " writes to: byte " +
                               std::to_string(at) + " of " + std::to_string(target_bytes_) +
                               " is nothing that is being written there");
      }
      // So it is with the bytes after it.
      const std::byte* written = Pattern() + op->pattern - op->remote_at;
      for (; at < end && at < op->remote_at + op->length && target_[at] == written[at]; ++at) {
        if (is_model_free) shadow_[at] = target_[at];
      }
    }
  }
}

// Regions that are there to be invalidated: nothing is ever written to them.
void Flow::CheckSpares() {
  for (const auto* regions : {&spare_keys_, &own_keys_}) {
    if (regions == &own_keys_ && from_->client_state->is_crashed) continue;
    for (const Region& region : *regions) {
      if (std::all_of(region.memory, region.memory + region.bytes,
                      [](std::byte b) { return b == std::byte{}; })) {
        continue;
      }
      return world_->Violate("QP " + std::to_string(from_->number) +
                             ": a region that nobody may write to was written to");
    }
  }
}

uint64_t Flow::MemoryDigest() const {
  uint64_t digest = 0;
  if (to_ == nullptr) return 0;
  for (uint32_t at = 0; at + 8 <= target_bytes_; at += 8) {
    uint64_t word;
    std::memcpy(&word, target_ + at, sizeof(word));
    digest = transport::sim::Fold(digest, word);
  }
  return digest;
}

uint64_t Flow::SharedAtomicsPosted(uint32_t word) const {
  return static_cast<uint64_t>(
      std::count_if(ops_.begin(), ops_.begin() + next_post_,
                    [word](const Op& op) { return op.is_shared && op.remote_at == word; }));
}

// Of a request that failed, or was never acknowledged, any part may have been done.
void Flow::AllowUnfinished(const Op& op) {
  for (uint32_t i = 0; i < op.length; ++i) {
    const uint32_t at = op.remote_at + i;
    if (target_[at] == Pattern()[op.pattern + i]) shadow_[at] = target_[at];
  }
}

// Those that failed may have been done up to any point.
void Flow::CheckWords() {
  uint64_t model[kWords] = {};
  std::vector<uint64_t> allowed[kWords];
  for (uint32_t i = 0; i < next_post_; ++i) {
    const Op& op = ops_[i];
    if (!op.IsAtomic() || op.is_shared || op.bad != Bad::kNone) continue;
    uint64_t& word = model[op.remote_at];
    if (!op.is_done) allowed[op.remote_at].push_back(word);
    if (op.opcode == WrOpcode::kAtomicFetchAndAdd) {
      word += op.compare_add;
    } else if (op.opcode == WrOpcode::kAtomicWrite) {
      word = op.compare_add;
    } else if (word == op.compare_add) {
      word = op.swap;
    }
  }
  for (uint32_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, target_ + i * 8, sizeof(word));
    if (word == model[i] ||
        std::find(allowed[i].begin(), allowed[i].end(), word) != allowed[i].end()) {
      continue;
    }
    world_->Violate("a word of QP " + std::to_string(from_->number) +
                    " is not the sum of its atomics");
  }
}

}  // namespace verbena::simulation

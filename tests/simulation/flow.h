// The work one QP does: its requests, generated one after the other from the seed whatever time
// they are posted at, and the model of what they have done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/shm/layout.h"
#include "tests/simulation/host.h"
#include "tests/simulation/plan.h"
#include "transport/port/sim/sim_random.h"

namespace verbena::simulation {

class World;
struct End;
struct Destination;

// Bytes that payloads are made of. A payload is a piece of it, named by its offset.
const std::byte* Pattern();
inline constexpr uint32_t kPatternOffsets = 1u << 20;

// Kinds of requests that must fail, each in its own way.
enum class Bad : uint8_t {
  kNone,
  kRkey,            // never given out
  kBounds,          // beyond the end of the region
  kInvalidated,     // the region was invalidated by an earlier request
  kLkey,            // own buffer
  kOpcode,          // of another service
  kReceiveTooShort  // at the peer
};

struct Op {
  shm::WrOpcode opcode = shm::WrOpcode::kSend;
  uint8_t flags = 0;
  uint8_t piece_count = 0;
  uint8_t first_piece = 0;  // which lies first in memory
  Bad bad = Bad::kNone;
  bool has_payload = false;  // its bytes come out of local memory
  bool is_done = false;
  bool is_shared = false;  // atomic on a word that others work on too
  uint32_t length = 0;
  uint32_t pattern = 0;
  uint32_t local_at = 0;
  uint32_t remote_at = 0;    // in the target area; atomics: number of the word
  uint32_t destination = 0;  // UD
  uint32_t message = 0;      // number among those that take a receive
  uint32_t key_index = 0;    // invalidation: of the spare regions
  uint32_t lengths[3] = {};
  uint64_t local_until = 0;
  uint64_t remote_until = 0;
  uint64_t compare_add = 0, swap = 0, original = 0;

  bool TakesReceive() const {
    return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm ||
           opcode == shm::WrOpcode::kSendWithInv || opcode == shm::WrOpcode::kRdmaWriteWithImm;
  }
  bool IsSend() const {
    return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm ||
           opcode == shm::WrOpcode::kSendWithInv;
  }
  bool IsWrite() const {
    return opcode == shm::WrOpcode::kRdmaWrite || opcode == shm::WrOpcode::kRdmaWriteWithImm;
  }
  bool IsAtomic() const {
    return opcode == shm::WrOpcode::kAtomicCmpAndSwp ||
           opcode == shm::WrOpcode::kAtomicFetchAndAdd || opcode == shm::WrOpcode::kAtomicWrite;
  }
  bool IsFlush() const { return opcode == shm::WrOpcode::kFlush; }
  bool HasImm() const {
    return opcode == shm::WrOpcode::kSendWithImm || opcode == shm::WrOpcode::kRdmaWriteWithImm;
  }
};

// Space handed out in a circle and given back in order. Positions count up for ever.
struct CircularSpace {
  uint32_t bytes = 0;
  uint64_t head = 0, tail = 0;

  // Where `length` bytes lie in one piece, `margin` free bytes on either side.
  uint32_t Take(uint32_t length, uint32_t margin, uint64_t* until) {
    const uint32_t needed = length + 2 * margin;
    if (head % bytes + needed > bytes) head += bytes - head % bytes;
    const uint32_t at = static_cast<uint32_t>(head % bytes) + margin;
    head += needed;
    *until = head;
    return at;
  }
  bool MayUse(uint64_t until) const { return until <= tail + bytes; }
  void GiveBack(uint64_t until) {
    if (until > tail) tail = until;
  }
};

class Flow {
 public:
  static constexpr uint32_t kMarginBytes = 8;
  static constexpr uint32_t kWords = 4;
  static constexpr uint32_t kSpareKeysMax = 3;
  static constexpr uint32_t kSharedWord = ~0u;

  Flow(World* world, End* from, End* to, uint32_t id, uint64_t seed, const EndPlan& plan,
       uint32_t message_bytes_max);

  // Memory it needs, before SetUp.
  uint32_t local_bytes() const { return local_.bytes; }
  uint32_t target_bytes() const { return target_bytes_; }
  void SetUp(std::byte* memory, std::byte* target, std::byte* shadow);

  // Posts up to `max` requests that may be posted now; returns how many.
  uint32_t Post(Instant now, uint32_t max);
  bool is_deep() const { return is_deep_; }
  bool HasMore() const { return next_post_ < ops_.size(); }
  bool MayPost() const;
  bool IsFinished() const { return next_done_ == next_post_ && !HasMore(); }
  // The QP is dead: the rest but a few (which are to be flushed) is not posted.
  void CutShort();
  void Abandon();  // its program is gone

  // Completion of its send queue. Reports what is wrong to the world.
  void OnCompletion(const shm::Cqe& cqe);
  // RC: the next message to arrive. False: none is to come.
  const Op* NextMessage() const {
    return next_message_ < messages_.size() ? &ops_[messages_[next_message_]] : nullptr;
  }
  void OnMessageArrived() { ++next_message_; }
  void OnMessageArrived(uint32_t message) {
    if (message >= next_message_) next_message_ = message + 1;
  }
  uint32_t ImmOf(const Op& op) const { return id_ << 16 | IndexOf(op); }
  uint32_t messages_arrived() const { return next_message_; }
  uint32_t messages_done() const { return messages_done_; }
  uint32_t MessageLength(uint32_t message) const { return ops_[messages_[message]].length; }
  const Op& MessageOp(uint32_t message) const { return ops_[messages_[message]]; }
  uint32_t message_count() const { return static_cast<uint32_t>(messages_.size()); }
  const Op* FindOp(uint32_t index) const { return index < next_post_ ? &ops_[index] : nullptr; }
  uint32_t IndexOf(const Op& op) const { return static_cast<uint32_t>(&op - ops_.data()); }
  uint32_t KeyOf(uint32_t key_index) const { return spare_keys_[key_index].key; }

  // What a message's or write's bytes are, compared with those at `bytes`, from `skip` on.
  bool Matches(const Op& op, const std::byte* bytes, uint32_t length, uint32_t skip) const;
  bool MatchesStamped(const Op& op, const std::byte* bytes, uint32_t index) const;
  // A WRITE with immediate was told at the peer: its bytes are there.
  void CheckWriteArrived(const Op& op);
  bool TargetHolds(const Op& op) const { return Matches(op, target_ + op.remote_at, op.length, 0); }
  // Nothing is in flight any more: what memory must look like.
  void CheckMemory();
  // Likewise amid the work: each byte is what completed work has left, or what work under way puts
  // there.
  void CheckMemoryNow();
  uint64_t MemoryDigest() const;
  uint64_t SharedAtomicsPosted(uint32_t word) const;

  const Destination& DestinationOf(const Op& op) const;
  uint32_t planned() const { return static_cast<uint32_t>(ops_.size()); }
  uint32_t posted() const { return next_post_; }
  uint32_t succeeded() const { return succeeded_; }
  bool has_failed() const { return is_failed_; }  // an error completion came
  uint32_t id() const { return id_; }
  End* from() const { return from_; }
  End* to() const { return to_; }
  bool has_bad_op() const { return bad_index_ < ops_.size(); }
  bool bad_is_posted() const { return bad_index_ < next_post_; }
  Bad bad() const { return has_bad_op() ? ops_[bad_index_].bad : Bad::kNone; }

 private:
  friend class World;
  void Generate(uint32_t count);
  void GenerateKind(Op& op);
  void GenerateRc(Op& op);
  uint32_t DrawLength();
  void MakeBad(Op& op);
  void Place(Op& op);
  void PlaceRemote(Op& op);
  void ModelAtomic(Op& op);
  void WriteWqe(Op& op, uint32_t index);
  void FillSource(const Op& op, uint32_t index);
  void Stamp(uint32_t index, std::byte out[8]) const;
  bool IsStamped(const Op& op) const { return service_ != Service::kRc && op.IsSend(); }

  void Succeed(uint32_t index);
  void Fail(uint32_t index, WcStatus status);
  bool MayFailWith(const Op& op, WcStatus status) const;
  void CheckMargins(const Op& op);
  void CheckWrite(const Op& op, uint32_t index);
  void CheckRead(const Op& op, uint32_t index);
  void CheckAtomic(const Op& op);
  bool ExplainedByLater(uint32_t index, uint32_t end, uint32_t at, std::byte value) const;
  void AllowUnfinished(const Op& op);
  const Op* FindUnfinished(uint32_t at) const;
  void CheckWords();
  void CheckSpares();
  const std::byte* GatherResult(const Op& op) const;
  void Wrong(uint32_t index, const char* what);

  World* const world_;
  End* const from_;
  End* const to_;  // nullptr: UD
  const uint32_t id_;
  const Service service_;
  transport::sim::SimRandom random_;
  const uint32_t mtu_bytes_;
  const uint32_t message_bytes_max_;
  const bool is_deep_;
  uint32_t bad_index_ = ~0u;
  uint32_t spare_keys_wanted_ = 0;
  uint32_t own_keys_wanted_ = 0;  // spare regions of its own, for LOCAL_INV
  uint32_t invalidated_ = 0;      // spare regions, by requests so far
  uint32_t last_read_at_ = 0;     // in the target area; 0: none yet

  std::vector<Op> ops_;
  std::vector<uint32_t> messages_;  // ops that take a receive
  uint32_t next_post_ = 0;
  uint32_t next_done_ = 0;  // in order
  uint32_t next_message_ = 0;
  uint32_t messages_done_ = 0;
  uint32_t succeeded_ = 0;
  bool is_failed_ = false;  // an error completion came: only flushes follow
  bool is_abandoned_ = false;

  CircularSpace local_, remote_;
  uint32_t target_bytes_ = 0;
  Region local_region_, target_region_;
  std::byte* target_ = nullptr;
  std::byte* shadow_ = nullptr;  // what the target held when all completed work was done
  std::vector<Region> spare_keys_, own_keys_;
  uint64_t words_[kWords] = {};  // as generated
};

}  // namespace verbena::simulation

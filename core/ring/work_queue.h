// The two ends of a work queue (SQ, RQ, SRQ). The only index arithmetic in the project stands here
// and in completion_queue.h: indices are free-running u32, reduced modulo a power of two on use.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/base/cache_line.h"
#include "core/ring/ring_memory.h"
#include "core/shm/layout.h"

namespace verbena {

// What a queue for `wanted_wr` requests of up to `max_sge` elements has; client and NIC must agree,
// since the client may have to find the memory.
constexpr uint32_t WorkQueueEntries(uint32_t wanted_wr) {
  return std::bit_ceil(std::max(wanted_wr, 1u));
}
constexpr uint32_t SendEntryBytes(uint32_t max_sge, uint32_t max_inline_bytes) {
  return shm::SendWqeStride(std::max(max_sge, 1u), max_inline_bytes);
}
constexpr uint32_t RecvEntryBytes(uint32_t max_sge) {
  return shm::RecvWqeStride(std::max(max_sge, 1u));
}
constexpr uint64_t WorkQueueBytes(uint32_t entries, uint32_t stride_bytes) {
  return shm::kWorkQueueHeadBytes + static_cast<uint64_t>(entries) * stride_bytes;
}

// The client's end. Thread: the queue's lock, or its thread domain.
//
// The entries are in `memory` behind the head, or `at`: in memory of the program's own, from where
// the NIC fetches them.
class WorkQueueProducer {
 public:
  WorkQueueProducer() = default;
  WorkQueueProducer(RingMemory memory, uint32_t entries, uint32_t stride_bytes, uint32_t limit,
                    void* at = nullptr)
      : stride_bytes_(stride_bytes) {
    MoveTo(memory, entries, limit, at);
  }

  // Address of the next entry to fill, or nullptr when `limit` entries are outstanding. Reserve
  // first, write, then Publish once per posted list.
  void* Reserve() {
    if (producer_index_ - cached_consumer_ >= limit_) {
      cached_consumer_ = memory_.LoadAcquire(offsetof(shm::WorkQueueHead, consumer));
      if (producer_index_ - cached_consumer_ >= limit_) return nullptr;
    }
    return Entry(producer_index_++);
  }
  // Takes back entries reserved and not published (ibv_wr_abort, a bad work request in a list).
  void Unreserve(uint32_t entries) { producer_index_ -= entries; }
  void Publish() {
    // Release: pairs with the acquire in WorkQueueConsumer::Available.
    memory_.StoreRelease(offsetof(shm::WorkQueueHead, producer), producer_index_);
  }

  // Of a receive queue, after Publish: whether the NIC has to be told. As a rule nothing starts
  // because a receive is there.
  bool WantsDoorbell() const {
    // Full fence between the index and the word; pairs with the one in AskForDoorbells.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return memory_.LoadAcquire(offsetof(shm::WorkQueueHead, wants_doorbell)) != 0;
  }

  uint32_t producer_index() const { return producer_index_; }
  // What Publish last said; any thread.
  uint32_t PublishedIndex() const {
    return memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer));
  }
  // Where the next entry goes, and what Publish writes to.
  void* NextEntry() const { return Entry(producer_index_); }
  void* head() { return memory_.data(); }
  uint32_t limit() const { return limit_; }
  uint32_t stride_bytes() const { return stride_bytes_; }
  uint32_t ConsumerIndex() const {
    return memory_.LoadAcquire(offsetof(shm::WorkQueueHead, consumer));
  }
  void* Entry(uint32_t index) const {
    return entries_ + static_cast<uint64_t>(index & mask_) * stride_bytes_;
  }
  // Continues on new memory, indices kept, after a resize (ibv_modify_srq).
  void MoveTo(RingMemory memory, uint32_t entries, uint32_t limit, void* at = nullptr) {
    memory_ = memory;
    entries_ = at != nullptr ? static_cast<std::byte*>(at)
                             : memory_.data() + shm::kWorkQueueHeadBytes;
    mask_ = entries - 1;
    limit_ = limit;
  }
  // What is published and still in use, to where a queue of `entries` entries at `to` has it.
  void CopyTo(void* to, uint32_t entries) const {
    for (uint32_t i = ConsumerIndex(); i != producer_index_; ++i) {
      std::memcpy(static_cast<std::byte*>(to) +
                      static_cast<uint64_t>(i & (entries - 1)) * stride_bytes_,
                  Entry(i), stride_bytes_);
    }
  }
  // After a QP reset both ends start again, at the same index.
  void Reset(uint32_t index = 0) {
    producer_index_ = cached_consumer_ = index;
    memory_.StoreRelease(offsetof(shm::WorkQueueHead, producer), index);
  }

 private:
  RingMemory memory_;
  std::byte* entries_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t stride_bytes_ = 0;
  uint32_t limit_ = 0;
  uint32_t producer_index_ = 0;
  uint32_t cached_consumer_ = 0;
};

// The NIC's end. Trust: the published index may be anything; progress is private.
//
// Staged: the client writes the entries elsewhere, and the ring's own memory gets a copy of each
// (NextToStage, Staged) before it is available.
class WorkQueueConsumer {
 public:
  WorkQueueConsumer() = default;
  WorkQueueConsumer(RingMemory memory, uint32_t entries, uint32_t stride_bytes,
                    bool is_staged = false)
      : memory_(memory), entries_(entries), stride_bytes_(stride_bytes), is_staged_(is_staged) {}

  enum class Peek { kEmpty, kReady, kInvalid };  // kInvalid: the client claims more than fits

  // Whether an entry waits. kInvalid is hostile or corrupt memory: the caller quarantines the QP.
  Peek Available() {
    if (fetch_index_ != cached_producer_) return Peek::kReady;
    if (is_staged_) return Peek::kEmpty;
    cached_producer_ = memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer));
    uint32_t waiting = cached_producer_ - fetch_index_;
    uint32_t unreleased = cached_producer_ - release_index_;
    if (waiting > entries_ || unreleased > entries_) {
      cached_producer_ = fetch_index_;
      return Peek::kInvalid;
    }
    return waiting == 0 ? Peek::kEmpty : Peek::kReady;
  }
  // What the client has published and is not staged yet, in one piece of at most `count_max`
  // entries: how many, and where the first is, in bytes from the first entry of the queue.
  // kInvalid as for Available. Precondition: the ring is staged.
  Peek NextToStage(uint32_t count_max, uint32_t* count, uint64_t* offset_bytes) const {
    uint32_t producer = memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer));
    uint32_t waiting = producer - cached_producer_;
    if (waiting > entries_ || producer - release_index_ > entries_) return Peek::kInvalid;
    uint32_t slot = cached_producer_ & (entries_ - 1);
    *count = std::min({waiting, count_max, entries_ - slot});
    *offset_bytes = static_cast<uint64_t>(slot) * stride_bytes_;
    return waiting == 0 ? Peek::kEmpty : Peek::kReady;
  }
  // Where a staged entry goes.
  std::byte* StagingPlace(uint64_t offset_bytes) {
    return memory_.data() + shm::kWorkQueueHeadBytes + offset_bytes;
  }
  void Staged(uint32_t count) { cached_producer_ += count; }

  // Copies `bytes` (at most the stride) of the next entry. Precondition: Available() == kReady.
  void Fetch(void* out, uint32_t bytes) { FetchAt(0, out, bytes); }
  void FetchAt(uint32_t offset_bytes, void* out, uint32_t bytes) {
    is_second_line_used_ = offset_bytes + bytes > kCacheLineBytes;
    memory_.Read(Offset(fetch_index_) + offset_bytes, out, bytes);
  }
  void Advance() { ++fetch_index_; }
  // Entries published and not fetched, as the client claims now: more than entries() is a lie.
  uint32_t Waiting() const {
    return memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer)) - fetch_index_;
  }
  // Entries not fetched yet are copied into `bigger`, indices kept. Precondition: all fetched
  // entries are released, strides are equal, both rings are staged or neither. False: they do not
  // fit, or the client's index lies.
  bool MoveTo(WorkQueueConsumer& bigger) const {
    uint32_t producer = memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer));
    uint32_t waiting = producer - fetch_index_;
    if (waiting > entries_ || waiting > bigger.entries_) return false;
    bigger.fetch_index_ = fetch_index_;
    bigger.cached_producer_ = is_staged_ ? cached_producer_ : fetch_index_;
    bigger.release_index_ = release_index_;
    for (uint32_t i = fetch_index_; i != producer; ++i) {
      bigger.memory_.Copy(bigger.Offset(i), memory_, Offset(i), stride_bytes_);
    }
    bigger.memory_.StoreRelease(offsetof(shm::WorkQueueHead, consumer), release_index_);
    bigger.memory_.StoreRelease(offsetof(shm::WorkQueueHead, producer), producer);
    return true;
  }
  // Asks for the cache lines that taking and releasing the next entry needs; of itself as many as
  // of the one before.
  void PrefetchNext() {
    memory_.PrefetchForRead(offsetof(shm::WorkQueueHead, producer));
    memory_.PrefetchForRead(Offset(fetch_index_));
    if (is_second_line_used_) {
      memory_.PrefetchForRead(Offset(fetch_index_) + kCacheLineBytes);
    }
    memory_.PrefetchForWrite(offsetof(shm::WorkQueueHead, consumer));
  }
  // Copies what the next entry begins with, for a guess: it is not taken. False: none is there, as
  // far as it takes no work to know.
  bool Glance(void* out, uint32_t bytes) const {
    if (!memory_.IsValid() || is_staged_) return false;
    if (memory_.LoadAcquire(offsetof(shm::WorkQueueHead, producer)) == fetch_index_) return false;
    memory_.Read(Offset(fetch_index_), out, bytes);
    return true;
  }
  // Lets the client reuse the oldest `entries` fetched slots.
  void Release(uint32_t entries) {
    release_index_ += entries;
    memory_.StoreRelease(offsetof(shm::WorkQueueHead, consumer), release_index_);
  }
  // Whether the client is to ring after what it publishes from now on. What it published before is
  // seen by who looks after this.
  void AskForDoorbells(bool wants_them) {
    memory_.StoreRelease(offsetof(shm::WorkQueueHead, wants_doorbell), wants_them ? 1 : 0);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void Reset(uint32_t index = 0) {
    fetch_index_ = release_index_ = cached_producer_ = index;
    memory_.StoreRelease(offsetof(shm::WorkQueueHead, consumer), index);
  }

  bool is_staged() const { return is_staged_; }
  uint32_t fetch_index() const { return fetch_index_; }
  uint32_t release_index() const { return release_index_; }
  uint32_t entries() const { return entries_; }
  uint32_t stride_bytes() const { return stride_bytes_; }

 private:
  uint64_t Offset(uint32_t index) const {
    return shm::kWorkQueueHeadBytes + static_cast<uint64_t>(index & (entries_ - 1)) * stride_bytes_;
  }

  RingMemory memory_;
  uint32_t entries_ = 0;
  uint32_t stride_bytes_ = 0;
  bool is_staged_ = false;
  bool is_second_line_used_ = false;  // by the entry fetched last
  uint32_t fetch_index_ = 0;
  uint32_t release_index_ = 0;
  uint32_t cached_producer_ = 0;  // of a staged ring: what is staged
};

}  // namespace verbena

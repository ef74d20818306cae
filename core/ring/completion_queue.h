// The two ends of a completion queue's ring.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/ring/ring_memory.h"
#include "core/shm/layout.h"

namespace verbena {

constexpr uint32_t CqEntries(uint32_t wanted_cqe) { return std::bit_ceil(wanted_cqe); }
constexpr uint64_t CqBytes(uint32_t entries) {
  return shm::kCqHeadBytes + static_cast<uint64_t>(entries) * sizeof(shm::Cqe);
}

// The NIC's end.
class CqProducer {
 public:
  CqProducer() = default;
  CqProducer(RingMemory memory, uint32_t entries) : memory_(memory), entries_(entries) {}

  // Writes one CQE, its valid word last. False: the CQ is overrun (or its consumer index lies), and
  // nothing was written.
  bool Push(const shm::Cqe& cqe) {
    if (!HasRoom()) return false;
    WriteEntry(producer_index_, &cqe);
    Advance();
    return true;
  }
  // As Push, but the client sees nothing of it, nor of what is pushed after it, before PublishHeld.
  // Where it looks for the next entry all the time, each write of an entry waits for the line to
  // come back from the client's core; of several that are published together one does.
  bool Hold(const shm::Cqe& cqe) {
    if (is_held_) return Push(cqe);
    if (!HasRoom()) return false;
    std::memcpy(held_, &cqe, sizeof(held_));
    held_index_ = producer_index_;
    is_held_ = true;
    Advance();
    return true;
  }
  void PublishHeld() {
    if (std::exchange(is_held_, false)) WriteEntry(held_index_, held_);
  }
  // As far as the consumer has told.
  bool IsHalfFull() {
    const uint32_t half = entries_ / 2;
    if (producer_index_ - cached_consumer_ < half) return false;
    TakeConsumerIndex();
    return producer_index_ - cached_consumer_ >= half;
  }
  // Continues an empty ring at `index`, as the consumer's end must too.
  void StartAt(uint32_t index) {
    producer_index_ = cached_consumer_ = index;
    MarkUnwritten();
    memory_.StoreRelease(offsetof(shm::CqHead, consumer), index);
  }
  uint32_t LoadArm() const { return memory_.LoadAcquire(offsetof(shm::CqHead, arm)); }

  // Entries not yet polled, oldest first, copied into `bigger`, indices kept (ibv_resize_cq).
  // False: they do not fit. Precondition: none is held.
  bool MoveTo(CqProducer& bigger) {
    TakeConsumerIndex();
    if (producer_index_ - cached_consumer_ > bigger.entries_) return false;
    bigger.producer_index_ = bigger.cached_consumer_ = cached_consumer_;
    bigger.MarkUnwritten();
    bigger.memory_.StoreRelease(offsetof(shm::CqHead, consumer), cached_consumer_);
    bigger.memory_.StoreRelease(offsetof(shm::CqHead, arm), LoadArm());
    for (uint32_t i = cached_consumer_; i != producer_index_; ++i) {
      alignas(shm::Cqe) std::byte copy[sizeof(shm::Cqe)];
      memory_.Read(Offset(i), copy, sizeof(copy));
      bigger.WriteEntry(i, copy);
    }
    bigger.producer_index_ = producer_index_;
    return true;
  }

  uint32_t producer_index() const { return producer_index_; }
  // The oldest entry that the client may not have polled, as far as it was looked at.
  uint32_t oldest_index() const { return cached_consumer_; }
  uint32_t entries() const { return entries_; }
  // Entry `index`, and where it is, in bytes from the first one.
  const std::byte* Entry(uint32_t index) { return memory_.data() + Offset(index); }
  uint64_t OffsetOf(uint32_t index) const { return Offset(index) - shm::kCqHeadBytes; }
  // Entries written and not polled, as the client claims; for display.
  uint32_t Unpolled() const {
    return producer_index_ - memory_.LoadAcquire(offsetof(shm::CqHead, consumer));
  }

 private:
  bool HasRoom() {
    if (producer_index_ - cached_consumer_ < entries_) return true;
    TakeConsumerIndex();
    return producer_index_ - cached_consumer_ < entries_;
  }
  // Up to its valid word, and then that.
  void WriteEntry(uint32_t index, const void* cqe) {
    const uint64_t offset = Offset(index);
    memory_.Write(offset, cqe, offsetof(shm::Cqe, valid));
    // Release: pairs with the acquire in CqConsumer::Peek.
    memory_.StoreRelease(offset + offsetof(shm::Cqe, valid), index + 1);
  }
  void Advance() {
    ++producer_index_;
    // A client that keeps up has polled there last, a lap ago: a write would wait for the line.
    memory_.PrefetchForWrite(Offset(producer_index_ + kAhead));
  }

  // Entries. Near enough to be there in time, and beyond the one at which the client looks.
  static constexpr uint32_t kAhead = 4;

  uint64_t Offset(uint32_t index) const {
    return shm::kCqHeadBytes + static_cast<uint64_t>(index & (entries_ - 1)) * sizeof(shm::Cqe);
  }

  // In zeroed memory the entry of index 2^32 - 1, whose valid word will be 0, looks written before
  // it is. If the first lap comes to it, gives it what a lap before would have left there.
  void MarkUnwritten() {
    if (~producer_index_ >= entries_) return;
    memory_.StoreRelease(Offset(~0u) + offsetof(shm::Cqe, valid), 0u - entries_);
  }

  void TakeConsumerIndex() {
    const uint32_t claimed = memory_.LoadAcquire(offsetof(shm::CqHead, consumer));
    // A claim to have polled entries not yet written, or fewer than before, is no progress.
    if (claimed - cached_consumer_ <= producer_index_ - cached_consumer_) {
      cached_consumer_ = claimed;
    }
  }

  RingMemory memory_;
  uint32_t entries_ = 0;
  uint32_t producer_index_ = 0;
  uint32_t cached_consumer_ = 0;
  // The first of those held.
  bool is_held_ = false;
  uint32_t held_index_ = 0;
  std::byte held_[offsetof(shm::Cqe, valid)] = {};
};

// The client's end. Thread: the CQ's lock. The entries are in `memory` behind the head, or `at`: in
// memory of the program's own, where the NIC writes them.
class CqConsumer {
 public:
  CqConsumer() = default;
  CqConsumer(RingMemory memory, uint32_t entries, void* at = nullptr) {
    MoveTo(memory, entries, at);
  }

  // The oldest entry, or nullptr. It stays valid until Consume.
  const shm::Cqe* Peek() {
    const shm::Cqe* cqe = Entry(consumer_index_);
    // Acquire: pairs with the release in CqProducer::WriteEntry.
    if (cqe->valid.load(std::memory_order_acquire) != consumer_index_ + 1) return nullptr;
    return cqe;
  }
  void Consume() { ++consumer_index_; }
  void StartAt(uint32_t index) { consumer_index_ = index; }
  // Publishes the polled count; once per poll call.
  void Publish() { memory_.StoreRelease(offsetof(shm::CqHead, consumer), consumer_index_); }

  // Requests one event. Sequence: store, full fence, and then the caller may poll (layout.h).
  // A request for any completion that is not answered yet stays one when solicited ones are asked
  // for after it.  Spec: IBTA 11.4.2.2.
  void Arm(bool solicited_only) {
    bool any = !solicited_only || (is_any_armed_ && !IsWritten(armed_at_));
    arm_sequence_ += 1;
    uint32_t word =
        (arm_sequence_ << shm::kArmSequenceShift) | (any ? shm::kArmAny : shm::kArmSolicited);
    memory_.StoreRelease(offsetof(shm::CqHead, arm), word);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    is_any_armed_ = any;
    armed_at_ = consumer_index_;
    while (any && armed_at_ - consumer_index_ < entries_ && IsWritten(armed_at_)) ++armed_at_;
  }
  // Takes out the entries that `drop` names; the others stay in their order. What the NIC writes
  // meanwhile is not looked at.
  template <typename Drop>
  void Remove(Drop drop) {
    uint32_t end = consumer_index_;
    while (end - consumer_index_ < entries_ && IsWritten(end)) ++end;
    uint32_t to = end;
    for (uint32_t i = end; i-- != consumer_index_;) {
      if (drop(*Entry(i)) || --to == i) continue;
      // The valid word is that of the place.
      std::memcpy(static_cast<void*>(at_ + (to & (entries_ - 1))), Entry(i),
                  offsetof(shm::Cqe, valid));
    }
    consumer_index_ = to;
    Publish();
  }
  // Continues on new memory after ibv_resize_cq.
  void MoveTo(RingMemory memory, uint32_t entries, void* at = nullptr) {
    memory_ = memory;
    at_ = static_cast<shm::Cqe*>(at != nullptr ? at : memory_.data() + shm::kCqHeadBytes);
    entries_ = entries;
  }

  uint32_t consumer_index() const { return consumer_index_; }
  uint32_t entries() const { return entries_; }

 private:
  const shm::Cqe* Entry(uint32_t index) const { return at_ + (index & (entries_ - 1)); }

  // Whether the NIC has written entry `index`, polled or not.
  bool IsWritten(uint32_t index) {
    if (static_cast<int32_t>(consumer_index_ - index) > 0) return true;
    return Entry(index)->valid.load(std::memory_order_acquire) == index + 1;
  }

  RingMemory memory_;
  shm::Cqe* at_ = nullptr;
  uint32_t entries_ = 0;
  uint32_t consumer_index_ = 0;
  uint32_t arm_sequence_ = 0;
  uint32_t armed_at_ = 0;  // the entry that answers the last request for any completion
  bool is_any_armed_ = false;
};

}  // namespace verbena

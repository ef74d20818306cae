// A bounded queue whose memory comes with use: 10 000 idle QPs must stay small, and a QP that talks
// one request at a time keeps to the same warm slot.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/check.h"

namespace verbena::transport::rc {

// Slots keep their old contents after a pop, until pushed over: references polled from the front
// stay good until the next push.
template <typename T, uint32_t kCapacityMax>
class GrowingRing {
 public:
  uint32_t size() const { return size_; }
  bool IsEmpty() const { return size_ == 0; }
  bool IsFull() const { return size_ == kCapacityMax; }

  // A slot with stale contents. Precondition: not full.
  T& PushBack() {
    if (size_ == capacity_) Grow();
    return slots_[(first_ + size_++) & (capacity_ - 1)];
  }
  T& operator[](uint32_t i) { return slots_[(first_ + i) & (capacity_ - 1)]; }
  const T& operator[](uint32_t i) const { return slots_[(first_ + i) & (capacity_ - 1)]; }
  T& Front() { return slots_[first_]; }
  void PopFront() {
    first_ = (first_ + 1) & (capacity_ - 1);
    // Starting over at slot 0 keeps a shallow queue in one cache line's worth of memory.
    if (--size_ == 0) first_ = 0;
  }
  void PopBack() { --size_; }
  void Clear() { first_ = size_ = 0; }

 private:
  static_assert((kCapacityMax & (kCapacityMax - 1)) == 0);

  void Grow() {
    VERBENA_CHECK(size_ < kCapacityMax);
    uint32_t capacity = capacity_ == 0 ? 1 : capacity_ * 2;
    std::unique_ptr<T[]> slots(new T[capacity]);
    for (uint32_t i = 0; i < size_; ++i) slots[i] = std::move((*this)[i]);
    slots_ = std::move(slots);
    capacity_ = capacity;
    first_ = 0;
  }

  std::unique_ptr<T[]> slots_;
  uint32_t capacity_ = 0;
  uint32_t first_ = 0;
  uint32_t size_ = 0;
};

}  // namespace verbena::transport::rc

// A first-in first-out queue of at most kCapacity elements, in place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/check.h"

namespace verbena::transport {

template <typename T, uint32_t kCapacity>
class FixedFifo {
  static_assert((kCapacity & (kCapacity - 1)) == 0, "a power of two");

 public:
  bool IsEmpty() const { return first_ == end_; }
  bool IsFull() const { return size() == kCapacity; }
  uint32_t size() const { return end_ - first_; }

  // Appends a default element and returns it, to be filled in place.
  T& Push() {
    VERBENA_CHECK(!IsFull());
    T& slot = elements_[end_++ & (kCapacity - 1)];
    slot = T{};
    return slot;
  }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size() - 1]; }
  const T& back() const { return (*this)[size() - 1]; }
  void Pop() {
    VERBENA_CHECK(!IsEmpty());
    ++first_;
  }
  void Clear() { first_ = end_; }

  // The i-th oldest.
  T& operator[](uint32_t i) {
    VERBENA_CHECK(i < size());
    return elements_[(first_ + i) & (kCapacity - 1)];
  }
  const T& operator[](uint32_t i) const {
    VERBENA_CHECK(i < size());
    return elements_[(first_ + i) & (kCapacity - 1)];
  }

 private:
  std::array<T, kCapacity> elements_{};
  uint32_t first_ = 0;  // free-running
  uint32_t end_ = 0;
};

}  // namespace verbena::transport

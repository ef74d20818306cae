#include "fi_shim/completion_ring.h"

#include <stdlib.h>

#include <bit>

namespace verbena::fi {

CompletionRing::~CompletionRing() {
  for (Array* array = array_.load(); array != nullptr;) {
    Array* const older = array->older;
    free(array);
    array = older;
  }
}

bool CompletionRing::Grow(size_t entries) {
  Array* const old = array_.load(std::memory_order_relaxed);
  if (entries <= CapacityOf(old)) return true;
  if (entries > SIZE_MAX / 4 / sizeof(Completion)) return false;
  const size_t capacity = std::bit_ceil(entries);
  auto* grown = static_cast<Array*>(malloc(sizeof(Array) + capacity * sizeof(Completion)));
  if (grown == nullptr) return false;
  grown->older = old;
  grown->mask = capacity - 1;
  const size_t written = written_.load(std::memory_order_relaxed);
  for (size_t i = read_.load(std::memory_order_acquire); i != written; ++i) {
    grown->entries[i & grown->mask] = old->entries[i & old->mask];
  }
  // Pairs with the acquire in First: who finds the array finds its entries.
  array_.store(grown, std::memory_order_release);
  return true;
}

bool CompletionRing::Push(const Completion& completion) {
  const size_t written = written_.load(std::memory_order_relaxed);
  const size_t capacity = CapacityOf(array_.load(std::memory_order_relaxed));
  if (written - read_.load(std::memory_order_acquire) == capacity && !Grow(capacity + 1)) {
    return false;
  }
  Array* const array = array_.load(std::memory_order_relaxed);
  array->entries[written & array->mask] = completion;
  written_.store(written + 1, std::memory_order_release);
  return true;
}

// Whatever array is found has the entries that the last call of size counted: it is that one's, or
// a later one.
const Completion& CompletionRing::First() const {
  const Array* array = array_.load(std::memory_order_acquire);
  return array->entries[read_.load(std::memory_order_relaxed) & array->mask];
}

void CompletionRing::Consume() {
  read_.store(read_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool CompletionRing::HasRoom(size_t entries) const {
  const Array* array = array_.load(std::memory_order_acquire);
  return size() + entries <= CapacityOf(array);
}

}  // namespace verbena::fi

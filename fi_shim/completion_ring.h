// What a CQ has and its program has not read yet. One reader and one writer at a time need no
// common lock; who may be several takes a lock of its own side.
#pragma once

#include <atomic>
#include <cstddef>

#include "fi_shim/objects.h"

namespace verbena::fi {

class CompletionRing {
 public:
  CompletionRing() = default;
  ~CompletionRing();
  CompletionRing(const CompletionRing&) = delete;
  CompletionRing& operator=(const CompletionRing&) = delete;

  // Of the writers. Room for so many at least. False: no memory.
  bool Grow(size_t entries);
  // Makes room if there is none. False: no memory, and nothing is written.
  bool Push(const Completion& completion);
  // Where the next entry will be, for what has to keep its order among them.
  size_t Mark() const { return written_.load(std::memory_order_relaxed); }
  // Of the readers.
  const Completion& First() const;  // size() is not 0
  void Consume();
  // Of those that wait, how many were written before the mark (Mark); none if it is behind them.
  size_t CountBefore(size_t mark) const { return mark - read_.load(std::memory_order_relaxed); }
  // Of anybody.
  size_t size() const {
    return written_.load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed);
  }
  bool HasRoom(size_t entries) const;

 private:
  struct Array {
    Array* older;
    size_t mask;
    Completion entries[];
  };
  static size_t CapacityOf(const Array* array) { return array == nullptr ? 0 : array->mask + 1; }

  // Older ones stay for a reader that is in them, until the end: each is half as large.
  std::atomic<Array*> array_{nullptr};
  // Free-running. An entry is written before `written_` says so (release; pairs with the acquire in
  // size), and read before `read_` says so (release; pairs with the acquire in Push).
  std::atomic<size_t> written_{0}, read_{0};
};

}  // namespace verbena::fi

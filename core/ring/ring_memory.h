// RingMemory: where a queue's bytes are, and the only way to reach them.
//
// In the session's arena, mapped at both ends. A queue whose entries are in memory that a parent
// domain's allocator gave has its head there, and the NIC's copies of the entries.
// Trust: contents are the client's; callers copy once and validate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/prefetch.h"
#include "core/shm/layout.h"

namespace verbena {

class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(void* base, uint64_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

  bool IsValid() const { return base_ != nullptr; }
  uint64_t bytes() const { return bytes_; }

  void Read(uint64_t offset, void* out, size_t n) const { std::memcpy(out, base_ + offset, n); }
  void Write(uint64_t offset, const void* in, size_t n) { std::memcpy(base_ + offset, in, n); }
  void Copy(uint64_t offset, const RingMemory& from, uint64_t from_offset, size_t n) {
    std::memcpy(base_ + offset, from.base_ + from_offset, n);
  }

  // Index words. Acquire pairs with the release of the end that publishes.
  uint32_t LoadAcquire(uint64_t offset) const {
    return Word(offset)->load(std::memory_order_acquire);
  }
  void StoreRelease(uint64_t offset, uint32_t value) {
    Word(offset)->store(value, std::memory_order_release);
  }

  // Counters (core/shm/rdm.h).
  void StoreRelease64(uint64_t offset, uint64_t value) {
    reinterpret_cast<std::atomic<uint64_t>*>(base_ + offset)
        ->store(value, std::memory_order_release);
  }

  void PrefetchForRead(uint64_t offset) const { verbena::PrefetchForRead(base_ + offset); }
  void PrefetchForWrite(uint64_t offset) { verbena::PrefetchForWrite(base_ + offset); }

  std::byte* data() { return base_; }

 private:
  std::atomic<uint32_t>* Word(uint64_t offset) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(base_ + offset);
  }

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace verbena

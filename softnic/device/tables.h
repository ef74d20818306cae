// The NIC's index tables: object handles, memory keys, queue pair numbers. All have free lists, so
// that creating the 65 000th object costs what the first did.
//
// Trust: handles, keys and QPNs come from clients and the wire. Find() takes any value.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/types.h"
#include "core/shm/command.h"

namespace verbena::softnic {

inline constexpr uint32_t kNoIndex = 0xffff'ffff;

// First-in-first-out list of free indices threaded through a table's slots: an index rests as long
// as possible before it is used again. Slot has a member `next_free`.
template <typename Slot>
class FreeIndices {
 public:
  bool IsEmpty() const { return first_ == kNoIndex; }
  void Push(std::vector<Slot>& slots, uint32_t index) {
    slots[index].next_free = kNoIndex;
    if (IsEmpty()) {
      first_ = index;
    } else {
      slots[last_].next_free = index;
    }
    last_ = index;
  }
  uint32_t Pop(std::vector<Slot>& slots) {
    VERBENA_CHECK(!IsEmpty());
    return std::exchange(first_, slots[first_].next_free);
  }

 private:
  uint32_t first_ = kNoIndex;
  uint32_t last_ = kNoIndex;
};

// Objects of one kind of one session. A handle is generation << 20 | index. A slot whose
// generations are used up is retired, so a stale handle never names a new object.
template <typename T>
class HandleTable {
 public:
  bool IsFull() const { return free_.IsEmpty() && slots_.size() == kIndexLimit; }
  // Precondition: not full.
  shm::Handle Insert(std::unique_ptr<T> object) {
    VERBENA_CHECK(!IsFull());
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    ++slot.generation;
    slot.object = std::move(object);
    ++size_;
    return slot.generation << kIndexBits | index;
  }
  T* Find(shm::Handle handle) const {
    uint32_t index = handle & (kIndexLimit - 1);
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.generation == handle >> kIndexBits ? slot.object.get() : nullptr;
  }
  std::unique_ptr<T> Remove(shm::Handle handle) {
    VERBENA_CHECK(Find(handle) != nullptr);
    uint32_t index = handle & (kIndexLimit - 1);
    std::unique_ptr<T> object = std::move(slots_[index].object);
    if (slots_[index].generation < kGenerationMax) free_.Push(slots_, index);
    --size_;
    return object;
  }
  uint32_t size() const { return size_; }
  // In index order. `visit` may remove the object it is given.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].object) visit(*slots_[i].object);
    }
  }

 private:
  static constexpr uint32_t kIndexBits = 20;
  static constexpr uint32_t kIndexLimit = 1u << kIndexBits;
  static constexpr uint32_t kGenerationMax = (1u << (32 - kIndexBits)) - 1;
  struct Slot {
    std::unique_ptr<T> object;
    uint32_t generation = 0;
    uint32_t next_free = kNoIndex;
  };
  std::vector<Slot> slots_;
  FreeIndices<Slot> free_;
  uint32_t size_ = 0;
};

// Memory keys of one NIC: index << 8 | key byte, in 31 bits. A reused index gets a new key byte.
// Spec: IBTA 10.6.3.3 (the consumer-visible key portion).
template <typename Region>
class KeyTable {
 public:
  // 0 when the table is full.
  uint32_t Allocate(Region* region) {
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      if (index >= kIndexLimit) return 0;
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    slot.region = region;
    ++slot.key_byte;
    return index << kKeyBits | slot.key_byte;
  }
  Region* Find(uint32_t key) const {
    uint32_t index = key >> kKeyBits;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.key_byte == (key & 0xff) ? slot.region : nullptr;
  }
  // Whether both have the same index, whatever their key bytes.
  static bool AreAlike(uint32_t a, uint32_t b) { return a >> kKeyBits == b >> kKeyBits; }
  // What `key` names goes by `to` from here on. Precondition: they are alike.
  void Rename(uint32_t key, uint32_t to) {
    VERBENA_CHECK(Find(key) != nullptr && AreAlike(key, to));
    slots_[key >> kKeyBits].key_byte = static_cast<uint8_t>(to);
  }
  // From here on the key is dead.
  void Free(uint32_t key) {
    VERBENA_CHECK(Find(key) != nullptr);
    slots_[key >> kKeyBits].region = nullptr;
    free_.Push(slots_, key >> kKeyBits);
  }

 private:
  static constexpr uint32_t kKeyBits = 8;
  static constexpr uint32_t kIndexLimit = 1u << 23;
  struct Slot {
    Region* region = nullptr;
    uint32_t next_free = kNoIndex;
    uint8_t key_byte = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(1);  // index 0 is never given out: key 0 is no key
  FreeIndices<Slot> free_;
};

// Queue pair numbers of one NIC: generation << 17 | index, so that a destroyed QP's number comes
// back late and its last packets find nobody.
template <typename Qp>
class QpnTable {
 public:
  static constexpr uint32_t kIndexBits = 17;
  // Numbers below are reserved: 0 and 1 for management (IBTA 3.5.10), a few more as drivers do.
  static constexpr uint32_t kFirstIndex = 16;
  // One index less than there are: 0xffffff is the multicast QPN.
  static constexpr uint32_t kCapacity = (1u << kIndexBits) - kFirstIndex - 1;

  // Qpn{0} when the table is full.
  Qpn Allocate(Qp* qp) {
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
      slots_[index].generation = (slots_[index].generation + 1) & kGenerationMask;
    } else {
      index = static_cast<uint32_t>(slots_.size());
      if (index - kFirstIndex >= kCapacity) return Qpn{0};
      slots_.emplace_back();
    }
    slots_[index].qp = qp;
    return Qpn{slots_[index].generation << kIndexBits | index};
  }
  Qp* Find(Qpn qpn) const {
    uint32_t index = qpn.value & kIndexMask;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.generation == qpn.value >> kIndexBits ? slot.qp : nullptr;
  }
  void Free(Qpn qpn) {
    VERBENA_CHECK(Find(qpn) != nullptr);
    slots_[qpn.value & kIndexMask].qp = nullptr;
    free_.Push(slots_, qpn.value & kIndexMask);
  }

 private:
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;
  static constexpr uint32_t kGenerationMask = (1u << (24 - kIndexBits)) - 1;
  struct Slot {
    Qp* qp = nullptr;
    uint32_t generation = 0;
    uint32_t next_free = kNoIndex;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kFirstIndex);
  FreeIndices<Slot> free_;
};

// Records named by a cookie that goes out of the device and comes back: slot | generation << 32.
template <typename T>
class CookieTable {
 public:
  uint64_t Insert(const T& value) {
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    slot.value = value;
    slot.is_used = true;
    ++size_;
    return static_cast<uint64_t>(slot.generation) << 32 | index;
  }
  // nullptr: there is none of that cookie.
  T* Find(uint64_t cookie) {
    uint32_t index = static_cast<uint32_t>(cookie);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.is_used && slot.generation == cookie >> 32 ? &slot.value : nullptr;
  }
  // Takes the record out. False: there is none of that cookie.
  bool Take(uint64_t cookie, T* out) {
    uint32_t index = static_cast<uint32_t>(cookie);
    if (index >= slots_.size()) return false;
    Slot& slot = slots_[index];
    if (!slot.is_used || slot.generation != cookie >> 32) return false;
    *out = slot.value;
    slot.is_used = false;
    ++slot.generation;
    --size_;
    free_.Push(slots_, index);
    return true;
  }
  uint32_t size() const { return size_; }

 private:
  struct Slot {
    T value{};
    uint32_t generation = 0;
    uint32_t next_free = kNoIndex;
    bool is_used = false;
  };
  std::vector<Slot> slots_;
  FreeIndices<Slot> free_;
  uint32_t size_ = 0;
};

}  // namespace verbena::softnic

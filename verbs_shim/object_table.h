// Cookies: the numbers the NIC gives back in events, so that an event of an object destroyed in the
// meantime is recognised and dropped instead of followed into freed memory.
//
// Thread: callers hold the mutex that guards the table.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace verbena::verbs {

enum class ObjectKind : uint32_t { kFree = 0, kCq, kQp, kSrq };

class ObjectTable {
 public:
  // A cookie for `object`, never 0; 0 when memory is short.
  uint64_t Add(ObjectKind kind, void* object) {
    if (first_free_ == kNone && !Grow()) return 0;
    uint32_t index = first_free_;
    Slot& slot = slots_[index];
    first_free_ = slot.next_free;
    slot.kind = kind;
    slot.object = object;
    return uint64_t{slot.generation} << 32 | (index + 1);
  }
  void Remove(uint64_t cookie) {
    Slot* slot = Find(cookie);
    if (slot == nullptr) return;
    slot->kind = ObjectKind::kFree;
    slot->object = nullptr;
    ++slot->generation;
    slot->next_free = first_free_;
    first_free_ = static_cast<uint32_t>(slot - slots_);
  }
  // The object, or nullptr when the cookie is stale or of another kind.
  void* Lookup(ObjectKind kind, uint64_t cookie) const {
    const Slot* slot = Find(cookie);
    return slot != nullptr && slot->kind == kind ? slot->object : nullptr;
  }
  void Destroy() {
    std::free(slots_);
    slots_ = nullptr;
    size_ = 0;
    first_free_ = kNone;
  }

 private:
  struct Slot {
    void* object;
    ObjectKind kind;
    uint32_t generation;
    uint32_t next_free;
  };
  static constexpr uint32_t kNone = ~0u;

  Slot* Find(uint64_t cookie) const {
    uint32_t index = static_cast<uint32_t>(cookie) - 1;
    if (index >= size_ || slots_[index].generation != cookie >> 32) return nullptr;
    return slots_[index].kind == ObjectKind::kFree ? nullptr : &slots_[index];
  }
  bool Grow() {
    uint32_t bigger = size_ == 0 ? 64 : size_ * 2;
    auto* slots = static_cast<Slot*>(std::realloc(slots_, bigger * sizeof(Slot)));
    if (slots == nullptr) return false;
    for (uint32_t i = size_; i < bigger; ++i) {
      slots[i] = {nullptr, ObjectKind::kFree, 1, i + 1 == bigger ? kNone : i + 1};
    }
    first_free_ = size_;
    slots_ = slots;
    size_ = bigger;
    return true;
  }

  Slot* slots_ = nullptr;
  uint32_t size_ = 0;
  uint32_t first_free_ = kNone;
};

}  // namespace verbena::verbs

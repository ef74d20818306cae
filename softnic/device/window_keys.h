// R_Keys of one NIC's memory windows: the upper half of the key space whose lower half regions
// have. Bit 31, index, key byte; the byte is the client's to choose with each bind.
//
// Trust: keys come from clients and the wire. Find() takes any value.  Spec: IBTA 10.6.3.3.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "softnic/device/tables.h"

namespace verbena::softnic {

struct Mw;

class WindowKeys {
 public:
  // 0 when the table is full.
  uint32_t Allocate(Mw* window) {
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      if (index >= kIndexLimit) return 0;
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    slot.window = window;
    ++slot.key_byte;
    return kWindowBit | index << kKeyBits | slot.key_byte;
  }
  Mw* Find(uint32_t key) const {
    const Slot* slot = SlotOf(key);
    return slot != nullptr && slot->key_byte == (key & 0xff) ? slot->window : nullptr;
  }
  // Whether both name the same window, by whatever key byte.
  static bool AreSameWindow(uint32_t a, uint32_t b) { return a >> kKeyBits == b >> kKeyBits; }
  // The window of `key` goes by `to` from here on.
  void Rename(uint32_t key, uint32_t to) {
    VERBENA_CHECK(Find(key) != nullptr && AreSameWindow(key, to));
    slots_[IndexOf(key)].key_byte = static_cast<uint8_t>(to);
  }
  // From here on the key is dead.
  void Free(uint32_t key) {
    VERBENA_CHECK(Find(key) != nullptr);
    slots_[IndexOf(key)].window = nullptr;
    free_.Push(slots_, IndexOf(key));
  }

 private:
  static constexpr uint32_t kKeyBits = 8;
  static constexpr uint32_t kWindowBit = 1u << 31;
  static constexpr uint32_t kIndexLimit = 1u << 23;
  struct Slot {
    Mw* window = nullptr;
    uint32_t next_free = kNoIndex;
    uint8_t key_byte = 0;
  };
  static uint32_t IndexOf(uint32_t key) { return (key & ~kWindowBit) >> kKeyBits; }
  const Slot* SlotOf(uint32_t key) const {
    const bool names_one = (key & kWindowBit) != 0 && IndexOf(key) < slots_.size();
    return names_one ? &slots_[IndexOf(key)] : nullptr;
  }

  std::vector<Slot> slots_;
  FreeIndices<Slot> free_;
};

}  // namespace verbena::softnic

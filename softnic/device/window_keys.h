// R_Keys of one NIC's memory windows: bit 31, and a key as regions have them below it. The key byte
// is the client's to choose with each bind.
//
// Trust: keys come from clients and the wire. Find() takes any value.  Spec: IBTA 10.6.3.3.
#pragma once

#include <cstdint>

#include "softnic/device/tables.h"

namespace verbena::softnic {

struct Mw;

class WindowKeys {
 public:
  // 0 when the table is full.
  uint32_t Allocate(Mw* window) {
    const uint32_t key = keys_.Allocate(window);
    return key == 0 ? 0 : kWindowBit | key;
  }
  Mw* Find(uint32_t key) const {
    return (key & kWindowBit) != 0 ? keys_.Find(key & ~kWindowBit) : nullptr;
  }
  // Whether both name the same window, by whatever key byte.
  static bool AreSameWindow(uint32_t a, uint32_t b) { return KeyTable<Mw>::AreAlike(a, b); }
  // The window of `key` goes by `to` from here on.
  void Rename(uint32_t key, uint32_t to) { keys_.Rename(key & ~kWindowBit, to & ~kWindowBit); }
  // From here on the key is dead.
  void Free(uint32_t key) { keys_.Free(key & ~kWindowBit); }

 private:
  static constexpr uint32_t kWindowBit = 1u << 31;

  KeyTable<Mw> keys_;
};

}  // namespace verbena::softnic

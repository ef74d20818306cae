// Blocks of memory whose contents follow from a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace verbena::remap {

constexpr int kExitDamage = 3;

[[noreturn]] inline void Fail(const char* what, const void* at = nullptr, size_t offset = 0) {
  std::fprintf(stderr, "damage: %s, byte %zu of %p\n", what, offset, at);
  std::fflush(nullptr);
  _Exit(kExitDamage);
}

struct Block {
  uint8_t* at = nullptr;
  size_t bytes = 0;
  uint64_t seed = 0;

  uint8_t Expected(size_t i) const {
    return static_cast<uint8_t>(((seed + i) * 0x9e37'79b9'7f4a'7c15) >> 37);
  }
  void Fill() const {
    for (size_t i = 0; i < bytes; ++i) at[i] = Expected(i);
  }
  // The first of them.
  void Check(const char* when, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      if (at[i] != Expected(i)) Fail(when, at, i);
    }
  }
  void Check(const char* when) const { Check(when, bytes); }
};

}  // namespace verbena::remap

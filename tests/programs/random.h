// Random numbers that follow from a seed, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::programs {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e37'79b9'7f4a'7c15);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    return z ^ (z >> 31);
  }
  // Of 0 to end - 1.
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>((Next() >> 32) * end >> 32); }
  // Of first to last.
  uint32_t Between(uint32_t first, uint32_t last) { return first + Below(last - first + 1); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }
  // Precondition: not empty.
  template <typename T>
  const T& Of(const std::vector<T>& items) {
    return items[Below(static_cast<uint32_t>(items.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace verbena::programs

// The simulator's only source of chance: a seed gives the same sequence everywhere.
#pragma once

#include <cstdint>

namespace verbena::transport::sim {

// SplitMix64: small, and good enough to choose faults with.
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e37'79b9'7f4a'7c15u);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
    return z ^ (z >> 31);
  }
  // 0 … bound - 1. Precondition: bound > 0.
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>((Next() >> 32) * bound >> 32); }
  bool Chance(uint32_t per_mille) { return per_mille != 0 && Below(1000) < per_mille; }

 private:
  uint64_t state_;
};

}  // namespace verbena::transport::sim

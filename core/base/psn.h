// Packet sequence numbers: 24-bit serial numbers. Value and distance are different types, and there
// is no operator<, because serial numbers have no total order.
#pragma once

#include <compare>
#include <cstdint>

namespace verbena {

// A number of PSNs (packets), e.g. how many one message consumes. Signed: Delta may be negative.
struct PsnCount {
  int32_t value = 0;
  friend constexpr bool operator==(PsnCount, PsnCount) = default;
  friend constexpr auto operator<=>(PsnCount, PsnCount) = default;
};

class Psn {
 public:
  static constexpr uint32_t kMask = 0x00ff'ffff;

  constexpr Psn() = default;
  constexpr explicit Psn(uint32_t value) : value_(value & kMask) {}

  constexpr uint32_t value() const { return value_; }
  constexpr Psn Next() const { return Psn(value_ + 1); }

  friend constexpr bool operator==(Psn, Psn) = default;
  friend constexpr Psn operator+(Psn p, PsnCount n) {
    return Psn(p.value_ + static_cast<uint32_t>(n.value));
  }
  friend constexpr Psn operator-(Psn p, PsnCount n) {
    return Psn(p.value_ - static_cast<uint32_t>(n.value));
  }

  // Signed distance from `from` to `to`, in [-2^23, 2^23).  Spec: IBTA 9.7.2 (valid and duplicate
  // regions are each half of the number space).
  static constexpr PsnCount Delta(Psn from, Psn to) {
    uint32_t d = (to.value_ - from.value_) & kMask;
    return {static_cast<int32_t>(d << 8) >> 8};
  }
  constexpr bool Before(Psn other) const { return Delta(*this, other).value > 0; }
  constexpr bool After(Psn other) const { return Delta(*this, other).value < 0; }

 private:
  uint32_t value_ = 0;
};

}  // namespace verbena

// Polynomials over GF(2) modulo that of CRC-32, bits reflected: bit 31 is the coefficient of x^0.
//
// A CRC register is such a polynomial, and a zero byte fed to it multiplies it by x^8.
#pragma once

#include <array>
#include <cstdint>

namespace verbena::transport::wire {

// x^32 + x^26 + ... + 1, without its x^32.  Spec: IBTA 7.8.1 (0x04c11db7 before reflection).
inline constexpr uint32_t kCrc32Polynomial = 0xedb8'8320;
inline constexpr uint32_t kGf32One = 0x8000'0000;

constexpr uint32_t MultiplyByX(uint32_t a) {
  return (a >> 1) ^ (kCrc32Polynomial & (0u - (a & 1)));
}

// The polynomial has a constant term, so that every step of MultiplyByX can be taken back.
constexpr uint32_t DivideByX(uint32_t a) {
  uint32_t carry = a >> 31;
  return ((a ^ (kCrc32Polynomial & (0u - carry))) << 1) | carry;
}

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= b & (0u - (a >> 31));
    a <<= 1;
    b = MultiplyByX(b);
  }
  return product;
}

constexpr uint32_t Power(uint32_t base, uint32_t exponent) {
  uint32_t result = kGf32One;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Multiply(result, base);
    base = Multiply(base, base);
  }
  return result;
}

// `first` times `step` to the powers i and 256 i: two look-ups give any power to 65 535.
struct Powers {
  std::array<uint32_t, 256> near{}, far{};
};
constexpr Powers PowersOf(uint32_t step, uint32_t first) {
  Powers powers;
  const uint32_t far_step = Power(step, 256);
  powers.near[0] = powers.far[0] = first;
  for (uint32_t i = 1; i < 256; ++i) {
    powers.near[i] = Multiply(powers.near[i - 1], step);
    powers.far[i] = Multiply(powers.far[i - 1], far_step);
  }
  return powers;
}

// Multiply with the processor's instruction.   Precondition: HasClmul().
uint32_t MultiplyClmul(uint32_t a, uint32_t b);

}  // namespace verbena::transport::wire

// Numbers in network byte order, at addresses of any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::transport::wire {

inline void StoreBe16(uint16_t value, std::byte* out) {
  value = __builtin_bswap16(value);
  std::memcpy(out, &value, sizeof(value));
}
// 24 bits: QP numbers, PSNs, MSNs. Writes the low three bytes of `value`.
inline void StoreBe24(uint32_t value, std::byte* out) {
  out[0] = static_cast<std::byte>(value >> 16);
  out[1] = static_cast<std::byte>(value >> 8);
  out[2] = static_cast<std::byte>(value);
}
inline void StoreBe32(uint32_t value, std::byte* out) {
  value = __builtin_bswap32(value);
  std::memcpy(out, &value, sizeof(value));
}
inline void StoreBe64(uint64_t value, std::byte* out) {
  value = __builtin_bswap64(value);
  std::memcpy(out, &value, sizeof(value));
}

inline uint16_t LoadBe16(const std::byte* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap16(value);
}
inline uint32_t LoadBe24(const std::byte* bytes) {
  return std::to_integer<uint32_t>(bytes[0]) << 16 | std::to_integer<uint32_t>(bytes[1]) << 8 |
         std::to_integer<uint32_t>(bytes[2]);
}
inline uint32_t LoadBe32(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap32(value);
}
inline uint64_t LoadBe64(const std::byte* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap64(value);
}

}  // namespace verbena::transport::wire

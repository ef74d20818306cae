#include "transport/wire/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#include "transport/wire/gf32.h"

namespace verbena::transport::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie in memory");

constexpr uint32_t kSlices = 8;
using Table = std::array<uint32_t, 256>;

// kTables[k][b]: what byte b does to the register when k more bytes follow it.
constexpr std::array<Table, kSlices> MakeTables() {
  std::array<Table, kSlices> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = MultiplyByX(crc);
    tables[0][byte] = crc;
  }
  for (uint32_t slice = 1; slice < kSlices; ++slice) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = tables[0][before & 0xff] ^ (before >> 8);
    }
  }
  return tables;
}
constexpr std::array<Table, kSlices> kTables = MakeTables();

// What i, or 256 i, zero bytes multiply a register by: x^(8 i), x^(8 256 i).
constexpr Powers kSteps = PowersOf(Power(MultiplyByX(kGf32One), 8), kGf32One);

uint32_t Step(uint32_t crc, uint32_t by) {
  return HasClmul() ? MultiplyClmul(crc, by) : Multiply(crc, by);
}

}  // namespace

uint32_t UpdateCrc32Portable(uint32_t crc, const std::byte* bytes, size_t length) {
  for (; length >= 8; bytes += 8, length -= 8) {
    uint32_t low, high;
    std::memcpy(&low, bytes, 4);
    std::memcpy(&high, bytes + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
          kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; length != 0; ++bytes, --length) {
    crc = kTables[0][(crc ^ std::to_integer<uint32_t>(*bytes)) & 0xff] ^ (crc >> 8);
  }
  return crc;
}

uint32_t UpdateCrc32(uint32_t crc, const std::byte* bytes, size_t length) {
  if (length >= 512 && HasWideClmul()) return UpdateCrc32WideClmul(crc, bytes, length);
  if (length >= 16 && HasClmul()) return UpdateCrc32Clmul(crc, bytes, length);
  return UpdateCrc32Portable(crc, bytes, length);
}

uint32_t AdvanceCrc32(uint32_t crc, size_t length) {
  if ((length & 0xff) != 0) crc = Step(crc, kSteps.near[length & 0xff]);
  if (length > 0xff) crc = Step(crc, kSteps.far[length >> 8 & 0xff]);
  return crc;
}

}  // namespace verbena::transport::wire

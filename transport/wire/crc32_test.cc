// Every implementation of CRC-32 agrees with ISA-L's, with the check value, and with itself in
// pieces.
#include "transport/wire/crc32.h"

#include <gtest/gtest.h>
#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "transport/wire/gf32.h"

namespace verbena::transport::wire {
namespace {

using Update = uint32_t (*)(uint32_t, const std::byte*, size_t);
struct Implementation {
  const char* name;
  Update update;
  bool is_available;
};
std::vector<Implementation> Implementations() {
  return {{"chosen", UpdateCrc32, true},
          {"portable", UpdateCrc32Portable, true},
          {"clmul", UpdateCrc32Clmul, HasClmul()},
          {"wide clmul", UpdateCrc32WideClmul, HasWideClmul()}};
}

std::vector<std::byte> RandomBytes(size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32Test, GivesTheCheckValue) {
  // The catalogue's check value of CRC-32: over the nine digits.
  const char digits[] = "123456789";
  for (const Implementation& it : Implementations()) {
    if (!it.is_available) continue;
    EXPECT_EQ(~it.update(kCrc32Start, reinterpret_cast<const std::byte*>(digits), 9), 0xcbf4'3926u)
        << it.name;
  }
}

TEST(Crc32Test, AgreesWithIsalAtEveryLengthAndAlignment) {
  std::vector<std::byte> bytes = RandomBytes(4'400, 1);
  for (size_t length = 0; length <= 4'300; ++length) {
    // Copied to an allocation of its own, so that a read past the end is seen.
    std::vector<std::byte> exact(bytes.begin() + length % 67, bytes.begin() + length % 67 + length);
    uint32_t expected = crc32_gzip_refl(0, reinterpret_cast<const uint8_t*>(exact.data()), length);
    for (const Implementation& it : Implementations()) {
      if (!it.is_available) continue;
      ASSERT_EQ(~it.update(kCrc32Start, exact.data(), length), expected) << it.name << length;
      const std::byte* unaligned = bytes.data() + length % 67;
      ASSERT_EQ(~it.update(kCrc32Start, unaligned, length), expected) << it.name << length;
    }
  }
}

TEST(Crc32Test, PiecesGiveWhatTheWholeGives) {
  std::vector<std::byte> bytes = RandomBytes(2'000, 2);
  uint32_t whole = UpdateCrc32Portable(kCrc32Start, bytes.data(), bytes.size());
  for (const Implementation& it : Implementations()) {
    if (!it.is_available) continue;
    for (size_t cut = 0; cut <= bytes.size(); cut += 13) {
      uint32_t crc = it.update(kCrc32Start, bytes.data(), cut);
      EXPECT_EQ(it.update(crc, bytes.data() + cut, bytes.size() - cut), whole) << it.name << cut;
    }
  }
}

TEST(Crc32Test, APieceIsAdvancedOverWhatFollowsIt) {
  std::vector<std::byte> bytes = RandomBytes(70'000, 5);
  for (size_t first : {0, 1, 40, 300}) {
    const uint32_t before = UpdateCrc32(kCrc32Start, bytes.data(), first);
    for (size_t length : {0, 1, 3, 4, 5, 255, 256, 257, 1024, 4096, 40'001, 0xffff}) {
      EXPECT_EQ(AdvanceCrc32(before, length) ^ UpdateCrc32(0, bytes.data() + first, length),
                UpdateCrc32(before, bytes.data() + first, length))
          << first << ", " << length;
    }
  }
}

TEST(Crc32Test, ACopyHasItsBytesAndTheirCrc) {
  if (!HasWideClmul()) GTEST_SKIP() << "this processor copies first";
  std::vector<std::byte> from = RandomBytes(6'000, 6);
  for (size_t length = 0; length <= 5'000; length += length < 700 ? 1 : 97) {
    const size_t at = length % 67;  // any alignment
    std::vector<std::byte> to(length + 2, std::byte{0x5a});
    const uint32_t crc = CopyCrc32WideClmul(kCrc32Start, to.data() + 1, from.data() + at, length);
    EXPECT_EQ(crc, UpdateCrc32Portable(kCrc32Start, from.data() + at, length)) << length;
    EXPECT_TRUE(std::equal(to.begin() + 1, to.end() - 1, from.begin() + static_cast<long>(at)));
    EXPECT_EQ(to.front(), std::byte{0x5a});
    EXPECT_EQ(to.back(), std::byte{0x5a});
  }
}

// As a NIC reads memory that is being written to.
TEST(Crc32Test, ACopyReadsAlignedWordsAtOnce) {
  if (!HasWideClmul()) GTEST_SKIP() << "this processor copies first";
  alignas(64) std::array<std::atomic<uint64_t>, 80> from{};
  std::jthread writer([&from](std::stop_token stop) {
    for (uint64_t bits = 0; !stop.stop_requested(); bits = ~bits) {
      for (auto& word : from) word.store(bits, std::memory_order_relaxed);
    }
  });
  for (size_t words : {1, 2, 3, 7, 9, 80}) {
    for (int i = 0; i < 20'000; ++i) {
      std::array<uint64_t, 80> to;
      CopyCrc32WideClmul(0, reinterpret_cast<std::byte*>(to.data()),
                         reinterpret_cast<const std::byte*>(from.data()), 8 * words);
      for (size_t word = 0; word < words; ++word) {
        ASSERT_TRUE(to[word] == 0 || to[word] == ~uint64_t{0}) << words << ", " << word;
      }
    }
  }
}

TEST(Gf32Test, AProductIsTheSameWithTheInstruction) {
  if (!HasClmul()) GTEST_SKIP() << "this processor has none";
  std::mt19937 random(7);
  for (int i = 0; i < 1'000; ++i) {
    const uint32_t a = random(), b = random();
    EXPECT_EQ(MultiplyClmul(a, b), Multiply(a, b));
  }
}

TEST(Gf32Test, AZeroByteMultipliesByXToTheEighth) {
  constexpr uint32_t kX = MultiplyByX(kGf32One);
  std::mt19937 random(3);
  std::byte zeros[40] = {};
  for (uint32_t count = 0; count <= 40; ++count) {
    uint32_t crc = random();
    uint32_t after = UpdateCrc32Portable(crc, zeros, count);
    EXPECT_EQ(Multiply(crc, Power(kX, 8 * count)), after);
    for (uint32_t bit = 0; bit < 8 * count; ++bit) after = DivideByX(after);
    EXPECT_EQ(after, crc);
  }
}

TEST(Gf32Test, MultiplicationIsCommutativeAssociativeAndHasAOne) {
  std::mt19937 random(4);
  for (int i = 0; i < 1'000; ++i) {
    uint32_t a = random(), b = random(), c = random();
    EXPECT_EQ(Multiply(a, b), Multiply(b, a));
    EXPECT_EQ(Multiply(a, Multiply(b, c)), Multiply(Multiply(a, b), c));
    EXPECT_EQ(Multiply(a, b ^ c), Multiply(a, b) ^ Multiply(a, c));
    EXPECT_EQ(Multiply(a, kGf32One), a);
    EXPECT_EQ(DivideByX(MultiplyByX(a)), a);
  }
}

}  // namespace
}  // namespace verbena::transport::wire

// CRC-32 by folding: the message so far is kept as a short polynomial congruent to it, which is
// moved forward over the next bytes by multiplying it with a power of x.
//
// A 128-bit block is a reflected polynomial: bit i stands for x^(127-i); its low half L so for
// L(x) x^64. Carry-less multiplication of two 64-bit halves A and B gives, read as such a block,
// A(x) B(x) x. So moving a block forward by d bits takes the constants x^(d+63) for the low half
// and x^(d-1) for the high one.   After: V. Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
//
// No table is read on the way: between packets, payload pushes one out of the nearest cache.
#include <array>
#include <cstring>

#include "transport/wire/crc32.h"
#include "transport/wire/gf32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbena::transport::wire {

#if defined(__x86_64__)

namespace {

constexpr uint32_t kX = MultiplyByX(kGf32One);

struct FoldConstants {
  uint64_t low, high;
};
constexpr FoldConstants ForwardBits(uint32_t bits) {
  return {static_cast<uint64_t>(Power(kX, bits + 63)) << 32,
          static_cast<uint64_t>(Power(kX, bits - 1)) << 32};
}
constexpr FoldConstants kForward128 = ForwardBits(128);
constexpr FoldConstants kForward256 = ForwardBits(256);
constexpr FoldConstants kForward384 = ForwardBits(384);
constexpr FoldConstants kForward512 = ForwardBits(512);
constexpr FoldConstants kForward2048 = ForwardBits(2048);

// For Barrett reduction: the polynomial, all 33 bits of it, and x^64 divided by it. Reflected, so
// that bit i is the coefficient of x^(32-i).
constexpr uint64_t kPolynomial33 = uint64_t{kCrc32Polynomial} << 1 | 1;
constexpr uint64_t DivideX64() {
  uint64_t quotient = 1;
  uint32_t rest = kCrc32Polynomial;
  for (int i = 1; i <= 32; ++i, rest = MultiplyByX(rest)) quotient |= uint64_t{rest & 1} << i;
  return quotient;
}
constexpr uint64_t kX64Divided = DivideX64();
static_assert(kX64Divided == 0x1'f701'1641, "as in the paper");
constexpr uint64_t kX95 = uint64_t{Power(kX, 95)} << 32;
constexpr uint64_t kX63 = uint64_t{Power(kX, 63)} << 32;

constexpr size_t kBlockBytes = 16;
// Shuffles of a block's bytes, 0x80 standing for a zero: those from n on move the first n bytes to
// the end, those from 16 + n on the last 16 - n to the front.
constexpr auto MakeShifts() {
  std::array<uint8_t, 3 * kBlockBytes> shifts{};
  shifts.fill(0x80);
  for (uint8_t i = 0; i < kBlockBytes; ++i) shifts[kBlockBytes + i] = i;
  return shifts;
}
alignas(64) constexpr auto kShifts = MakeShifts();

#define VERBENA_CLMUL __attribute__((target("pclmul,sse4.1")))
#define VERBENA_WIDE_CLMUL __attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))

VERBENA_CLMUL inline __m128i Load(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
VERBENA_CLMUL inline __m128i Constants(const FoldConstants& constants) {
  return _mm_set_epi64x(static_cast<int64_t>(constants.high), static_cast<int64_t>(constants.low));
}
VERBENA_CLMUL inline __m128i Forward(__m128i block, __m128i constants) {
  return _mm_xor_si128(_mm_clmulepi64_si128(block, constants, 0x00),
                       _mm_clmulepi64_si128(block, constants, 0x11));
}

// The polynomial of degree 63 that is the upper half of `block`, modulo CRC-32's.
VERBENA_CLMUL inline uint32_t Reduce(__m128i block) {
  const __m128i constants = _mm_set_epi64x(kPolynomial33, kX64Divided);
  const __m128i low_word = _mm_set_epi32(0, 0, 0, -1);
  const __m128i polynomial = _mm_srli_si128(block, 8);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(polynomial, low_word), constants, 0x00);
  quotient = _mm_and_si128(quotient, low_word);
  const __m128i multiple = _mm_clmulepi64_si128(quotient, constants, 0x10);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(polynomial, multiple), 1));
}

// The register once `block` stands for all bytes: it times x^32, reduced by 32 bits at a time.
VERBENA_CLMUL inline uint32_t Finish(__m128i block) {
  const __m128i constants = _mm_set_epi64x(static_cast<int64_t>(kX63), static_cast<int64_t>(kX95));
  const __m128i upper = _mm_slli_si128(_mm_srli_si128(block, 8), 4);
  block = _mm_xor_si128(_mm_clmulepi64_si128(block, constants, 0x00), upper);
  return Reduce(_mm_xor_si128(_mm_clmulepi64_si128(block, constants, 0x10), block));
}

// Precondition: the 16 bytes before `bytes` can be read.
VERBENA_CLMUL inline uint32_t FoldRest(__m128i block, const std::byte* bytes, size_t length) {
  const __m128i forward128 = Constants(kForward128);
  for (; length >= kBlockBytes; bytes += kBlockBytes, length -= kBlockBytes) {
    block = _mm_xor_si128(Forward(block, forward128), Load(bytes));
  }
  if (length != 0) {
    // The block's first bytes go forward over a block that ends with the last byte.
    auto shift = [](size_t at) VERBENA_CLMUL {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(&kShifts[at]));
    };
    const __m128i first = _mm_shuffle_epi8(block, shift(length));
    const __m128i to_front = shift(kBlockBytes + length);
    const __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(block, to_front),
                                         Load(bytes + length - kBlockBytes), to_front);
    block = _mm_xor_si128(Forward(first, forward128), last);
  }
  return Finish(block);
}

// The four 128-bit blocks of one 512-bit one as a single block at the place of the last.
VERBENA_CLMUL inline __m128i Join(__m128i a, __m128i b, __m128i c, __m128i d) {
  __m128i joined =
      _mm_xor_si128(Forward(a, Constants(kForward384)), Forward(b, Constants(kForward256)));
  return _mm_xor_si128(_mm_xor_si128(joined, Forward(c, Constants(kForward128))), d);
}

VERBENA_WIDE_CLMUL inline __m512i WideConstants(const FoldConstants& constants) {
  auto low = static_cast<int64_t>(constants.low), high = static_cast<int64_t>(constants.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}
VERBENA_WIDE_CLMUL inline __m512i WideForward(__m512i block, __m512i constants, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(block, constants, 0x00),
                                   _mm512_clmulepi64_epi128(block, constants, 0x11), next,
                                   kXorOfThree);
}

}  // namespace

bool HasClmul() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
bool HasWideClmul() {
  return HasClmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

VERBENA_CLMUL uint32_t UpdateCrc32Clmul(uint32_t crc, const std::byte* bytes, size_t length) {
  if (length < kBlockBytes) return UpdateCrc32Portable(crc, bytes, length);
  // The register acts as if it were part of the next four bytes.
  __m128i a = _mm_xor_si128(Load(bytes), _mm_cvtsi32_si128(static_cast<int>(crc)));
  bytes += 16, length -= 16;
  if (length < 112) return FoldRest(a, bytes, length);
  // Four blocks at a time, as one multiplication takes several cycles to give its result.
  __m128i b = Load(bytes), c = Load(bytes + 16), d = Load(bytes + 32);
  const __m128i forward512 = Constants(kForward512);
  for (bytes += 48, length -= 48; length >= 64; bytes += 64, length -= 64) {
    a = _mm_xor_si128(Forward(a, forward512), Load(bytes));
    b = _mm_xor_si128(Forward(b, forward512), Load(bytes + 16));
    c = _mm_xor_si128(Forward(c, forward512), Load(bytes + 32));
    d = _mm_xor_si128(Forward(d, forward512), Load(bytes + 48));
  }
  return FoldRest(Join(a, b, c, d), bytes, length);
}

namespace {

VERBENA_WIDE_CLMUL inline uint32_t FoldWideRest(__m512i a, __m512i b, __m512i c, __m512i d,
                                                const std::byte* bytes, size_t length) {
  const __m512i forward512 = WideConstants(kForward512);
  a = WideForward(WideForward(WideForward(a, forward512, b), forward512, c), forward512, d);
  for (; length >= 64; bytes += 64, length -= 64) {
    a = WideForward(a, forward512, _mm512_loadu_si512(bytes));
  }
  __m128i blocks[4];
  _mm512_storeu_si512(blocks, a);
  return FoldRest(Join(blocks[0], blocks[1], blocks[2], blocks[3]), bytes, length);
}

VERBENA_WIDE_CLMUL inline __m512i WithRegister(__m512i first, uint32_t crc) {
  return _mm512_xor_si512(first, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
}

}  // namespace

VERBENA_WIDE_CLMUL uint32_t UpdateCrc32WideClmul(uint32_t crc, const std::byte* bytes,
                                                 size_t length) {
  if (length < 512) return UpdateCrc32Clmul(crc, bytes, length);
  __m512i a = _mm512_loadu_si512(bytes), b = _mm512_loadu_si512(bytes + 64);
  __m512i c = _mm512_loadu_si512(bytes + 128), d = _mm512_loadu_si512(bytes + 192);
  a = WithRegister(a, crc);
  const __m512i forward2048 = WideConstants(kForward2048);
  for (bytes += 256, length -= 256; length >= 256; bytes += 256, length -= 256) {
    a = WideForward(a, forward2048, _mm512_loadu_si512(bytes));
    b = WideForward(b, forward2048, _mm512_loadu_si512(bytes + 64));
    c = WideForward(c, forward2048, _mm512_loadu_si512(bytes + 128));
    d = WideForward(d, forward2048, _mm512_loadu_si512(bytes + 192));
  }
  return FoldWideRest(a, b, c, d, bytes, length);
}

// Others may write to the source meanwhile, as to any memory that a NIC reads: no race to report.
#define VERBENA_COPY __attribute__((always_inline, no_sanitize("thread"))) inline

template <typename Word>
VERBENA_COPY void MoveWord(std::byte*& to, const std::byte*& from, size_t& length) {
  Word word;
  std::memcpy(&word, from, sizeof(word));  // one load
  std::memcpy(to, &word, sizeof(word));
  to += sizeof(word), from += sizeof(word), length -= sizeof(word);
}

VERBENA_WIDE_CLMUL VERBENA_COPY __m512i MoveBlock(std::byte*& to, const std::byte*& from) {
  const __m512i block = _mm512_loadu_si512(from);
  _mm512_storeu_si512(to, block);
  from += 64, to += 64;
  return block;
}

VERBENA_WIDE_CLMUL __attribute__((no_sanitize("thread"))) uint32_t CopyCrc32WideClmul(
    uint32_t crc, std::byte* to, const std::byte* from, size_t length) {
  const std::byte* begin = to;
  const size_t total = length;
  const bool is_wide = length >= 512;
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  if (is_wide) {
    a = WithRegister(MoveBlock(to, from), crc), b = MoveBlock(to, from);
    c = MoveBlock(to, from), d = MoveBlock(to, from);
    const __m512i forward2048 = WideConstants(kForward2048);
    for (length -= 256; length >= 256; length -= 256) {
      a = WideForward(a, forward2048, MoveBlock(to, from));
      b = WideForward(b, forward2048, MoveBlock(to, from));
      c = WideForward(c, forward2048, MoveBlock(to, from));
      d = WideForward(d, forward2048, MoveBlock(to, from));
    }
  }
  // The rest is copied first, and its CRC is the copy's.
  std::byte* const rest = to;
  const size_t rest_bytes = length;
  for (; length >= 64; length -= 64) MoveBlock(to, from);
  for (; length >= 16; length -= 16, from += 16, to += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  if (length >= 8) MoveWord<uint64_t>(to, from, length);
  if (length >= 4) MoveWord<uint32_t>(to, from, length);
  if (length >= 2) MoveWord<uint16_t>(to, from, length);
  if (length >= 1) MoveWord<uint8_t>(to, from, length);
  return is_wide ? FoldWideRest(a, b, c, d, rest, rest_bytes) : UpdateCrc32Clmul(crc, begin, total);
}

VERBENA_CLMUL uint32_t MultiplyClmul(uint32_t a, uint32_t b) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)),
                                               _mm_cvtsi32_si128(static_cast<int>(b)), 0x00);
  // 63 bits, the last of them x^0; and Reduce takes 64, in the upper half.
  return Reduce(_mm_slli_si128(_mm_slli_epi64(product, 1), 8));
}

#else

bool HasClmul() { return false; }
bool HasWideClmul() { return false; }
uint32_t UpdateCrc32Clmul(uint32_t crc, const std::byte* bytes, size_t length) {
  return UpdateCrc32Portable(crc, bytes, length);
}
uint32_t UpdateCrc32WideClmul(uint32_t crc, const std::byte* bytes, size_t length) {
  return UpdateCrc32Portable(crc, bytes, length);
}
uint32_t CopyCrc32WideClmul(uint32_t crc, std::byte* to, const std::byte* from, size_t length) {
  std::memcpy(to, from, length);
  return UpdateCrc32Portable(crc, to, length);
}
uint32_t MultiplyClmul(uint32_t a, uint32_t b) { return Multiply(a, b); }

#endif

}  // namespace verbena::transport::wire

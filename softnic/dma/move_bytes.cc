#include "softnic/dma/move_bytes.h"

#include <algorithm>
#include <cstring>

#include "core/base/cache_line.h"
#include "transport/wire/crc32.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace verbena::softnic {
namespace {

// Compilers keep stores in order across it; so do x86 CPUs, and others by the fences below.
inline void KeepOrder() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");
#else
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

// Relaxed atomics are single instructions: no half of a word is ever seen.
template <typename Word>
inline void MoveWord(std::byte* to, const std::byte* from) {
  Word word;
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Word) == 0) {
    word = __atomic_load_n(reinterpret_cast<const Word*>(from), __ATOMIC_RELAXED);
  } else {
    std::memcpy(&word, from, sizeof(word));
  }
  __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELAXED);
  KeepOrder();
}

// Up to `bytes`, at most to the next multiple of 32; returns how many.
inline size_t MoveHead(std::byte* to, const std::byte* from, size_t bytes) {
  size_t done = 0;
  auto at = [&] { return reinterpret_cast<uintptr_t>(to + done); };
  if (bytes - done >= 1 && at() % 2 != 0) MoveWord<uint8_t>(to + done, from + done), done += 1;
  if (bytes - done >= 2 && at() % 4 != 0) MoveWord<uint16_t>(to + done, from + done), done += 2;
  if (bytes - done >= 4 && at() % 8 != 0) MoveWord<uint32_t>(to + done, from + done), done += 4;
  while (bytes - done >= 8 && at() % 32 != 0) MoveWord<uint64_t>(to + done, from + done), done += 8;
  return done;
}

// Precondition: `to` is aligned for whatever of it fits.
inline void MoveTail(std::byte* to, const std::byte* from, size_t bytes) {
  size_t done = 0;
  for (; bytes - done >= 8; done += 8) MoveWord<uint64_t>(to + done, from + done);
  if (bytes - done >= 4) MoveWord<uint32_t>(to + done, from + done), done += 4;
  if (bytes - done >= 2) MoveWord<uint16_t>(to + done, from + done), done += 2;
  if (bytes - done >= 1) MoveWord<uint8_t>(to + done, from + done);
}

// Whole blocks to an address that is a multiple of 32; returns how many bytes.
using MoveBlocks = size_t (*)(std::byte* to, const std::byte* from, size_t bytes);

#if defined(__x86_64__)

// The aligned 8-byte parts of aligned vector stores are written at once on every CPU that has them.
// Programs look at what is being written, as they do on hardware: that is no race to report.
__attribute__((target("avx2"), no_sanitize("thread"))) size_t MoveBlocksAvx2(std::byte* to,
                                                                             const std::byte* from,
                                                                             size_t bytes) {
  size_t done = 0;
  for (; bytes - done >= 128; done += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + done);
    auto* out = reinterpret_cast<__m256i*>(to + done);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    _mm256_store_si256(out, a);
    KeepOrder();
    _mm256_store_si256(out + 1, b);
    KeepOrder();
    _mm256_store_si256(out + 2, c);
    KeepOrder();
    _mm256_store_si256(out + 3, d);
    KeepOrder();
  }
  return done;
}

__attribute__((no_sanitize("thread"))) size_t MoveBlocksSse2(std::byte* to, const std::byte* from,
                                                             size_t bytes) {
  size_t done = 0;
  for (; bytes - done >= 16; done += 16) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + done), a);
    KeepOrder();
  }
  return done;
}

MoveBlocks ChooseMoveBlocks() {
  return __builtin_cpu_supports("avx2") ? MoveBlocksAvx2 : MoveBlocksSse2;
}

// CPUs with ERMS (enhanced `rep movsb`) move whole lines by it. Its stores may become visible in
// any order, but before those of the instructions after it.
bool HasFastStringMove() {
  constexpr unsigned kErmsBit = 1u << 9;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kErmsBit) != 0;
}

void MoveString(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

#else

size_t MoveNoBlocks(std::byte*, const std::byte*, size_t) { return 0; }
MoveBlocks ChooseMoveBlocks() { return MoveNoBlocks; }
bool HasFastStringMove() { return false; }
void MoveString(std::byte*, const std::byte*, size_t) {}

#endif

const MoveBlocks move_blocks = ChooseMoveBlocks();
constexpr size_t kBlocksFromBytes = 128;

const bool has_fast_string_move = HasFastStringMove();
// What fits the first cache with its source moves faster by blocks.
constexpr size_t kStringFromBytes = 32 * 1024;

}  // namespace

void MoveBytes(std::byte* to, const std::byte* from, size_t bytes) {
  size_t done = MoveHead(to, from, bytes);
  if (bytes - done >= kBlocksFromBytes) done += move_blocks(to + done, from + done, bytes - done);
  MoveTail(to + done, from + done, bytes - done);
}

void MoveBytesInAnyOrder(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes >= kStringFromBytes && has_fast_string_move) {
    // Half as fast to where no line begins.
    const size_t head = -reinterpret_cast<uintptr_t>(to) % kCacheLineBytes;
    MoveBytes(to, from, head);
    const size_t any = bytes - head - kLastInOrderBytes;
    MoveString(to + head, from + head, any);
    to += head + any;
    from += head + any;
    bytes = kLastInOrderBytes;
  }
  MoveBytes(to, from, bytes);
}

void MovePieces(const iovec* to, uint64_t to_offset, const iovec* from, uint64_t from_offset,
                uint64_t bytes, MoveOrder order) {
  const auto move = order == MoveOrder::kAny ? MoveBytesInAnyOrder : MoveBytes;
  while (bytes != 0) {
    for (; to_offset >= to->iov_len; ++to) to_offset -= to->iov_len;
    for (; from_offset >= from->iov_len; ++from) from_offset -= from->iov_len;
    const uint64_t n = std::min({to->iov_len - to_offset, from->iov_len - from_offset, bytes});
    move(static_cast<std::byte*>(to->iov_base) + to_offset,
         static_cast<const std::byte*>(from->iov_base) + from_offset, n);
    to_offset += n;
    from_offset += n;
    bytes -= n;
  }
}

void MovePiecesWithCrc(const iovec* to, transport::PieceCrc* const* crcs, uint64_t to_offset,
                       const iovec* from, uint64_t from_offset, uint64_t bytes) {
  while (bytes != 0) {
    for (; to_offset >= to->iov_len; ++to, ++crcs) to_offset -= to->iov_len;
    for (; from_offset >= from->iov_len; ++from) from_offset -= from->iov_len;
    const uint64_t n = std::min({to->iov_len - to_offset, from->iov_len - from_offset, bytes});
    transport::PieceCrc& crc = **crcs;
    crc.value = transport::wire::CopyCrc32WideClmul(
        crc.value, static_cast<std::byte*>(to->iov_base) + to_offset,
        static_cast<const std::byte*>(from->iov_base) + from_offset, n);
    to_offset += n;
    from_offset += n;
    bytes -= n;
    crc.is_known = to_offset == to->iov_len;
  }
}

}  // namespace verbena::softnic

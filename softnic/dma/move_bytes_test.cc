#include "softnic/dma/move_bytes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "softnic/dma/bus_error.h"
#include "transport/wire/crc32.h"

namespace verbena::softnic {
namespace {

constexpr size_t kMargin = 64;

// As memcpy, and not a byte beside it, for each alignment of either end.
TEST(MoveBytes, MovesWhatItIsToldAndNothingElse) {
  std::vector<std::byte> from(1024), to(1024), expected;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + (i >> 8));
  for (size_t to_at = 0; to_at < 33; ++to_at) {
    for (size_t from_at : {0, 1, 2, 3, 4, 7, 8, 12, 16, 31}) {
      for (size_t bytes : {0,  1,  2,  3,  4,   5,   6,   7,   8,   9,   12,  15,  16,  31,
                           32, 33, 63, 64, 100, 127, 128, 129, 160, 255, 256, 300, 511, 640}) {
        std::fill(to.begin(), to.end(), std::byte{0xa5});
        expected = to;
        std::memcpy(expected.data() + kMargin + to_at, from.data() + from_at, bytes);
        MoveBytes(to.data() + kMargin + to_at, from.data() + from_at, bytes);
        ASSERT_EQ(to, expected) << to_at << " " << from_at << " " << bytes;
      }
    }
  }
}

// In as many goes as one likes: the CRC of a piece is carried on.
TEST(MoveBytes, PiecesWithTheirCrcs) {
  if (!transport::wire::HasWideClmul()) GTEST_SKIP() << "this processor computes them apart";
  std::vector<std::byte> from(9'000), to(9'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + (i >> 8));
  const iovec sources[] = {{from.data(), 5'000}, {from.data() + 5'000, 4'000}};
  const iovec pieces[] = {{to.data(), 1'024}, {to.data() + 1'100, 4'096}, {to.data() + 5'300, 3}};
  constexpr uint64_t kBytes = 1'024 + 4'096 + 3;
  for (uint64_t step : {uint64_t{1}, uint64_t{700}, uint64_t{1'024}, kBytes}) {
    transport::PieceCrc crcs[3];
    transport::PieceCrc* const places[] = {&crcs[0], &crcs[1], &crcs[2]};
    std::fill(to.begin(), to.end(), std::byte{0xa5});
    for (uint64_t at = 0; at < kBytes; at += step) {
      EXPECT_FALSE(crcs[2].is_known);
      MovePiecesWithCrc(pieces, places, at, sources, at, std::min(step, kBytes - at));
    }
    const std::byte* next = from.data();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(pieces[i].iov_base, next, pieces[i].iov_len), 0);
      EXPECT_TRUE(crcs[i].is_known);
      EXPECT_EQ(crcs[i].value, transport::wire::UpdateCrc32(0, next, pieces[i].iov_len));
      next += pieces[i].iov_len;
    }
    EXPECT_EQ(to[1'024], std::byte{0xa5});
    EXPECT_EQ(to[5'303], std::byte{0xa5});
  }
}

// Also where a string instruction moves most of it.
TEST(MoveBytes, InAnyOrderMovesWhatItIsToldAndNothingElse) {
  constexpr size_t kMax = 70'000;
  std::vector<std::byte> from(kMax + 64), to(kMax + 3 * kMargin), expected;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + (i >> 8));
  for (size_t to_at : {0, 1, 8, 31, 32, 63}) {
    for (size_t from_at : {0, 1, 8, 31}) {
      for (size_t bytes : {0, 7, 4'095, 4'097, 32'767, 32'768, 32'769, 65'536, 70'000}) {
        std::fill(to.begin(), to.end(), std::byte{0xa5});
        expected = to;
        std::memcpy(expected.data() + kMargin + to_at, from.data() + from_at, bytes);
        MoveBytesInAnyOrder(to.data() + kMargin + to_at, from.data() + from_at, bytes);
        ASSERT_EQ(to, expected) << to_at << " " << from_at << " " << bytes;
      }
    }
  }
}

TEST(MoveBytes, PiecesOfDifferentLengths) {
  std::vector<uint8_t> from(300), to(300), flat(300);
  std::iota(from.begin(), from.end(), uint8_t{1});
  const iovec in[] = {{&from[0], 7}, {&from[7], 0}, {&from[7], 90}, {&from[97], 203}};
  const iovec out[] = {{&to[0], 100}, {&to[100], 1}, {&to[101], 199}};
  MovePieces(out, 3, in, 5, 250);
  std::memcpy(&flat[3], &from[5], 250);
  EXPECT_EQ(to, flat);
}

// Whoever sees a word of the last page sees all before that page, and those before the word in it.
TEST(MoveBytes, InAnyOrderTheLastPageComesLast) {
  constexpr size_t kWords = 8 * 1024, kLastPage = kWords - kLastInOrderBytes / sizeof(uint64_t);
  struct alignas(64) Line {
    uint64_t words[8];
  };
  std::vector<Line> from_lines(kWords / 8), to_lines(kWords / 8);
  uint64_t *from = from_lines[0].words, *to = to_lines[0].words;
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    uint64_t looks = 0;
    while (!is_done.load(std::memory_order_acquire) || looks == 0) {
      const size_t seen_at = kLastPage + looks++ % (kWords - kLastPage);
      const uint64_t seen = __atomic_load_n(&to[seen_at], __ATOMIC_ACQUIRE);
      for (size_t i = looks % 61; i < seen_at; i += 61) {
        ASSERT_GE(__atomic_load_n(&to[i], __ATOMIC_RELAXED), seen) << i << " after " << seen_at;
      }
    }
  });
  for (uint64_t message = 1; message <= 20'000; ++message) {
    std::fill(from, from + kWords, message);
    MoveBytesInAnyOrder(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte*>(from),
                        kWords * sizeof(uint64_t));
  }
  is_done.store(true, std::memory_order_release);
  reader.join();
}

// Both halves of each word, and all words up to the last one seen, are of the same message.
TEST(MoveBytes, WordsAreWholeAndTheLastOneComesLast) {
  constexpr size_t kWords = 64 * 1024;
  constexpr uint64_t kOnes = 0x0000'0001'0000'0001;
  std::vector<uint64_t> from(kWords), to(kWords);
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    uint64_t looks = 0;
    while (!is_done.load(std::memory_order_acquire) || looks == 0) {
      ++looks;
      const uint64_t last = __atomic_load_n(&to[kWords - 1], __ATOMIC_ACQUIRE);
      for (size_t i = 0; i < kWords; i += 97) {
        const uint64_t word = __atomic_load_n(&to[i], __ATOMIC_RELAXED);
        ASSERT_EQ(word >> 32, word & 0xffff'ffff) << "half a word at " << i;
        ASSERT_GE(word, last) << "word " << i << " came after the last one";
      }
    }
  });
  for (uint64_t message = 1; message <= 3000; ++message) {
    std::fill(from.begin(), from.end(), message * kOnes);
    MoveBytes(reinterpret_cast<std::byte*>(to.data()),
              reinterpret_cast<const std::byte*>(from.data()), kWords * sizeof(uint64_t));
  }
  is_done.store(true, std::memory_order_release);
  reader.join();
}

TEST(BusError, APageThatCantBeHadIsAnErrorAndNoSignal) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "TSan takes what runs after a jump out of a handler for a part of the handler";
#endif
  CatchBusErrors();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const int fd = memfd_create("bus_error_test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(page)), 0);
  auto* map =
      static_cast<std::byte*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ASSERT_NE(map, MAP_FAILED);
  std::vector<std::byte> own(2 * page);
  uintptr_t fault = 0;
  for (int i = 0; i < 3; ++i) {  // the signal comes again each time
    EXPECT_FALSE(Guarded(&fault, [&] { MoveBytes(own.data(), map, 2 * page); }));
    EXPECT_EQ(fault, reinterpret_cast<uintptr_t>(map + page));
    EXPECT_FALSE(Guarded(&fault, [&] { MoveBytes(map + 8, own.data(), 2 * page - 8); }));
    EXPECT_EQ(fault, reinterpret_cast<uintptr_t>(map + page));
    EXPECT_TRUE(Guarded(&fault, [&] { MoveBytes(own.data(), map, page); }));
  }
  EXPECT_EXIT(own[0] = map[page], ::testing::KilledBySignal(SIGBUS), "") << "nobody's copy";
  munmap(map, 2 * page);
  close(fd);
}

}  // namespace
}  // namespace verbena::softnic

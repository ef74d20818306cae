#include "fi_shim/completion_ring.h"

#include <gtest/gtest.h>

#include <thread>

namespace verbena::fi {
namespace {

Completion Numbered(size_t number) {
  Completion completion;
  completion.len = number;
  completion.data = ~number;
  return completion;
}

TEST(CompletionRing, KeepsTheOrderWhileItGrows) {
  CompletionRing ring;
  EXPECT_EQ(ring.size(), 0u);
  EXPECT_FALSE(ring.HasRoom(1));
  ASSERT_TRUE(ring.Grow(4));
  EXPECT_TRUE(ring.HasRoom(4));
  EXPECT_FALSE(ring.HasRoom(5));
  size_t written = 0, read = 0;
  // Each round writes more than it reads, from another place of the ring.
  for (size_t round = 1; round < 40; ++round) {
    for (size_t i = 0; i < round; ++i) ASSERT_TRUE(ring.Push(Numbered(written++)));
    for (size_t i = 0; i < round / 2; ++i) {
      ASSERT_EQ(ring.First().len, read++);
      ring.Consume();
    }
    ASSERT_EQ(ring.size(), written - read);
  }
  for (; read != written; ++read) {
    ASSERT_EQ(ring.First().len, read);
    ring.Consume();
  }
  EXPECT_EQ(ring.size(), 0u);
}

TEST(CompletionRing, AMarkIsBehindWhatWasWrittenBeforeIt) {
  CompletionRing ring;
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(ring.Push(Numbered(i)));
  const size_t mark = ring.Mark();
  ASSERT_TRUE(ring.Push(Numbered(3)));
  EXPECT_EQ(ring.CountBefore(mark), 3u);
  for (size_t left = 3; left-- != 0;) {
    ring.Consume();
    EXPECT_EQ(ring.CountBefore(mark), left);
  }
  EXPECT_EQ(ring.size(), 1u);
}

TEST(CompletionRing, RefusesWhatNoMemoryHas) {
  CompletionRing ring;
  EXPECT_FALSE(ring.Grow(SIZE_MAX));
  EXPECT_TRUE(ring.Push(Numbered(1)));
}

TEST(CompletionRing, ReaderAndWriterNeedNoLock) {
  constexpr size_t kEntries = 200'000;
  CompletionRing ring;
  std::thread writer([&] {
    for (size_t i = 0; i < kEntries; ++i) {
      // Growing while the reader reads, too; now and then the reader catches up.
      if (i % 1000 == 0) ring.Grow(i / 100);
      ring.Push(Numbered(i));
    }
  });
  size_t wrong = 0;
  for (size_t i = 0; i < kEntries;) {
    for (size_t there = ring.size(); there != 0; --there, ++i) {
      const Completion& first = ring.First();
      wrong += first.len != i || first.data != ~i;
      ring.Consume();
    }
    if (i < kEntries) std::this_thread::yield();
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace verbena::fi

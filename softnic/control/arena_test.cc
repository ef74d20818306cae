#include "softnic/control/arena.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <vector>

namespace verbena::softnic {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  ArenaSet Make(ArenaLimits limits) {
    return ArenaSet(limits, [this](uint32_t id, int fd, uint64_t bytes) {
      announced_[id] = bytes;
      last_fd_ = fd;
      return announce_error_;
    });
  }
  static bool IsZero(QueueMemory& queue) {
    for (uint64_t i = 0; i < queue.bytes; ++i) {
      if (queue.memory.data()[i] != std::byte{0}) return false;
    }
    return true;
  }
  // Bytes really held by the last arena's pages.
  uint64_t BackedBytes() const {
    struct stat st = {};
    fstat(last_fd_, &st);
    return static_cast<uint64_t>(st.st_blocks) * 512;
  }

  std::map<uint32_t, uint64_t> announced_;
  int last_fd_ = -1;
  int announce_error_ = 0;
};

TEST_F(ArenaTest, TenThousandQueuesNeedFewArenasAndFewPages) {
  ArenaSet arenas = Make({});
  std::vector<QueueMemory> queues(10'000);
  for (auto& queue : queues) ASSERT_EQ(arenas.Allocate(3'200, &queue), 0);
  EXPECT_EQ(announced_.size(), 1u);
  EXPECT_LE(BackedBytes(), 10'000u * 3'200u + (1u << 20));
  for (auto& queue : queues) arenas.Free(queue);
  EXPECT_EQ(arenas.bytes_in_use(), 0u);
}

TEST_F(ArenaTest, QueuesDoNotOverlap) {
  ArenaSet arenas = Make({});
  std::vector<QueueMemory> queues;
  uint64_t random = 12345;
  for (int i = 0; i < 3000; ++i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    if (!queues.empty() && (random >> 60) < 7) {
      size_t victim = (random >> 20) % queues.size();
      // What it holds must be what its owner wrote.
      auto mark = static_cast<uint8_t>(queues[victim].offset >> 7);
      for (uint64_t b = 0; b < queues[victim].bytes; ++b) {
        ASSERT_EQ(static_cast<uint8_t>(queues[victim].memory.data()[b]), mark);
      }
      arenas.Free(queues[victim]);
      queues.erase(queues.begin() + static_cast<int64_t>(victim));
      continue;
    }
    QueueMemory queue;
    ASSERT_EQ(arenas.Allocate(1 + (random >> 33) % 20'000, &queue), 0);
    EXPECT_EQ(queue.offset % 128, 0u);
    ASSERT_TRUE(IsZero(queue)) << "at " << queue.offset;
    std::memset(queue.memory.data(), static_cast<uint8_t>(queue.offset >> 7), queue.bytes);
    queues.push_back(queue);
  }
}

TEST_F(ArenaTest, ReusedMemoryIsZeroed) {
  ArenaSet arenas = Make({});
  for (uint64_t bytes : {uint64_t{256}, uint64_t{5'000}, uint64_t{1} << 20}) {
    QueueMemory first, again;
    ASSERT_EQ(arenas.Allocate(bytes, &first), 0);
    std::memset(first.memory.data(), 0xff, bytes);
    arenas.Free(first);
    ASSERT_EQ(arenas.Allocate(bytes, &again), 0);
    EXPECT_EQ(again.offset, first.offset);
    EXPECT_TRUE(IsZero(again));
    arenas.Free(again);
  }
}

TEST_F(ArenaTest, FreeingALargeQueueGivesItsPagesBack) {
  ArenaSet arenas = Make({});
  QueueMemory small, large;
  ASSERT_EQ(arenas.Allocate(4096, &small), 0);
  ASSERT_EQ(arenas.Allocate(16 << 20, &large), 0);
  EXPECT_GE(BackedBytes(), 16u << 20);
  arenas.Free(large);
  EXPECT_LE(BackedBytes(), 64u << 10);
}

TEST_F(ArenaTest, HugeQueueGetsAnArenaOfItsOwn) {
  ArenaSet arenas = Make({.arena_bytes = 1 << 20});
  QueueMemory queue;
  ASSERT_EQ(arenas.Allocate((3 << 20) + 1, &queue), 0);
  EXPECT_EQ(announced_[1], (3u << 20) + 4096u);
  EXPECT_TRUE(IsZero(queue));
}

TEST_F(ArenaTest, QuotasAreErrorsNotCrashes) {
  ArenaSet arenas = Make({.arena_bytes = 1 << 20, .arenas_max = 2, .session_bytes_max = 3 << 20});
  QueueMemory queue;
  EXPECT_EQ(arenas.Allocate(0, &queue), ENOMEM);
  EXPECT_EQ(arenas.Allocate(~0ull, &queue), ENOMEM);
  EXPECT_EQ(arenas.Allocate((3 << 20) + 1, &queue), ENOMEM);
  ASSERT_EQ(arenas.Allocate(1 << 20, &queue), 0);
  ASSERT_EQ(arenas.Allocate(1 << 20, &queue), 0);
  EXPECT_EQ(arenas.Allocate(1 << 10, &queue), ENOMEM);  // a third arena
  EXPECT_EQ(arenas.bytes_in_use(), 2u << 20);
}

TEST_F(ArenaTest, FailedAnnouncementLeavesNothing) {
  ArenaSet arenas = Make({});
  announce_error_ = EMFILE;
  QueueMemory queue;
  EXPECT_EQ(arenas.Allocate(4096, &queue), EMFILE);
  EXPECT_EQ(arenas.arenas(), 0u);
  announce_error_ = 0;
  EXPECT_EQ(arenas.Allocate(4096, &queue), 0);
}

}  // namespace
}  // namespace verbena::softnic

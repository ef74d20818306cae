#include "softnic/control/arena.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace verbena::softnic {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  ArenaSet Make(ArenaLimits limits) {
    return ArenaSet(
        limits,
        [this](uint32_t id, int fd, uint64_t bytes) {
          announced_[id] = bytes;
          last_fd_ = fd;
          return announce_error_;
        },
        [](std::byte* part) { PutOnHugePage(part); });
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

  // Of the mapping that begins at `address`: what is on huge pages.
  static uint64_t HugeBytesAt(const void* address) {
    char begin[32];
    snprintf(begin, sizeof(begin), "%lx-", reinterpret_cast<unsigned long>(address));
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    while (std::getline(smaps, line) && !line.starts_with(begin)) continue;
    unsigned long kilobytes = 0;
    while (std::getline(smaps, line)) {
      if (sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kilobytes) == 1) break;
    }
    return uint64_t{kilobytes} * 1024;
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

// Where the kernel has huge pages for shared memory.
TEST_F(ArenaTest, APartThatIsInUseAsAWholeGoesToAHugePage) {
  SharedMemory probe;
  ASSERT_EQ(probe.Create("probe", 2 * kHugePageBytes, ClientAccess::kReadWrite), 0);
  ASSERT_EQ(probe.Back(0, kHugePageBytes), 0);
  if (!PutOnHugePage(probe.data())) GTEST_SKIP() << "this kernel has none: " << strerror(errno);
  ArenaSet arenas = Make({});
  std::vector<QueueMemory> queues;
  const auto allocate = [&](uint64_t until) {
    while (arenas.bytes_in_use() < until) {
      queues.emplace_back();
      ASSERT_EQ(arenas.Allocate(3'200, &queues.back()), 0);
      ASSERT_TRUE(IsZero(queues.back()));
      std::memset(queues.back().memory.data(), static_cast<int>(queues.size()), 3'200);
    }
  };
  allocate(kHugePageBytes - 8'192);
  const void* begin = queues.front().memory.data();
  EXPECT_EQ(HugeBytesAt(begin), 0u);
  allocate(2 * kHugePageBytes + 8'192);
  EXPECT_EQ(HugeBytesAt(begin), 2 * kHugePageBytes);
  EXPECT_LE(BackedBytes(), 2 * kHugePageBytes + 64 * 1024) << "which takes no more memory";
  // A client that maps it later has them, too.
  void* client = MapForHugePages(announced_[1], last_fd_);
  ASSERT_NE(client, MAP_FAILED);
  for (size_t i = 0; i < queues.size(); ++i) {
    const std::byte* bytes = static_cast<std::byte*>(client) + queues[i].offset;
    for (size_t b = 0; b < queues[i].bytes; ++b) {
      ASSERT_EQ(bytes[b], static_cast<std::byte>(i + 1)) << i;
      ASSERT_EQ(queues[i].memory.data()[b], bytes[b]) << i;
    }
  }
  EXPECT_EQ(HugeBytesAt(client), 2 * kHugePageBytes);
  ASSERT_EQ(munmap(client, announced_[1]), 0);
  for (QueueMemory& queue : queues) arenas.Free(queue);
  queues.clear();
  allocate(2 * kHugePageBytes);
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

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/client/payload_fixture.h"

extern char** environ;

namespace verbena::client {
namespace {

TEST_F(Payload, WholePagesAreSharedInPlace) {
  InChild([] {
    File file;
    std::byte* at = MapPages(10);
    Fill(at, 10 * kPage);
    auto region = Register(file, at + 100, 9 * kPage);
    ASSERT_EQ(region->error, 0);
    ASSERT_EQ(region->request.piece_count, 1u);
    EXPECT_EQ(region->request.pieces[0].addr, reinterpret_cast<uint64_t>(at + kPage));
    EXPECT_EQ(region->request.pieces[0].bytes, 8 * kPage);
    EXPECT_TRUE(Holds(at, 10 * kPage)) << "nothing was lost";
    std::byte* view = file.View(region->request.pieces[0]);
    EXPECT_EQ(std::memcmp(view, at + kPage, 8 * kPage), 0);
    view[5] = std::byte{77};  // the NIC writes
    EXPECT_EQ(at[kPage + 5], std::byte{77});
    at[kPage + 6] = std::byte{78};  // the program does
    EXPECT_EQ(view[6], std::byte{78});
  });
}

TEST_F(Payload, RegisteringAgainFindsItShared) {
  InChild([] {
    File file;
    std::byte* at = MapPages(16);
    auto first = Register(file, at, 16 * kPage);
    const uint64_t bytes = file.Bytes();
    for (int i = 0; i < 1000; ++i) {
      auto again = Register(file, at + i % 3 * kPage, 13 * kPage);
      ASSERT_EQ(again->request.piece_count, 1u);
      ASSERT_EQ(again->request.pieces[0].offset,
                first->request.pieces[0].offset + static_cast<uint64_t>(i % 3) * kPage);
    }
    EXPECT_EQ(file.Bytes(), bytes);
  });
}

TEST_F(Payload, NeighboursOnOnePageAndOverlapsAreOfTheSameFile) {
  InChild([] {
    File file;
    std::byte* at = MapPages(32);
    Fill(at, 32 * kPage);
    auto left = Register(file, at, 10 * kPage + 1000);  // the last page is not whole
    left.reset();
    auto right = Register(file, at + 8 * kPage + 5, 20 * kPage);
    EXPECT_EQ(right->shared_bytes(), 20 * kPage - 5) << "but for its own last page";
    EXPECT_GE(right->request.piece_count, 2u) << "converted at different times";
    for (uint32_t i = 0; i < right->request.piece_count; ++i) {
      const shm::MappedPiece& piece = right->request.pieces[i];
      EXPECT_EQ(std::memcmp(file.View(piece), reinterpret_cast<void*>(piece.addr), piece.bytes), 0);
    }
    EXPECT_TRUE(Holds(at, 32 * kPage));
  });
}

// The NIC may be writing to what is registered and not shared: it must not change its place.
TEST_F(Payload, WhatIsRegisteredOtherwiseStaysWhereItIs) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    auto small = Register(file, at + kPage + 10, 100);  // no whole page
    EXPECT_EQ(small->request.piece_count, 0u);
    auto large = Register(file, at, 8 * kPage);
    EXPECT_EQ(large->shared_bytes(), 0u);
    small.reset();
    large.reset();
    auto later = Register(file, at, 8 * kPage);
    EXPECT_EQ(later->shared_bytes(), 8 * kPage);
  });
}

TEST_F(Payload, ThreadsForbidIt) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    {
      OtherThread other;
      EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u);
    }
    EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 8 * kPage);
  });
}

TEST_F(Payload, PagesTheKernelMayHoldForbidIt) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    char params[256] = {};
    const long ring = syscall(SYS_io_uring_setup, 4, params);
    if (ring >= 0) {
      EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u) << "io_uring";
      close(static_cast<int>(ring));
    }
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 4, &context) == 0) {
      EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u) << "aio";
      syscall(SYS_io_destroy, context);
    }
    std::byte* locked = MapPages(1);
    if (syscall(SYS_mlock, locked, kPage) == 0) {  // sanitizers make mlock do nothing
      EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u) << "mlock";
      syscall(SYS_munlock, locked, kPage);
    }
    EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 8 * kPage);
  });
}

// realloc of a block with a mapping of its own enlarges the mapping: there is room in the slot.
TEST_F(Payload, BlocksGrowMoveAndShrink) {
  InChild([] {
    File file;
    size_t bytes = 256 * kPage;
    auto* block = static_cast<std::byte*>(malloc(bytes));
    Fill(block, bytes);
    EXPECT_GT(Register(file, block, bytes)->shared_bytes(), 250 * kPage);
    std::byte* others[8];
    for (auto& other : others) other = static_cast<std::byte*>(malloc(bytes));
    for (size_t factor : {2, 16, 64, 3, 1}) {
      block = static_cast<std::byte*>(realloc(block, bytes * factor));
      ASSERT_NE(block, nullptr);
      ASSERT_TRUE(Holds(block, bytes)) << factor;
      std::memset(block + bytes, 7, bytes * (factor - 1));
    }
    EXPECT_GT(Register(file, block, bytes)->shared_bytes(), 250 * kPage) << "wherever it is now";
    for (auto& other : others) free(other);
    free(block);
  });
}

// In one registration: each finds room behind it, not its neighbour.
TEST_F(Payload, BlocksOfOneRegionGrowApart) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan's malloc keeps its records elsewhere";
#endif
  InChild([] {
    File file;
    constexpr size_t kBytes = 256 * kPage - 64;
    std::vector<std::byte*> blocks(8);
    for (auto& block : blocks) block = static_cast<std::byte*>(malloc(kBytes));
    std::sort(blocks.begin(), blocks.end());
    std::byte* begin = blocks.front() - 16;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(begin) % kPage, 0u) << "a mapping of its own";
    ASSERT_EQ(blocks.back() - blocks.front(), 7 * 256 * static_cast<ptrdiff_t>(kPage));
    for (size_t i = 0; i < 8; ++i) Fill(blocks[i], kBytes, static_cast<uint32_t>(i));
    auto region = Register(file, begin, 8 * 256 * kPage);
    EXPECT_EQ(region->shared_bytes(), 8 * 256 * kPage);
    region.reset();
    for (auto& block : blocks) {
      block = static_cast<std::byte*>(realloc(block, 3 * kBytes));
      std::memset(block + kBytes, 7, 2 * kBytes);
    }
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(Holds(blocks[i], kBytes, static_cast<uint32_t>(i))) << i;
    }
  });
}

// Behind it is no other block, but a mapping of the program's own that was registered with it.
TEST_F(Payload, ABlockGrowsApartFromWhatFollowsIt) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan's malloc keeps its records elsewhere";
#endif
  InChild([] {
    File file;
    constexpr size_t kBytes = 256 * kPage - 64;
    void* larger = malloc(kBytes + 16 * kPage);
    auto* block = static_cast<std::byte*>(realloc(larger, kBytes));  // what it had there is free
    std::byte* next = block - 16 + 256 * kPage;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(next) % kPage, 0u) << "a mapping of its own";
    ASSERT_EQ(mmap(next, 16 * kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              next);
    Fill(block, kBytes, 1);
    Fill(next, 16 * kPage, 2);
    auto region = Register(file, block - 16, 272 * kPage);
    EXPECT_EQ(region->shared_bytes(), 272 * kPage);
    region.reset();
    block = static_cast<std::byte*>(realloc(block, 3 * kBytes));
    std::memset(block + kBytes, 7, 2 * kBytes);
    EXPECT_TRUE(Holds(block, kBytes, 1));
    EXPECT_TRUE(Holds(next, 16 * kPage, 2));
  });
}

TEST_F(Payload, AllocatorsGoOnAsBefore) {
  InChild([] {
    File file;
    srandom(7);
    std::vector<std::pair<std::byte*, size_t>> blocks(64);
    for (int i = 0; i < 3000; ++i) {
      auto& [block, bytes] = blocks[static_cast<size_t>(random()) % blocks.size()];
      if (block != nullptr) {
        ASSERT_TRUE(Holds(block, bytes, static_cast<uint32_t>(bytes)));
        free(block);
      }
      bytes = static_cast<size_t>(random()) % (i % 10 == 0 ? 400'000 : 20'000) + 1;
      block = static_cast<std::byte*>(i % 2 == 0 ? malloc(bytes) : calloc(1, bytes));
      if (i % 2 != 0) {
        for (size_t k = 0; k < bytes; ++k) ASSERT_EQ(block[k], std::byte{0}) << "calloc";
      }
      Fill(block, bytes, static_cast<uint32_t>(bytes));
      if (i % 3 == 0) Register(file, block, bytes);
    }
    EXPECT_GT(file.Bytes(), 0u);
  });
}

TEST_F(Payload, WhatWasUnmappedIsGivenBack) {
  InChild([] {
    File file;
    constexpr size_t kPages = 1024;
    for (int i = 0; i < 50; ++i) {
      std::byte* at = MapPages(kPages);
      Fill(at, kPages * kPage);
      EXPECT_EQ(Register(file, at, kPages * kPage)->shared_bytes(), kPages * kPage);
      munmap(at, kPages * kPage);
    }
    EXPECT_LE(file.Bytes(), 2 * kPages * kPage);
  });
}

// --- fork ----------------------------------------------------------------------------------------

TEST_F(Payload, AChildHasMemoryOfItsOwn) {
  InChild([] {
    File file;
    std::byte* at = MapPages(16);
    Fill(at, 16 * kPage);
    auto region = Register(file, at, 15 * kPage);
    mprotect(at + 2 * kPage, kPage, PROT_NONE);
    mprotect(at + 3 * kPage, kPage, PROT_READ);
    int go[2];
    ASSERT_EQ(pipe(go), 0);
    const pid_t child = fork();
    if (child == 0) {
      mprotect(at + 2 * kPage, 2 * kPage, PROT_READ | PROT_WRITE);
      char byte;
      bool is_ok = read(go[0], &byte, 1) == 1;  // the parent has written to all of it
      is_ok = is_ok && Holds(at, 16 * kPage);
      Fill(at, 16 * kPage, 99);
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(Holds(at, 16 * kPage, 99) ? 0 : 1);
      int status = 0;
      is_ok = is_ok && waitpid(grandchild, &status, 0) == grandchild && status == 0;
      File own(2);  // and it may share memory of its own
      is_ok = is_ok && Register(own, at, 15 * kPage)->shared_bytes() == 15 * kPage;
      _exit(is_ok ? 0 : 1);
    }
    mprotect(at + 2 * kPage, 2 * kPage, PROT_READ | PROT_WRITE);
    ASSERT_TRUE(Holds(at, 16 * kPage));
    Fill(at, 16 * kPage, 1);
    ASSERT_EQ(write(go[1], "g", 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(Holds(at, 16 * kPage, 1)) << "the child's writes are the child's";
  });
}

TEST_F(Payload, AChildThatDiesAtOnceHoldsUpNobody) {
  InChild([] {
    File file;
    std::byte* at = MapPages(4096);
    Fill(at, 4096 * kPage);
    auto region = Register(file, at, 4096 * kPage);
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      kill(child, SIGKILL);
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
    EXPECT_TRUE(Holds(at, 4096 * kPage));
  });
}

TEST_F(Payload, ProgramsThatAreSpawnedNeedNoCopy) {
  InChild([] {
    File file;
    std::byte* at = MapPages(16);
    Fill(at, 16 * kPage);
    auto region = Register(file, at, 16 * kPage);
    char name[] = "/bin/true";
    char* arguments[] = {name, nullptr};
    pid_t pid;
    ASSERT_EQ(posix_spawn(&pid, name, nullptr, nullptr, arguments, environ), 0);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    EXPECT_EQ(system("true"), 0);
    EXPECT_TRUE(Holds(at, 16 * kPage));
    EXPECT_EQ(file.View(region->request.pieces[0])[1], at[1]) << "still shared";
  });
}

// --- the world around ----------------------------------------------------------------------------

TEST_F(Payload, FilesMayBeForbiddenToBeLarge) {
  InChild([] {
    File file;  // the daemon's
    rlimit small = {8 * kPage, 8 * kPage};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::byte* at = MapPages(64);
    Fill(at, 64 * kPage);
    EXPECT_EQ(Register(file, at, 64 * kPage)->shared_bytes(), 64 * kPage);
    EXPECT_TRUE(Holds(at, 64 * kPage));
  });
}

TEST_F(Payload, WhoClosesAllFdsLosesNothing) {
  InChild([] {
    File file;
    close(file.fd);
    char path[] = "/tmp/payload_test_XXXXXX";
    const int own = mkstemp(path);
    unlink(path);
    ASSERT_EQ(dup2(own, file.fd), file.fd);  // the number is another file's now
    std::byte* at = MapPages(8);
    EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u);
    struct stat status;
    ASSERT_EQ(fstat(file.fd, &status), 0);
    EXPECT_EQ(status.st_size, 0) << "and nothing was written to it";
  });
}

TEST_F(Payload, NewConnectionsTakeOverWhatOldOnesLeft) {
  InChild([] {
    auto old = std::make_unique<File>(1);
    std::byte* at = MapPages(8);
    Fill(at, 8 * kPage);
    auto region = Register(*old, at, 8 * kPage);
    File second(2);
    EXPECT_EQ(Register(second, at, 8 * kPage)->shared_bytes(), 0u) << "another NIC's";
    region.reset();
    internal::ReleasePayload(old->file);
    auto again = Register(second, at, 8 * kPage);
    EXPECT_EQ(again->shared_bytes(), 8 * kPage);
    EXPECT_TRUE(Holds(at, 8 * kPage));
    EXPECT_EQ(std::memcmp(second.View(again->request.pieces[0]), at, 8 * kPage), 0);
  });
}

TEST_F(Payload, ForcedMeansEveryByteOrNone) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    auto odd = Register(file, at + 100, 2 * kPage, Sharing::kAll);
    EXPECT_EQ(odd->error, 0);
    EXPECT_EQ(odd->shared_bytes(), 2 * kPage);
    EXPECT_EQ(odd->request.pieces[0].addr, reinterpret_cast<uint64_t>(at + 100));
    std::byte* view = file.View(odd->request.pieces[0]);
    at[100] = std::byte{5};
    EXPECT_EQ(view[0], std::byte{5});
    auto few = Register(file, at + 5 * kPage + 1, 3, Sharing::kAll);
    EXPECT_EQ(few->shared_bytes(), 3u);
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void* of_file = mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT_EQ(Register(file, of_file, 8 * kPage, Sharing::kAll)->error, EOPNOTSUPP);
  });
}

TEST_F(Payload, ForcedBesideThreadsTouchesNoMoreThanItsPages) {
  InChild([] {
    File file;
    std::byte* at = MapPages(64);
    {
      OtherThread other;
      EXPECT_EQ(Register(file, at + 10 * kPage + 1, kPage, Sharing::kAll)->shared_bytes(), kPage);
      EXPECT_EQ(Register(file, at, 64 * kPage)->shared_bytes(), 2 * kPage) << "its pages alone";
    }
    EXPECT_EQ(Register(file, at + 30 * kPage, 3, Sharing::kAll)->shared_bytes(), 3u);
  });
}

// The program needs mappings, too; and each registration may look at all of them.
TEST_F(Payload, MappingsAreNotUsedUp) {
  InChild([] {
    File file;
    auto share_many = [&file](size_t regions, size_t pages) {
      std::byte* at = MapPages(regions * (pages + 1));
      size_t shared = 0;
      for (size_t i = 0; i < regions; ++i) {
        shared += Register(file, at + i * (pages + 1) * kPage, pages * kPage)->shared_bytes() != 0;
      }
      return shared;
    };
    const size_t small = share_many(3000, 1);
    EXPECT_GT(small, 10u);
    EXPECT_LT(small, 100u);
    const size_t large = share_many(3000, 16);
    EXPECT_GT(large, 500u);
    EXPECT_LT(large, 2000u);
  });
}

}  // namespace
}  // namespace verbena::client

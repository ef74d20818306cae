// The traps of docs/mapped-memory.md, a test each, that are not in payload_test.cc.
#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/client/payload_fixture.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOOKS_MMAP 1
namespace {
int hooked_calls = 0;
}
// As programs have it that want to know of every mapping (UCX).
extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  ++hooked_calls;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
#endif

namespace verbena::client {
namespace {

using PayloadTrap = Payload;

size_t SharedOf(const File& file, void* at, size_t bytes) {
  return Register(file, at, bytes)->shared_bytes();
}

// --- memory that is not the kind -----------------------------------------------------------------

TEST_F(PayloadTrap, SharedMemoryStaysWhatItIs) {
  InChild([] {
    File file;
    void* at = mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(SharedOf(file, at, 8 * kPage), 0u);
  });
}

TEST_F(PayloadTrap, ReadOnlyMemoryStaysWhatItIs) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    mprotect(at, 8 * kPage, PROT_READ);
    EXPECT_EQ(SharedOf(file, at, 8 * kPage), 0u);
    EXPECT_EQ(SharedOf(file, reinterpret_cast<void*>(&MapPages), 2 * kPage), 0u) << "code";
  });
}

TEST_F(PayloadTrap, MapsOfFilesStayWhatTheyAre) {
  InChild([] {
    File file;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void* at = mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT_EQ(SharedOf(file, at, 8 * kPage), 0u);
  });
}

TEST_F(PayloadTrap, TheStackStaysWhatItIs) {
  InChild([] {
    File file;
    char stack[8 * kPage];
    std::memset(stack, 1, sizeof(stack));
    EXPECT_EQ(SharedOf(file, stack, sizeof(stack)), 0u);
    EXPECT_EQ(Register(file, stack, sizeof(stack), Sharing::kAll)->error, EOPNOTSUPP);
  });
}

TEST_F(PayloadTrap, HugePagesStayWhatTheyAre) {
  InChild([] {
    File file;
    constexpr size_t kHuge = 2 << 20;
    void* at = mmap(nullptr, kHuge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    const size_t shared =
        at == MAP_FAILED ? 0 : SharedOf(file, at, kHuge);  // few machines have some
    EXPECT_EQ(shared, 0u);
    // Transparent ones are memory as any.
    std::byte* pages = MapPages(3 * kHuge / kPage);
    madvise(pages, 3 * kHuge, MADV_HUGEPAGE);
    Fill(pages, 3 * kHuge);
    EXPECT_EQ(SharedOf(file, pages, 3 * kHuge), 3 * kHuge);
    EXPECT_TRUE(Holds(pages, 3 * kHuge));
  });
}

TEST_F(PayloadTrap, HolesStayHoles) {
  InChild([] {
    File file;
    std::byte* at = MapPages(12);
    Fill(at, 12 * kPage);
    mprotect(at + 4 * kPage, 4 * kPage, PROT_NONE);
    EXPECT_EQ(SharedOf(file, at, 12 * kPage), 8 * kPage);
    mprotect(at + 4 * kPage, 4 * kPage, PROT_READ | PROT_WRITE);
    EXPECT_TRUE(Holds(at, 12 * kPage));
  });
}

// A new mapping would not be for fork what the old one was, nor have its key.
TEST_F(PayloadTrap, AdvisedMemoryStaysWhatItIs) {
  InChild([] {
    File file;
    for (const int advice : {MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP}) {
      std::byte* at = MapPages(24);
      ASSERT_EQ(madvise(at + 8 * kPage, 8 * kPage, advice), 0);
      EXPECT_EQ(SharedOf(file, at + 8 * kPage, 8 * kPage), 0u) << advice;
      EXPECT_EQ(SharedOf(file, at, 4 * kPage), 4 * kPage) << "not its neighbour";
    }
    const long key = syscall(SYS_pkey_alloc, 0, 0);
    if (key > 0) {
      std::byte* at = MapPages(8);
      ASSERT_EQ(syscall(SYS_pkey_mprotect, at, 8 * kPage, PROT_READ | PROT_WRITE, key), 0);
      EXPECT_EQ(SharedOf(file, at, 8 * kPage), 0u);
    }
  });
}

// --- fork ----------------------------------------------------------------------------------------

std::byte* touched_by_handler = nullptr;

TEST_F(PayloadTrap, HandlersOfOthersRunInAChildThatHasItsOwn) {
  InChild([] {
    File file;
    touched_by_handler = MapPages(8);
    ASSERT_EQ(pthread_atfork(nullptr, nullptr, [] { touched_by_handler[0] = std::byte{9}; }), 0);
    ASSERT_EQ(SharedOf(file, touched_by_handler, 8 * kPage), 8 * kPage);
    const pid_t child = fork();
    if (child == 0) _exit(touched_by_handler[0] == std::byte{9} ? 0 : 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(touched_by_handler[0], std::byte{0});
  });
}

// The kernel writes a child's id there before anything of ours runs.
TEST_F(PayloadTrap, TheThreadsOwnRecordStays) {
  InChild([] {
    File file;
    const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer()) & ~(kPage - 1);
    auto* at = reinterpret_cast<std::byte*>(thread);
    EXPECT_EQ(SharedOf(file, at, kPage), 0u);
    EXPECT_EQ(Register(file, at, kPage, Sharing::kAll)->error, EOPNOTSUPP);
    const pid_t child = fork();
    if (child == 0) _exit(0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(raise(0), 0) << "this thread's id is its own";
  });
}

#if defined(HOOKS_MMAP)
// They would deregister what was mapped over, which waits for us.
TEST_F(PayloadTrap, HooksOfMmapHearNothing) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    const int calls = hooked_calls;
    ASSERT_GT(calls, 0);
    ASSERT_EQ(SharedOf(file, at, 8 * kPage), 8 * kPage);
    const rlimit small = {8 * kPage, 8 * kPage};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::byte* other = MapPages(8);
    ASSERT_EQ(SharedOf(file, other, 8 * kPage), 8 * kPage);
    EXPECT_EQ(hooked_calls, calls + 1) << "but for our own";
  });
}
#endif

// --- what the kernel and others do with it -------------------------------------------------------

// What the documentation warns of: who takes advised memory for zeroed must not have it mapped.
TEST_F(PayloadTrap, DontneedKeepsWhatIsShared) {
  InChild([] {
    File file;
    std::byte* at = MapPages(8);
    Fill(at, 8 * kPage);
    auto region = Register(file, at, 8 * kPage);
    ASSERT_EQ(region->shared_bytes(), 8 * kPage);
    EXPECT_EQ(madvise(at, 8 * kPage, MADV_DONTNEED), 0);
    EXPECT_TRUE(Holds(at, 8 * kPage));
    EXPECT_EQ(madvise(at, 8 * kPage, MADV_FREE), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(madvise(at, 8 * kPage, MADV_REMOVE), 0) << "this one zeroes";
    EXPECT_EQ(at[100], std::byte{0});
  });
}

TEST_F(PayloadTrap, WritersBesideARegistrationLoseNothing) {
  InChild([] {
    File file;
    constexpr size_t kPages = 256;
    std::byte* at = MapPages(kPages);
    std::atomic<bool> ends{false};
    std::atomic<uint64_t> rounds{0};
    std::thread writer([&] {
      for (uint64_t round = 1; !ends.load(); ++round) {
        for (size_t i = 0; i < kPages; ++i) {
          auto* word = reinterpret_cast<uint64_t*>(at + i * kPage);
          if (__atomic_load_n(word, __ATOMIC_RELAXED) != round - 1) return ends.wait(false);
          __atomic_store_n(word, round, __ATOMIC_RELAXED);
        }
        rounds.store(round);
      }
    });
    for (int i = 0; i < 200; ++i) Register(file, at, kPages * kPage);
    while (rounds.load() < 3) sched_yield();
    ends.store(true);
    ends.notify_all();
    writer.join();
    const auto* first = reinterpret_cast<const uint64_t*>(at);
    for (size_t i = 0; i < kPages; ++i) {
      ASSERT_EQ(*reinterpret_cast<const uint64_t*>(at + i * kPage), *first) << i;
    }
    EXPECT_EQ(file.Bytes(), 0u) << "all of it was left alone";
  });
}

// Fixed buffers are pages that the kernel has got hold of: whatever is mapped later, it writes
// there.
TEST_F(PayloadTrap, FixedBuffersOfIoUringStayWhereTheyAre) {
  InChild([] {
    File file;
    std::byte* shared = MapPages(8);
    ASSERT_EQ(SharedOf(file, shared, 8 * kPage), 8 * kPage);
    std::byte* pinned = MapPages(8);
    io_uring_params params = {};
    const int ring = static_cast<int>(syscall(SYS_io_uring_setup, 4, &params));
    if (ring < 0) GTEST_SKIP() << "no io_uring here";
    iovec buffers[] = {{shared, 8 * kPage}, {pinned, 8 * kPage}};
    ASSERT_EQ(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, 2), 0);
    EXPECT_EQ(SharedOf(file, pinned, 8 * kPage), 0u) << "the kernel has these pages";
    auto again = Register(file, shared, 8 * kPage);
    ASSERT_EQ(again->shared_bytes(), 8 * kPage) << "it has the shared ones";
    auto* submission =
        static_cast<char*>(mmap(nullptr, params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING));
    auto* entries =
        static_cast<io_uring_sqe*>(mmap(nullptr, 4 * sizeof(io_uring_sqe), PROT_READ | PROT_WRITE,
                                        MAP_SHARED, ring, IORING_OFF_SQES));
    ASSERT_NE(static_cast<void*>(submission), MAP_FAILED);
    ASSERT_NE(static_cast<void*>(entries), MAP_FAILED);
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    for (uint32_t i = 0; i < 2; ++i) {
      ASSERT_EQ(write(pipe_fds[1], "from the kernel", 15), 15);
      entries[i] = {};
      entries[i].opcode = IORING_OP_READ_FIXED;
      entries[i].fd = pipe_fds[0];
      entries[i].addr = reinterpret_cast<uint64_t>(buffers[i].iov_base);
      entries[i].len = 15;
      entries[i].buf_index = static_cast<uint16_t>(i);
      reinterpret_cast<uint32_t*>(submission + params.sq_off.array)[i] = i;
      __atomic_store_n(reinterpret_cast<uint32_t*>(submission + params.sq_off.tail), i + 1,
                       __ATOMIC_RELEASE);
      ASSERT_EQ(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0), 1);
    }
    EXPECT_EQ(std::memcmp(pinned, "from the kernel", 15), 0);
    EXPECT_EQ(std::memcmp(shared, "from the kernel", 15), 0);
    EXPECT_EQ(std::memcmp(file.View(again->request.pieces[0]), "from the kernel", 15), 0)
        << "the NIC sees it";
  });
}

// --- many, and again -----------------------------------------------------------------------------

TEST_F(PayloadTrap, FreedMemoryIsNotItsNextOwners) {
  InChild([] {
    File file;
    std::byte* at = MapPages(16);
    Fill(at, 16 * kPage, 1);
    auto stale = Register(file, at, 16 * kPage);
    std::byte* view = file.View(stale->request.pieces[0]);
    munmap(at, 16 * kPage);
    auto* next = static_cast<std::byte*>(mmap(at, 16 * kPage, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    ASSERT_EQ(next, at);
    EXPECT_EQ(next[5], std::byte{0});
    Fill(next, 16 * kPage, 2);
    view[5] = std::byte{77};  // the NIC writes by the key of what is gone
    EXPECT_TRUE(Holds(next, 16 * kPage, 2));
    auto fresh = Register(file, next, 16 * kPage);
    EXPECT_EQ(fresh->shared_bytes(), 16 * kPage);
    EXPECT_NE(fresh->request.pieces[0].offset, stale->request.pieces[0].offset);
    EXPECT_TRUE(Holds(next, 16 * kPage, 2));
  });
}

int64_t CpuNs() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

TEST_F(PayloadTrap, AHundredThousandRegistrationsOfOneBuffer) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kCount = 5'000;  // where looking at all mappings takes longer
#else
  constexpr int kCount = 100'000;
#endif
  InChild([] {
    File file;
    constexpr size_t kPages = 64;
    std::byte* at = MapPages(kPages);
    Fill(at, kPages * kPage);
    std::vector<std::unique_ptr<Region>> regions;
    regions.reserve(kCount);
    for (int i = 0; i < kCount; ++i) {
      regions.push_back(Register(file, at, kPages * kPage));
      ASSERT_EQ(regions.back()->shared_bytes(), kPages * kPage) << i;
    }
    EXPECT_EQ(file.Bytes(), kPages * kPage) << "one copy";
    EXPECT_EQ(regions.front()->request.pieces[0].offset, regions.back()->request.pieces[0].offset);
    EXPECT_TRUE(Holds(at, kPages * kPage));
  });
}

// By the CPU's time: the clock is everybody's.
TEST_F(PayloadTrap, RegisteringAgainCostsNoCopy) {
  InChild([] {
    File file;
    constexpr size_t kPages = 16 * 1024;
    std::byte* at = MapPages(kPages);
    std::memset(at, 1, kPages * kPage);
    const int64_t begin = CpuNs();
    ASSERT_EQ(SharedOf(file, at, kPages * kPage), kPages * kPage);
    const int64_t first_ns = CpuNs() - begin;
    int64_t again_ns = INT64_MAX;
    for (int i = 0; i < 10; ++i) {
      const int64_t start = CpuNs();
      ASSERT_EQ(SharedOf(file, at, kPages * kPage), kPages * kPage);
      again_ns = std::min(again_ns, CpuNs() - start);
    }
    EXPECT_LT(again_ns * 5, first_ns) << again_ns << " ns, the first " << first_ns;
  });
}

}  // namespace
}  // namespace verbena::client

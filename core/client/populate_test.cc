#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/client/session.h"

namespace verbena::client {
namespace {

constexpr size_t kPage = 4096;
const char kConstant[] = "read-only text of the program";

class Mapping {
 public:
  Mapping(size_t bytes, int protection, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : bytes_(bytes), base_(mmap(nullptr, bytes, protection, flags, fd, 0)) {}
  ~Mapping() {
    if (ok()) munmap(base_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool ok() const { return base_ != MAP_FAILED; }
  uint8_t* data() const { return static_cast<uint8_t*>(base_); }
  size_t ResidentPages() const {
    std::vector<unsigned char> pages(bytes_ / kPage);
    EXPECT_EQ(mincore(base_, bytes_, pages.data()), 0);
    size_t resident = 0;
    for (unsigned char page : pages) resident += page & 1;
    return resident;
  }

 private:
  size_t bytes_;
  void* base_;
};

TEST(Populate, MakesEveryTouchedPagePresent) {
  for (bool write : {false, true}) {
    Mapping memory(8 * kPage, PROT_READ | PROT_WRITE);
    madvise(memory.data(), 8 * kPage, MADV_NOHUGEPAGE);
    EXPECT_EQ(memory.ResidentPages(), 0u);
    // From the last byte of page 1 to the first byte of page 5.
    EXPECT_EQ(PopulateForRegistration(memory.data() + 2 * kPage - 1, 3 * kPage + 2, write), 0);
    EXPECT_EQ(memory.ResidentPages(), 5u);
    EXPECT_EQ(memory.data()[0], 0) << "contents stay";
  }
}

TEST(Populate, KeepsContents) {
  std::vector<uint8_t> heap(100'000, 0x5a);
  EXPECT_EQ(PopulateForRegistration(heap.data(), heap.size(), true), 0);
  for (uint8_t byte : heap) ASSERT_EQ(byte, 0x5a);
}

TEST(Populate, EmptyRangeIsFineAndWrappingIsNot) {
  EXPECT_EQ(PopulateForRegistration(nullptr, 0, true), 0);
  EXPECT_EQ(PopulateForRegistration(reinterpret_cast<void*>(~uintptr_t{0} - 10), 100, true),
            EINVAL);
  EXPECT_EQ(PopulateForRegistration(reinterpret_cast<void*>(kPage), SIZE_MAX, false), EINVAL);
}

TEST(Populate, HolesAreFaults) {
  Mapping memory(4 * kPage, PROT_READ | PROT_WRITE);
  ASSERT_EQ(munmap(memory.data() + 2 * kPage, kPage), 0);
  for (bool write : {false, true}) {
    EXPECT_EQ(PopulateForRegistration(memory.data(), 4 * kPage, write), EFAULT);
    EXPECT_EQ(PopulateForRegistration(memory.data() + 2 * kPage, 1, write), EFAULT);
    EXPECT_EQ(PopulateForRegistration(memory.data(), 2 * kPage, write), 0);
    EXPECT_EQ(PopulateForRegistration(memory.data() + 3 * kPage, kPage, write), 0);
    EXPECT_EQ(PopulateForRegistration(memory.data(), 2 * kPage + 1, write), EFAULT);
    EXPECT_EQ(PopulateForRegistration(nullptr, kPage, write), EFAULT);
  }
}

TEST(Populate, RightsDecide) {
  Mapping memory(3 * kPage, PROT_READ | PROT_WRITE);
  ASSERT_EQ(mprotect(memory.data() + kPage, kPage, PROT_READ), 0);
  EXPECT_EQ(PopulateForRegistration(memory.data(), 3 * kPage, false), 0);
  EXPECT_EQ(PopulateForRegistration(memory.data(), 3 * kPage, true), EFAULT);
  EXPECT_EQ(PopulateForRegistration(memory.data(), kPage, true), 0);
  ASSERT_EQ(mprotect(memory.data() + kPage, kPage, PROT_NONE), 0);
  EXPECT_EQ(PopulateForRegistration(memory.data(), 3 * kPage, false), EFAULT);
}

TEST(Populate, ReadOnlyDataNeedsNoWriteRight) {
  EXPECT_EQ(PopulateForRegistration(const_cast<char*>(kConstant), sizeof(kConstant), false), 0);
  EXPECT_EQ(PopulateForRegistration(const_cast<char*>(kConstant), sizeof(kConstant), true), EFAULT);
}

TEST(Populate, StackAndErrnoAreLeftAlone) {
  uint8_t local[3 * kPage];
  local[0] = 7;
  errno = EXDEV;
  EXPECT_EQ(PopulateForRegistration(local, sizeof(local), true), 0);
  EXPECT_EQ(local[0], 7);
  EXPECT_EQ(PopulateForRegistration(nullptr, 1, false), EFAULT);
  EXPECT_EQ(errno, EXDEV);
}

TEST(Populate, FilesUpToTheirEnd) {
  char path[] = "/tmp/populate_test_XXXXXX";
  int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  unlink(path);
  ASSERT_EQ(ftruncate(fd, 2 * kPage - 100), 0);
  Mapping shared(4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  Mapping private_map(4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
  Mapping read_only(4 * kPage, PROT_READ, MAP_SHARED, fd);
  close(fd);
  for (const Mapping* map : {&shared, &private_map}) {
    for (bool write : {false, true}) {
      EXPECT_EQ(PopulateForRegistration(map->data(), 2 * kPage, write), 0);
      EXPECT_EQ(PopulateForRegistration(map->data(), 2 * kPage + 1, write), EFAULT);
    }
  }
  EXPECT_EQ(PopulateForRegistration(read_only.data(), 2 * kPage, false), 0);
  EXPECT_EQ(PopulateForRegistration(read_only.data(), 2 * kPage, true), EFAULT);
}

TEST(Populate, SystemVSharedMemory) {
  int id = shmget(IPC_PRIVATE, 4 * kPage, IPC_CREAT | 0600);
  if (id < 0) GTEST_SKIP() << "no System V shared memory here";
  void* base = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  ASSERT_NE(base, reinterpret_cast<void*>(-1));
  EXPECT_EQ(PopulateForRegistration(base, 4 * kPage, true), 0);
  EXPECT_EQ(PopulateForRegistration(base, 4 * kPage, false), 0);
  shmdt(base);
}

TEST(Populate, HugePages) {
  constexpr size_t kHuge = 2 << 20;
  Mapping memory(kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB);
  if (!memory.ok()) GTEST_SKIP() << "no huge pages reserved here";
  EXPECT_EQ(PopulateForRegistration(memory.data() + kPage, kHuge - kPage, true), 0);
}

TEST(Populate, LargeRegion) {
  constexpr size_t kBytes = size_t{1} << 30;
  Mapping memory(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(PopulateForRegistration(memory.data(), kBytes, false), 0);
  EXPECT_EQ(memory.data()[kBytes - 1], 0);
}

// What kernels before 5.14 get: rights from /proc, presence by reading.
TEST(PopulateBySteps, AgreesWithTheKernelsWay) {
  Mapping memory(200 * kPage, PROT_READ | PROT_WRITE);
  auto steps = [&](size_t first, size_t pages, bool write) {
    return internal::PopulateBySteps(memory.data() + first * kPage, pages * kPage, kPage, write);
  };
  EXPECT_EQ(steps(0, 200, true), 0);
  ASSERT_EQ(mprotect(memory.data() + 100 * kPage, kPage, PROT_READ), 0);
  EXPECT_EQ(steps(0, 200, false), 0);
  EXPECT_EQ(steps(0, 200, true), EFAULT);
  EXPECT_EQ(steps(0, 100, true), 0);
  EXPECT_EQ(steps(101, 99, true), 0);
  ASSERT_EQ(munmap(memory.data() + 150 * kPage, kPage), 0);
  EXPECT_EQ(steps(0, 200, false), EFAULT);
  EXPECT_EQ(steps(150, 1, false), EFAULT);
  EXPECT_EQ(steps(151, 49, false), 0);
  int fd = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kPage), 0);
  Mapping file(2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  close(fd);
  EXPECT_EQ(internal::PopulateBySteps(file.data(), kPage, kPage, true), 0);
  EXPECT_EQ(internal::PopulateBySteps(file.data(), 2 * kPage, kPage, true), EFAULT);
}

}  // namespace
}  // namespace verbena::client

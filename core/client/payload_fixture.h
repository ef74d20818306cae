// A payload file as a daemon hands it out, memory with known contents, and tests in processes of
// their own.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "core/client/payload.h"
#include "core/shm/attach.h"

namespace verbena::client {

constexpr size_t kPage = 4096;

// Each test runs in a process of its own: what is converted stays so, and threads of the test
// framework would forbid it.
class Payload : public ::testing::Test {
 protected:
#if defined(__SANITIZE_THREAD__)
  void SetUp() override { GTEST_SKIP() << "TSan has a thread of its own, which forbids it"; }
#endif
  static void InChild(const std::function<void()>& body) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      body();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
};

// What the daemon hands out, and a view of it as the NIC has.
struct File {
  explicit File(uint64_t id = 1) {
    fd = memfd_create("verbena-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(shm::kPayloadFileBytes)), 0);
    view_fd = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    EXPECT_EQ(internal::AdoptPayload(id, fd, &file), 0);
  }
  std::byte* View(const shm::MappedPiece& piece) const {
    void* base = mmap(nullptr, (piece.bytes + 2 * kPage) & ~(kPage - 1), PROT_READ | PROT_WRITE,
                      MAP_SHARED, view_fd, static_cast<off_t>(piece.offset & ~(kPage - 1)));
    EXPECT_NE(base, MAP_FAILED);
    return static_cast<std::byte*>(base) + piece.offset % kPage;
  }
  // Bytes of memory that the file takes.
  uint64_t Bytes() const {
    struct stat status;
    EXPECT_EQ(fstat(view_fd, &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }
  int fd = -1, view_fd = -1;
  PayloadFile* file = nullptr;
};

struct Region {
  Registration registration;
  shm::RegMrRequest request = {};
  int error = 0;

  uint64_t shared_bytes() const {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request.piece_count; ++i) bytes += request.pieces[i].bytes;
    return bytes;
  }
};

inline std::unique_ptr<Region> Register(const File& file, const void* at, size_t bytes,
                                        Sharing sharing = Sharing::kWhereSafe) {
  auto region = std::make_unique<Region>();
  region->request.addr = reinterpret_cast<uint64_t>(at);
  region->request.length = bytes;
  region->error = internal::ShareRange(file.file, sharing, &region->registration, &region->request);
  return region;
}

// The process has one thread more while this lives.
class OtherThread {
 public:
  OtherThread() = default;
  ~OtherThread() {
    ends_.store(true);
    ends_.notify_all();
    thread_.join();
    while (!internal::MayConvert()) {  // the kernel takes a moment to forget it
    }
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_{[this] {
    while (!ends_.load()) ends_.wait(false);
  }};
};

inline std::byte* MapPages(size_t pages) {
  void* base =
      mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(base, MAP_FAILED);
  return static_cast<std::byte*>(base);
}

inline void Fill(std::byte* at, size_t bytes, uint32_t seed = 0) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(i * 13 + (i >> 8) + seed);
}
inline bool Holds(const std::byte* at, size_t bytes, uint32_t seed = 0) {
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != static_cast<std::byte>(i * 13 + (i >> 8) + seed)) return false;
  }
  return true;
}

}  // namespace verbena::client

// A process whose memory is used up: errors, and never the end of the program.
#include <rdma/rdma_cma.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

// Allocations that succeed before all others fail; negative: all succeed.
std::atomic<long> g_allocations_left{-1};
std::atomic<bool> g_has_refused{false};

bool IsRefused() {
  if (g_allocations_left.load() < 0) return false;
  if (g_allocations_left.load() > 0) {
    g_allocations_left.fetch_sub(1);
    return false;
  }
  g_has_refused.store(true);
  errno = ENOMEM;
  return true;
}

}  // namespace
}  // namespace verbena::conformance

// In place of libc's, for everything in this process.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);

void* malloc(size_t bytes) {
  return verbena::conformance::IsRefused() ? nullptr : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  return verbena::conformance::IsRefused() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  return verbena::conformance::IsRefused() ? nullptr : __libc_realloc(memory, bytes);
}
}

namespace verbena::conformance {
namespace {

using Verb_ibv_get_device_list = VerbsTest;
using Verb_ibv_open_device = VerbsTest;
using Cm_rdma_create_event_channel = VerbsTest;

enum Outcome { kHadMemory = 10, kWorkedWithout, kSaidSo, kSaidOtherwise };

// Has `call` return 0 or errno in a child for which memory ends after each number of allocations.
void WithoutMemory(const std::function<int()>& call) {
  constexpr int kAllocationsMax = 1000;
  int said_so = 0;
  for (int n = 0; n < kAllocationsMax; ++n) {
    const pid_t child = fork();
    if (child == 0) {
      g_allocations_left.store(n);
      const int error = call();
      g_allocations_left.store(-1);
      if (!g_has_refused.load()) _exit(error == 0 ? kHadMemory : 1);
      _exit(error == 0 ? kWorkedWithout : error == ENOMEM ? kSaidSo : kSaidOtherwise);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " after " << n;
    if (WEXITSTATUS(status) == kHadMemory) {
      EXPECT_GT(said_so, 0);
      return;
    }
    said_so += WEXITSTATUS(status) == kSaidSo ? 1 : 0;
    EXPECT_TRUE(WEXITSTATUS(status) == kSaidSo || WEXITSTATUS(status) == kWorkedWithout)
        << WEXITSTATUS(status) << " after " << n;
  }
  FAIL() << "it never had memory enough";
}

TEST_F(Verb_ibv_get_device_list, SaysThatThereIsNoMemory) {
  WithoutMemory([] { return ibv_get_device_list(nullptr) != nullptr ? 0 : errno; });
}

TEST_F(Verb_ibv_open_device, SaysThatThereIsNoMemory) {
  ibv_device** list = ibv_get_device_list(nullptr);
  ASSERT_NE(list, nullptr);
  WithoutMemory([list] { return ibv_open_device(list[0]) != nullptr ? 0 : errno; });
  ibv_free_device_list(list);
}

TEST_F(Cm_rdma_create_event_channel, SaysThatThereIsNoMemory) {
  WithoutMemory([] { return rdma_create_event_channel() != nullptr ? 0 : errno; });
}

}  // namespace
}  // namespace verbena::conformance

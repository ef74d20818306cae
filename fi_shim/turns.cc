#include "fi_shim/turns.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/client/waiting.h"

// The version that glibc had before it moved the function: this library loads on older ones, too.
__asm__(".symver pthread_testcancel, pthread_testcancel@GLIBC_2.2.5");

namespace verbena::fi {
namespace {

// By then who sleeps sees whether the leader is still there, and is cancelled if he is to be.
constexpr int kLookMs = 500;

int ThisThread() { return static_cast<int>(syscall(SYS_gettid)); }

bool IsAlive(int thread) {
  const int saved_errno = errno;
  const bool is_gone = syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
  errno = saved_errno;
  return !is_gone;
}

}  // namespace

bool Turns::Lead() {
  const int self = ThisThread();
  int leader = leader_.load();
  if (leader != 0 && leader != self && IsAlive(leader)) return false;
  return leader_.compare_exchange_strong(leader, self);
}

void Turns::Leave() {
  leader_.store(0);
  Tell();
}

void Turns::Tell() {
  turn_.fetch_add(1);
  // seq_cst: who goes to sleep counts himself before the kernel compares the turn.
  if (sleepers_.load() != 0) client::FutexWakeAll(turn_);
}

bool Turns::AwaitNext(uint32_t turn, int timeout_ms) {
  pthread_testcancel();
  const int wait_ms = timeout_ms < 0 ? kLookMs : std::min(timeout_ms, kLookMs);
  sleepers_.fetch_add(1);
  const bool is_quiet = client::FutexWait(turn_, turn, wait_ms, /*shared=*/false);
  sleepers_.fetch_sub(1);
  return is_quiet;
}

}  // namespace verbena::fi

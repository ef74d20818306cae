#include "core/client/waiting.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "core/clock/monotonic_clock.h"

namespace verbena::client {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

int64_t MonotonicMs() { return ReadMonotonicClock().ns / 1'000'000; }

namespace {

void Wake(std::atomic<uint32_t>& word, int count) {
  int saved = errno;  // callers return their errors; the host's errno is not theirs to change
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
  errno = saved;
}

}  // namespace

bool FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int milliseconds,
               bool shared) {
  timespec timeout = {milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  int op = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  int saved = errno;
  bool is_interrupted =
      syscall(SYS_futex, &word, op, expected, &timeout, nullptr, 0) != 0 && errno == EINTR;
  errno = saved;
  return !is_interrupted;
}

void FutexWakeOne(std::atomic<uint32_t>& word) { Wake(word, 1); }
void FutexWakeAll(std::atomic<uint32_t>& word) { Wake(word, INT_MAX); }

bool AwaitInput(int fd, int64_t deadline_ms) {
  for (;;) {
    int64_t left = deadline_ms - MonotonicMs();
    if (left < 0) left = 0;
    pollfd entry = {fd, POLLIN, 0};
    int ready = poll(&entry, 1, left > INT_MAX ? INT_MAX : static_cast<int>(left));
    if (ready == 1) return (entry.revents & POLLNVAL) == 0;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

}  // namespace verbena::client

#include "core/client/empty_polls.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "core/client/session.h"

namespace verbena::client {
namespace {

// How often an empty poll looks at the clock, and how often, by the clock, after the daemon.
constexpr uint32_t kPollsPerClockRead = 64;
constexpr int64_t kLivenessPeriodNs = 50'000'000;
// A yield takes 0.1 to 0.4 µs if nobody else is there, and a switch to somebody and back again
// 0.8 µs and more; milliseconds, if that one does not give the CPU back. Each of both switches is a
// system call. In some virtual machines that takes 1 µs, and it is 1.2 and 3.5 µs there.
constexpr int64_t kSomebodyRanNs = 700;
constexpr int64_t kSomebodyStayedNs = 200'000;

int64_t NowNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What a system call takes that does nothing.
int64_t CallNs() {
  static std::atomic<int64_t> known_ns{0};
  int64_t least_ns = known_ns.load(std::memory_order_relaxed);
  if (least_ns != 0) return least_ns;
  constexpr int kCalls = 8;  // of which one is not interrupted, most likely
  least_ns = INT64_MAX;
  for (int i = 0; i < kCalls; ++i) {
    const int64_t begin_ns = NowNs(CLOCK_MONOTONIC);
    getpid();  // which the library calls anyway, where calls are filtered
    least_ns = std::min(least_ns, NowNs(CLOCK_MONOTONIC) - begin_ns);
  }
  known_ns.store(least_ns, std::memory_order_relaxed);
  return least_ns;
}

}  // namespace

void EmptyPolls::OnEmpty(Session* session) {
  const uint32_t count = count_.load(std::memory_order_relaxed) + 1;
  count_.store(count, std::memory_order_relaxed);
  if (count % polls_per_yield_.load(std::memory_order_relaxed) == 0) {
    Yield();
  } else if (session->NicWaitsForCpu()) {
    sched_yield();
  }
  if (count % kPollsPerClockRead != 0) return;
  const int64_t now_ns = NowNs(CLOCK_MONOTONIC_COARSE);
  if (now_ns - liveness_checked_ns_.load(std::memory_order_relaxed) <= kLivenessPeriodNs) return;
  liveness_checked_ns_.store(now_ns, std::memory_order_relaxed);
  session->IsAlive();
}

// While others take the CPU and give it back soon (another program that polls, another host's NIC),
// every empty poll gives it: what this thread waits for may be theirs to do.
void EmptyPolls::Yield() {
  const int64_t call_ns = CallNs();
  const int64_t begin_ns = NowNs(CLOCK_MONOTONIC);
  sched_yield();
  polls_per_yield_.store(PollsPerYield(polls_per_yield_.load(std::memory_order_relaxed),
                                       NowNs(CLOCK_MONOTONIC) - begin_ns, call_ns),
                         std::memory_order_relaxed);
}

uint32_t EmptyPolls::PollsPerYield(uint32_t so_far, int64_t took_ns, int64_t call_ns) {
  if (took_ns >= kSomebodyStayedNs) return kPollsPerYieldMax;
  const bool has_somebody_run = took_ns >= std::max(kSomebodyRanNs, 2 * call_ns);
  return has_somebody_run ? 1 : std::min(2 * so_far, kPollsPerYieldMax);
}

}  // namespace verbena::client

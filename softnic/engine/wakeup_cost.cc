#include "softnic/engine/wakeup_cost.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>
#include <thread>

#include "core/clock/monotonic_clock.h"

namespace verbena::softnic {
namespace {

constexpr size_t kRounds = 9;
// Long enough for the other thread to be asleep again, and its CPU.
constexpr int64_t kPauseNs = 60'000;

int64_t NowNs() { return ReadMonotonicClock().ns; }

struct Eventfd {
  ~Eventfd() {
    if (fd >= 0) close(fd);
  }
  void Write() const { (void)!eventfd_write(fd, 1); }
  void Await() const {
    eventfd_t value;
    while (eventfd_read(fd, &value) != 0 && errno == EINTR) {
    }
  }
  int fd = eventfd(0, EFD_CLOEXEC);
};

}  // namespace

Duration MeasureWakeupCost() {
  Eventfd there, back;
  if (there.fd < 0 || back.fd < 0) return {0};
  std::atomic<int64_t> woken_ns{0};
  std::thread sleeper;
  // Signals are the control thread's.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  bool is_made = true;
  try {
    sleeper = std::thread([&] {
      for (size_t i = 0; i < kRounds; ++i) {
        there.Await();
        woken_ns.store(NowNs(), std::memory_order_relaxed);
        back.Write();
      }
    });
  } catch (const std::system_error&) {
    is_made = false;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (!is_made) return {0};
  std::array<int64_t, kRounds> costs_ns;
  for (int64_t& cost_ns : costs_ns) {
    // Awake meanwhile, so that it is the other CPU that sleeps.
    for (const int64_t until_ns = NowNs() + kPauseNs; NowNs() < until_ns;) {
    }
    const int64_t begin_ns = NowNs();
    there.Write();
    back.Await();
    cost_ns = woken_ns.load(std::memory_order_relaxed) - begin_ns;
  }
  sleeper.join();
  std::nth_element(costs_ns.begin(), costs_ns.begin() + kRounds / 2, costs_ns.end());
  return {std::max<int64_t>(costs_ns[kRounds / 2], 0)};
}

}  // namespace verbena::softnic

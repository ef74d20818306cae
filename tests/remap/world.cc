#include "tests/remap/world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace verbena::remap {

uint64_t world_stops = 0, world_stop_failures = 0;

namespace {

constexpr uint32_t kThreadsMax = 512;
constexpr int64_t kStopLimitNs = 2'000'000'000;

std::atomic<int> stopped[kThreadsMax];  // by their ids
std::atomic<uint32_t> stopped_count{0};
std::atomic<uint32_t> stop{0};  // the number of the stop under way, or 0
uint32_t stops_begun = 0;
int stop_signal = kStopSignal;

// Raw: the hooks have syscall(3) for themselves.
long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = 0;
  register long r9 __asm__("r9") = 0;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

void OnStop(int) {
  const uint32_t number = stop.load();
  if (number == 0) return;  // too late: it goes on already
  const uint32_t place = stopped_count.fetch_add(1);
  if (place < kThreadsMax) stopped[place].store(static_cast<int>(Call(SYS_gettid)));
  while (stop.load() == number) {
    Call(SYS_futex, reinterpret_cast<long>(&stop), FUTEX_WAIT_PRIVATE, number);
  }
}

bool IsIn(int tid) {
  const uint32_t count = stopped_count.load();
  for (uint32_t i = 0; i < count && i < kThreadsMax; ++i) {
    if (stopped[i].load() == tid) return true;
  }
  return false;
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

struct Entry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

// Asks each thread that has not been asked. Returns how many there are besides the caller, or -1.
int AskThreads(int* asked, int* asked_count) {
  const int fd =
      static_cast<int>(Call(SYS_openat, AT_FDCWD, reinterpret_cast<long>("/proc/self/task"),
                            O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd < 0) return -1;
  const int self = static_cast<int>(Call(SYS_gettid)), process = static_cast<int>(Call(SYS_getpid));
  int others = 0;
  alignas(Entry) static char buffer[16384];
  for (long n;
       (n = Call(SYS_getdents64, fd, reinterpret_cast<long>(buffer), sizeof(buffer))) > 0;) {
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->length;
      const int tid = std::atoi(entry->name);
      if (tid == 0 || tid == self) continue;
      ++others;
      bool is_asked = false;
      for (int i = 0; i < *asked_count; ++i) is_asked |= asked[i] == tid;
      if (is_asked) continue;
      if (*asked_count == kThreadsMax) others = 1 << 20;
      if (*asked_count < static_cast<int>(kThreadsMax)) asked[(*asked_count)++] = tid;
      Call(SYS_tgkill, process, tid, stop_signal);
    }
  }
  Call(SYS_close, fd);
  return others;
}

}  // namespace

void PrepareToStop(int signal) {
  stop_signal = signal;
  struct sigaction action = {};
  action.sa_handler = OnStop;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

bool IsWorldStopped() { return stop.load() != 0; }

bool StopWorld() {
  static int asked[kThreadsMax];
  int asked_count = 0;
  stopped_count.store(0);
  stop.store(++stops_begun);
  const int64_t end_ns = NowNs() + kStopLimitNs;
  for (;;) {
    // Counted first: who is seen after all those had stopped was not made by one of them since.
    int ready = 0;
    for (int i = 0; i < asked_count; ++i) ready += IsIn(asked[i]) ? 1 : 0;
    const int others = AskThreads(asked, &asked_count);
    // Who was asked and has ended is not among the others any more.
    if (others >= 0 && ready >= others) break;
    if (others < 0 || NowNs() > end_ns) {
      ++world_stop_failures;
      LetWorldGo();
      return false;
    }
    Call(SYS_sched_yield);
  }
  ++world_stops;
  return true;
}

void LetWorldGo() {
  stop.store(0);
  Call(SYS_futex, reinterpret_cast<long>(&stop), FUTEX_WAKE_PRIVATE, 1 << 20);
}

}  // namespace verbena::remap

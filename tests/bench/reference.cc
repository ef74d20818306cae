// What this machine itself costs, measured just before what is compared with it; prints JSON.
//   futex_rtt_us: two processes on one core waking each other by futex, round trip, median
//   vm_write_us.N: process_vm_writev of N bytes into another process, median
//   vm_write_gbs.N: its bandwidth
//   memcpy_gbs.N
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

void Wait(std::atomic<uint32_t>* word, uint32_t while_value) {
  while (word->load() == while_value) {
    syscall(SYS_futex, word, FUTEX_WAIT, while_value, nullptr, nullptr, 0);
  }
}

void Set(std::atomic<uint32_t>* word, uint32_t value) {
  word->store(value);
  syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

double FutexRoundTrip(int rounds) {
  auto* words = static_cast<std::atomic<uint32_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::atomic<uint32_t>*ping = words, *pong = words + 32;
  cpu_set_t before;
  sched_getaffinity(0, sizeof(before), &before);
  PinTo(0);
  pid_t child = fork();
  if (child == 0) {
    for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds); ++i) {
      Wait(ping, i - 1);
      Set(pong, i);
    }
    _exit(0);
  }
  std::vector<double> times;
  for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds); ++i) {
    auto begin = Clock::now();
    Set(ping, i);
    Wait(pong, i - 1);
    times.push_back(Microseconds(Clock::now() - begin));
  }
  waitpid(child, nullptr, 0);
  sched_setaffinity(0, sizeof(before), &before);
  return Median(times);
}

// Another process whose memory is written to.
class Target {
 public:
  explicit Target(size_t bytes) {
    data_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(data_, 1, bytes);
    int fds[2];
    if (pipe(fds) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      memset(data_, 2, bytes);  // pages of its own
      if (write(fds[1], "r", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char ready;
    if (read(fds[0], &ready, 1) != 1) abort();
    close(fds[0]);
    close(fds[1]);
  }
  ~Target() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  double WriteMicroseconds(void* from, size_t bytes, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      iovec local = {from, bytes}, remote = {data_, bytes};
      auto begin = Clock::now();
      if (process_vm_writev(pid_, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
        std::perror("process_vm_writev");
        exit(1);
      }
      times.push_back(Microseconds(Clock::now() - begin));
    }
    return Median(times);
  }

 private:
  uint8_t* data_ = nullptr;
  pid_t pid_ = -1;
};

double MemcpyMicroseconds(uint8_t* to, const uint8_t* from, size_t bytes, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    auto begin = Clock::now();
    memcpy(to, from, bytes);
    asm volatile("" ::: "memory");
    times.push_back(Microseconds(Clock::now() - begin));
  }
  return Median(times);
}

}  // namespace

int main(int argc, char** argv) {
  int scale = argc > 1 ? std::max(1, atoi(argv[1])) : 10;
  constexpr size_t kMost = 1 << 20;
  std::vector<uint8_t> from(kMost, 3), to(kMost, 4);
  std::printf("{\"futex_rtt_us\": %.3f", FutexRoundTrip(2000 * scale));
  Target target(kMost);
  for (size_t bytes : {size_t{8}, size_t{1024}, size_t{65'536}, kMost}) {
    int rounds = scale * (bytes > 100'000 ? 50 : 1000);
    double vm = target.WriteMicroseconds(from.data(), bytes, rounds);
    double copy = MemcpyMicroseconds(to.data(), from.data(), bytes, rounds);
    std::printf(", \"vm_write_us.%zu\": %.3f, \"vm_write_gbs.%zu\": %.3f, \"memcpy_gbs.%zu\": %.3f",
                bytes, vm, bytes, static_cast<double>(bytes) / vm / 1000, bytes,
                static_cast<double>(bytes) / copy / 1000);
  }
  std::printf("}\n");
  return 0;
}

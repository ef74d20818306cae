// What this machine itself costs, measured just before what is compared with it; prints JSON.
//   futex_rtt_us: two processes on one core waking each other by futex while a third spins on the
//     other core, round trip, median
//   vm_round_trip_us: what a NIC without mapped memory copies in a round trip of 8-byte WRITEs:
//     read from a process that waits for this core, write to one that spins on the other, and, once
//     that one has seen it and has written its answer, back; the copies alone, median
//   line_round_trip_us: a cache line to the other core and back, both spinning
//   ring_mps: millions of 8-byte messages a second through a bare ring of 128 entries in shared
//     memory: one process writes entries of 64 bytes, one on another core copies what they name and
//     writes completions of 64 bytes; no checks
//   vm_copy_us.N: process_vm_readv and then writev of N bytes between two processes, in pieces that
//     stay in the L2 cache; vm_copy_gbs.N: its bandwidth
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

#include "tests/bench/machine.h"

namespace {

using verbena::bench::Median;
using verbena::bench::PinTo;
using verbena::bench::TwoCpus;

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
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

double FutexRoundTrip(int rounds, int cpu) {
  auto* words = static_cast<std::atomic<uint32_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::atomic<uint32_t>*ping = words, *pong = words + 32;
  PinTo(cpu);
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
  return Median(times);
}

double LineRoundTrip(int rounds, int cpu, int other_cpu) {
  auto* words = static_cast<std::atomic<uint32_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::atomic<uint32_t>*ping = words, *pong = words + 32;
  auto spin_until = [](std::atomic<uint32_t>* word, uint32_t value) {
    while (word->load(std::memory_order_acquire) != value) {
    }
  };
  pid_t child = fork();
  if (child == 0) {
    PinTo(other_cpu);
    for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds); ++i) {
      spin_until(ping, i);
      pong->store(i, std::memory_order_release);
    }
    _exit(0);
  }
  PinTo(cpu);
  std::vector<double> times;  // of 64, as one is near the clock's own cost
  for (uint32_t i = 1; i <= static_cast<uint32_t>(rounds);) {
    auto begin = Clock::now();
    uint32_t first = i;
    for (; i <= static_cast<uint32_t>(rounds) && i < first + 64; ++i) {
      ping->store(i, std::memory_order_release);
      spin_until(pong, i);
    }
    times.push_back(Microseconds(Clock::now() - begin) / (i - first));
  }
  waitpid(child, nullptr, 0);
  return Median(times);
}

// What a NIC in another process can't do without: entries in, bytes, completions out.
class BareRing {
 public:
  static constexpr uint32_t kEntries = 128;

  // Millions of messages a second.
  static double Measure(uint32_t messages, int cpu, int other_cpu) {
    auto* ring = new (mmap(nullptr, sizeof(BareRing), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) BareRing;
    const pid_t nic = fork();
    if (nic == 0) {
      PinTo(other_cpu);
      ring->Serve(messages);
      _exit(0);
    }
    PinTo(cpu);
    const auto begin = Clock::now();
    ring->Post(messages);
    const double us = Microseconds(Clock::now() - begin);
    waitpid(nic, nullptr, 0);
    munmap(ring, sizeof(BareRing));
    return messages / us;
  }

 private:
  struct alignas(64) Entry {
    uint64_t from, to, id;
  };
  struct alignas(64) Completion {
    uint64_t id;
    std::atomic<uint32_t> valid;
  };

  void Post(uint32_t messages) {
    for (uint32_t posted = 0, done = 0; done < messages;) {
      for (; posted < messages && posted - done < kEntries; ++posted) {
        Entry& entry = entries_[posted % kEntries];
        entry.from = 8 * (posted % kEntries);
        entry.to = entry.from;
        entry.id = posted;
        posted_.store(posted + 1, std::memory_order_release);
      }
      for (; done < posted; ++done) {
        Completion& completion = completions_[done % kEntries];
        if (completion.valid.load(std::memory_order_acquire) != done + 1) break;
        if (completion.id != done) abort();
      }
    }
  }
  void Serve(uint32_t messages) {
    for (uint32_t taken = 0; taken < messages;) {
      const uint32_t end = posted_.load(std::memory_order_acquire);
      for (; taken != end; ++taken) {
        const Entry entry = entries_[taken % kEntries];
        memcpy(to_ + entry.to % sizeof(to_), from_ + entry.from % sizeof(from_), 8);
        Completion& completion = completions_[taken % kEntries];
        completion.id = entry.id;
        completion.valid.store(taken + 1, std::memory_order_release);
      }
    }
  }

  alignas(64) std::atomic<uint32_t> posted_{0};
  Entry entries_[kEntries] = {};
  Completion completions_[kEntries] = {};
  uint8_t from_[8 * kEntries] = {}, to_[8 * kEntries] = {};
};

// Another process, whose memory is copied from and to. With `spin_cpu` it spins there on its first
// word, and answers each change as a client of a latency test does: it writes what is to be read.
class Target {
 public:
  static constexpr size_t kAnswerOffset = 64;

  explicit Target(size_t bytes, int spin_cpu = -1) {
    data_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    answered_ = static_cast<std::atomic<uint64_t>*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    memset(data_, 1, bytes);
    int fds[2];
    if (pipe(fds) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      memset(data_, 2, bytes);  // pages of its own
      if (spin_cpu >= 0) PinTo(spin_cpu);
      if (write(fds[1], "r", 1) != 1) _exit(1);
      while (spin_cpu < 0) pause();
      Answer();
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

  void Read(void* to, size_t offset, size_t bytes) {
    iovec local = {to, bytes}, remote = {data_ + offset, bytes};
    Check(process_vm_readv(pid_, &local, 1, &remote, 1, 0), bytes);
  }
  void Write(void* from, size_t offset, size_t bytes) {
    iovec local = {from, bytes}, remote = {data_ + offset, bytes};
    Check(process_vm_writev(pid_, &local, 1, &remote, 1, 0), bytes);
  }
  // Until the target, which spins, has answered the word it was written.
  void AwaitAnswer(uint64_t word) {
    for (uint32_t looks = 1; answered_->load(std::memory_order_acquire) != word; ++looks) {
      if (looks % 4096 == 0) sched_yield();  // it may have this core alone
    }
  }

 private:
  [[noreturn]] void Answer() {
    auto* word = reinterpret_cast<std::atomic<uint64_t>*>(data_);
    auto* answer = reinterpret_cast<std::atomic<uint64_t>*>(data_ + kAnswerOffset);
    for (uint64_t seen = word->load();;) {
      uint64_t now = word->load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      answer->store(now, std::memory_order_relaxed);
      answered_->store(now, std::memory_order_release);
    }
  }
  static void Check(ssize_t copied, size_t bytes) {
    if (copied == static_cast<ssize_t>(bytes)) return;
    std::perror("process_vm");
    exit(1);
  }

  uint8_t* data_ = nullptr;
  std::atomic<uint64_t>* answered_ = nullptr;
  pid_t pid_ = -1;
};

template <typename Body>
double MedianOf(int rounds, Body body) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    auto begin = Clock::now();
    body();
    times.push_back(Microseconds(Clock::now() - begin));
  }
  return Median(times);
}

void CopyBetween(Target& from, Target& to, uint8_t* bounce, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    size_t piece = std::min<size_t>(bytes - done, 65'536);
    from.Read(bounce, done, piece);
    to.Write(bounce, done, piece);
    done += piece;
  }
}

// The four copies of a round trip of 8-byte WRITEs between a client that waits for our core and one
// that spins on the other. What the second one has just written costs a cache line's way to read.
double VmRoundTrip(Target& waiting, Target& spinning, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    uint64_t word = static_cast<uint64_t>(i), read;
    auto begin = Clock::now();
    waiting.Read(&read, Target::kAnswerOffset, sizeof(read));
    spinning.Write(&word, 0, sizeof(word));
    auto end = Clock::now();
    spinning.AwaitAnswer(word);
    auto back_begin = Clock::now();
    spinning.Read(&read, Target::kAnswerOffset, sizeof(read));
    waiting.Write(&word, 0, sizeof(word));
    auto back_end = Clock::now();
    times.push_back(Microseconds((end - begin) + (back_end - back_begin)));
  }
  double clock = MedianOf(rounds, [] {});
  return Median(times) - 2 * clock;
}

void PrintCrowded(int scale) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof(before), &before);
  int cpu, other_cpu;
  TwoCpus(&cpu, &other_cpu);
  {
    Target waiting(4096), spinning(4096, other_cpu);
    std::printf("{\"futex_rtt_us\": %.3f", FutexRoundTrip(2000 * scale, cpu));
    std::printf(", \"vm_round_trip_us\": %.3f", VmRoundTrip(waiting, spinning, 2000 * scale));
  }
  if (cpu != other_cpu) {
    std::printf(", \"line_round_trip_us\": %.3f", LineRoundTrip(6400 * scale, cpu, other_cpu));
    const auto messages = 500'000 * static_cast<uint32_t>(scale);
    std::printf(", \"ring_mps\": %.3f", BareRing::Measure(messages, cpu, other_cpu));
  }
  sched_setaffinity(0, sizeof(before), &before);
}

void PrintSize(Target& target, Target& other, uint8_t* from, uint8_t* to, size_t bytes,
               int rounds) {
  double write = MedianOf(rounds, [&] { target.Write(from, 0, bytes); });
  double copy = MedianOf(rounds, [&] { CopyBetween(target, other, to, bytes); });
  double in_process = MedianOf(rounds, [&] {
    memcpy(to, from, bytes);
    asm volatile("" ::: "memory");
  });
  double kilobytes = static_cast<double>(bytes) / 1000;
  std::printf(", \"vm_write_us.%zu\": %.3f, \"vm_write_gbs.%zu\": %.3f", bytes, write, bytes,
              kilobytes / write);
  std::printf(", \"vm_copy_us.%zu\": %.3f, \"vm_copy_gbs.%zu\": %.3f, \"memcpy_gbs.%zu\": %.3f",
              bytes, copy, bytes, kilobytes / copy, bytes, kilobytes / in_process);
}

}  // namespace

int main(int argc, char** argv) {
  int scale = argc > 1 ? std::max(1, atoi(argv[1])) : 10;
  constexpr size_t kMost = 1 << 20;
  std::vector<uint8_t> from(kMost, 3), to(kMost, 4);
  PrintCrowded(scale);
  Target target(kMost), other(kMost);
  for (size_t bytes : {size_t{8}, size_t{1024}, size_t{65'536}, kMost}) {
    PrintSize(target, other, from.data(), to.data(), bytes, scale * (bytes > 100'000 ? 50 : 1000));
  }
  std::printf("}\n");
  return 0;
}

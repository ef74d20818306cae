// What many queues in turn cost two processes that do nothing else: the least that a NIC in a
// process of its own pays for messages of 8 bytes on many QPs. Beside active_qps, which has the
// same arguments.
//
//   bare_qps COUNTS WINDOW OPERATIONS ROUNDS       e.g. bare_qps 10,10000 128 200000 9
//
// Of each QP there are a queue of 16 entries of 64 bytes, an index on either side, and the 8 bytes
// that are written: four cache lines a message. All rings share a list of doorbells and one of
// completions. Nothing is looked up or checked, there is no protocol and no second QP, and what
// rang together is asked for ahead. Prints one JSON object: nanoseconds an operation, medians over
// rounds that alternate between the counts.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tests/bench/machine.h"

namespace {

using verbena::bench::Median;
using verbena::bench::PinTo;
using verbena::bench::TwoCpus;

constexpr uint32_t kEntries = 16;    // of a QP's queue
constexpr uint32_t kInFlight = 256;  // at most, of all QPs
constexpr uint32_t kAhead = 16;      // doorbells whose lines are asked for together

struct alignas(64) Entry {
  uint64_t value;
};
struct alignas(64) Qp {
  Entry queue[kEntries];
  alignas(64) uint32_t posted;  // the client's
  alignas(64) uint32_t taken;   // the NIC's
  alignas(64) uint64_t memory;  // what is written to
};
struct Lists {
  alignas(64) std::atomic<bool> nic_is_ready{false};
  alignas(64) std::atomic<uint32_t> rung{0};
  alignas(64) std::atomic<uint32_t> done{0};
  uint32_t doorbells[kInFlight];  // numbers of QPs
};

// QPs and lists that a client and a NIC, which is a child, share.
class Group {
 public:
  explicit Group(uint32_t count) : count_(count) {
    qps_ = static_cast<Qp*>(Share(sizeof(Qp) * count));
    lists_ = new (Share(sizeof(Lists))) Lists;
    memset(static_cast<void*>(qps_), 0, sizeof(Qp) * count);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  uint32_t count() const { return count_; }

  // Nanoseconds an operation, the NIC on `nic_cpu`.
  double Run(uint32_t window, uint32_t operations, int nic_cpu) {
    const uint32_t begin_count = lists_->done.load();
    lists_->nic_is_ready.store(false);
    const pid_t nic = fork();
    if (nic == 0) {
      PinTo(nic_cpu);
      MapPages();
      lists_->nic_is_ready.store(true);
      Serve(begin_count, begin_count + operations);
      _exit(0);
    }
    while (!lists_->nic_is_ready.load()) sched_yield();
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t posted = 0, done = 0; done != operations;) {
      for (; posted != operations && posted - done < window; ++posted) Post(begin_count + posted);
      done = lists_->done.load(std::memory_order_acquire) - begin_count;
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    waitpid(nic, nullptr, 0);
    return took.count() / operations;
  }

 private:
  static void* Share(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      perror("mmap");
      exit(1);
    }
    return memory;
  }

  // What was shared before a fork is mapped in the child when it is touched.
  void MapPages() const {
    for (uint32_t i = 0; i < count_; ++i) {
      reinterpret_cast<std::atomic<uint32_t>*>(&qps_[i].taken)->fetch_add(0);
      reinterpret_cast<std::atomic<uint32_t>*>(&qps_[i].posted)->fetch_add(0);
    }
  }

  void Post(uint32_t number) {
    Qp& qp = qps_[next_];
    qp.queue[qp.posted++ % kEntries].value = number;
    lists_->doorbells[number % kInFlight] = next_;
    next_ = next_ + 1 == count_ ? 0 : next_ + 1;
    lists_->rung.store(number + 1, std::memory_order_release);
  }

  void Serve(uint32_t taken, uint32_t end) {
    while (taken != end) {
      const uint32_t rung = lists_->rung.load(std::memory_order_acquire);
      while (taken != rung) {
        const uint32_t batch = std::min(rung - taken, kAhead);
        for (uint32_t i = 0; i < batch; ++i) Prefetch(QpOf(taken + i));
        for (uint32_t i = 0; i < batch; ++i) Prefetch(QpOf(taken + i)->queue, taken + i);
        for (uint32_t i = 0; i < batch; ++i) {
          Qp* qp = QpOf(taken + i);
          qp->memory = qp->queue[qp->taken++ % kEntries].value;
        }
        taken += batch;
        lists_->done.store(taken, std::memory_order_release);
      }
    }
  }

  Qp* QpOf(uint32_t number) const { return &qps_[lists_->doorbells[number % kInFlight]]; }
  static void Prefetch(Qp* qp) {
    __builtin_prefetch(&qp->taken, 1);
    __builtin_prefetch(&qp->memory, 1);
  }
  void Prefetch(Entry* queue, uint32_t number) const {
    __builtin_prefetch(&queue[QpOf(number)->taken % kEntries]);
  }

  uint32_t count_;
  uint32_t next_ = 0;
  Qp* qps_;
  Lists* lists_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: bare_qps COUNTS WINDOW OPERATIONS ROUNDS\n");
    return 2;
  }
  const auto window = static_cast<uint32_t>(atoi(argv[2]));
  const auto operations = static_cast<uint32_t>(atoi(argv[3]));
  const int rounds = atoi(argv[4]);
  int client_cpu, nic_cpu;
  TwoCpus(&client_cpu, &nic_cpu);
  PinTo(client_cpu);
  std::vector<std::unique_ptr<Group>> groups;
  for (char* count = strtok(argv[1], ","); count != nullptr; count = strtok(nullptr, ",")) {
    groups.push_back(std::make_unique<Group>(static_cast<uint32_t>(atoi(count))));
    if (window >= 1 && window <= std::min(kInFlight, groups.back()->count() * kEntries)) continue;
    fprintf(stderr, "bare_qps: WINDOW is 1 to %u, and %u for each QP\n", kInFlight, kEntries);
    return 2;
  }
  std::vector<std::vector<double>> times(groups.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < groups.size(); ++i) {
      times[i].push_back(groups[i]->Run(window, operations, nic_cpu));
    }
  }
  printf("{");
  for (size_t i = 0; i < groups.size(); ++i) {
    printf("%s\"%u\": %.1f", i == 0 ? "" : ", ", groups[i]->count(), Median(std::move(times[i])));
  }
  printf("}\n");
  return 0;
}

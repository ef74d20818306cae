// What a thread does that polls a completion queue in vain.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::client {

class Session;

// One for each queue that is polled. Counted without a lock, and so not exactly.
class EmptyPolls {
 public:
  // A poll brought something.
  void Reset() { count_.store(0, std::memory_order_relaxed); }
  // One brought nothing: lets the NIC, or whoever else waits for it, have the CPU, and looks now
  // and then whether the daemon lives.
  void OnEmpty(Session* session);

  // A thread that polls gives its CPU away this often even if nobody seems to want it.
  static constexpr uint32_t kPollsPerYieldMax = 256;
  // How many empty polls until the next yield, after one that took so long, on a machine where a
  // system call takes `call_ns`.
  static uint32_t PollsPerYield(uint32_t so_far, int64_t took_ns, int64_t call_ns);

 private:
  void Yield();

  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> polls_per_yield_{kPollsPerYieldMax};
  std::atomic<int64_t> liveness_checked_ns_{0};
};

}  // namespace verbena::client

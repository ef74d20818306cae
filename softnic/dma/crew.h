// The threads that may hang in a client's memory, and the baton that says who leads.
//
// One thread leads: it runs the shard's loop and makes copies itself. A copy may hang for as long
// as a hostile client likes (userfaultfd, FUSE, a held mmap_lock). So a standby thread watches:
// when the leader sits in one system call for more than a millisecond, it takes the baton and leads
// on. The deposed thread finishes its unit whenever the kernel lets it, hands in the result and
// becomes a spare. Units that touch slow clients are then given to spare threads.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "softnic/dma/copier.h"

namespace verbena::softnic {

// Who leads: a counter that the leader makes odd for the time of a copy. The watchdog deposes a
// leader by moving an odd value on; the deposed leader notices because its own move then fails.
class Baton {
 public:
  // Leader only. Returns the value to leave with. A full fence follows, the caller's.
  uint64_t Enter() {
    uint64_t entered = word_.load(std::memory_order_relaxed) + 1;
    word_.store(entered, std::memory_order_release);
    return entered;
  }
  // False: deposed meanwhile. Release: pairs with the acquire in Depose, which takes over all that
  // the leader wrote.
  bool Leave(uint64_t entered) {
    return word_.compare_exchange_strong(entered, entered + 1, std::memory_order_acq_rel);
  }
  // Watchdog.
  uint64_t Load() const { return word_.load(std::memory_order_seq_cst); }
  bool Depose(uint64_t seen) {
    return word_.compare_exchange_strong(seen, seen + 1, std::memory_order_acq_rel);
  }

 private:
  std::atomic<uint64_t> word_{0};
};

class CopyCrew;

class CopyThread final : public CopyGate {
 public:
  CopyThread(CopyCrew* crew, uint32_t index);

  // CopyGate.
  void Enter(TargetProcess* target) override;
  void Leave() override;

  // Carries out a unit. False: this thread was deposed meanwhile. It has handed in the unit, and
  // must touch nothing of the leader's any more.
  [[nodiscard]] bool ExecuteAsLeader(CopyUnit* unit);

  const Copier& copier() const { return copier_; }

 private:
  friend class CopyCrew;
  friend class CopyCrewTest;

  CopyCrew* crew_;
  uint32_t index_;
  Copier copier_;
  std::thread thread_;
  std::atomic<int> tid_{0};
  bool leads_ = false;
  uint64_t entered_ = 0;
  // Copies of a thread that does not lead: odd while in a system call.
  std::atomic<uint64_t> copy_sequence_{0};
  std::atomic<TargetProcess*> target_{nullptr};
  std::atomic<CopyUnit*> unit_{nullptr};
  uint64_t seen_sequence_ = 0;    // watchdog's
  CopyUnit* assigned_ = nullptr;  // under the crew's mutex
  bool idle_ = false;             // under the crew's mutex
  bool is_named_ = false;         // under the crew's mutex: to lead, and does not yet
};

class CopyCrew {
 public:
  static constexpr uint32_t kThreadsMax = 256;
  static constexpr int64_t kTickNs = 1'000'000;

  // `threads_max`: of tests.
  explicit CopyCrew(uint32_t threads_max = kThreadsMax);
  ~CopyCrew();

  // Starts a leader and a standby. `lead` runs the loop until it is deposed or `IsStopping()`;
  // `attention` (any thread) makes a sleeping leader look at TakeFinished and stuck flags.
  void Start(std::function<void(CopyThread&)> lead, std::function<void()> attention);
  // Ends all threads that the kernel lets go within `wait_ms`. False: some hang; exit the process.
  bool Stop(int wait_ms);
  bool IsStopping() const { return stopping_.load(std::memory_order_acquire); }

  // --- leader ------------------------------------------------------------------------------------
  // Gives a unit to a spare thread. False: none is free and no more may be made.
  bool Assign(CopyUnit* unit);
  // Makes a sleeping leader look at what hangs. Any thread.
  void CallAttention() { attention_(); }
  bool HasFinished() const { return has_finished_.load(std::memory_order_acquire); }
  void TakeFinished(std::vector<CopyUnit*>* out);
  // The process a unit in some thread's hands is at now, or nullptr.
  TargetProcess* CurrentTarget(const CopyUnit* unit) const;

  uint64_t takeovers() const { return takeovers_.load(std::memory_order_relaxed); }
  uint64_t bytes_moved() const;
  uint64_t assisted_bytes() const;
  uint32_t threads() const;

 private:
  friend class CopyThread;
  friend class CopyCrewTest;

  CopyThread* Spawn();            // under mutex_
  void Name(CopyThread* leader);  // under mutex_
  void ThreadMain(CopyThread* me);
  void LeadUntilDeposed(CopyThread* me);
  void RunAssigned(CopyThread* me, CopyUnit* unit);
  bool Watch();         // true: took the baton
  bool WatchWorkers();  // true: some worker is in a copy not known to hang
  void PostFinished(CopyUnit* unit);
  void WakeWatchdogIfAsleep();
  bool IsBlockedInKernel(int tid) const;

  const uint32_t threads_max_;
  Baton baton_;
  std::function<void(CopyThread&)> lead_;
  std::function<void()> attention_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> takeovers_{0};
  std::atomic<CopyThread*> leader_{nullptr};  // for the watchdog: who was named last

  mutable std::mutex mutex_;
  std::condition_variable spare_wanted_;
  std::condition_variable thread_ended_;
  std::vector<std::unique_ptr<CopyThread>> threads_;
  std::vector<CopyUnit*> finished_;
  uint32_t running_threads_ = 0;
  bool has_standby_ = false;
  bool is_started_ = false;
  std::atomic<bool> has_finished_{false};

  std::atomic<bool> watchdog_asleep_{false};
  sem_t watchdog_wake_;
};

}  // namespace verbena::softnic

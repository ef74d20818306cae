// A lock for queues: held for nanoseconds, taken at every post and poll.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

namespace verbena::client {

// Like the spinlocks of libibverbs' providers, but gives up the CPU when the holder was preempted,
// and built on nothing that glibc versions (pthread_spin_lock is GLIBC_2.34 on newer systems).
class SpinLock {
 public:
  // From now on whoever uses what the lock guards promises to be alone (a thread domain, a
  // single-threaded CQ): the lock is only a mark that it is in use, without an atomic exchange.
  // Before anybody else knows of the lock.
  void Elide() { is_elided_ = true; }

  void Lock() {
    if (is_elided_) {
#ifdef NDEBUG
      locked_.store(true, std::memory_order_relaxed);
#else
      // Whoever breaks the promise learns it, before it shows as a lost request.
      if (locked_.exchange(true, std::memory_order_acquire)) OnBrokenPromise();
#endif
      return;
    }
    while (__builtin_expect(locked_.exchange(true, std::memory_order_acquire), 0)) Wait();
  }
  bool TryLock() {
    if (!is_elided_) return !locked_.exchange(true, std::memory_order_acquire);
    if (locked_.load(std::memory_order_acquire)) return false;
    locked_.store(true, std::memory_order_relaxed);
    return true;
  }
  void Unlock() { locked_.store(false, std::memory_order_release); }

 private:
#ifndef NDEBUG
  [[noreturn]] static void OnBrokenPromise() {
    static constexpr char kText[] =
        "verbena: two threads are in a queue of one thread domain, or of a single-threaded CQ, at "
        "once; see ibv_alloc_td(3)\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
    abort();
  }
#endif

  void Wait() {
    for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
      if (spins < kSpinsBeforeYield) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

  static constexpr int kSpinsBeforeYield = 200;
  std::atomic<bool> locked_{false};
  bool is_elided_ = false;
};

class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) : lock_(lock) { lock_.Lock(); }
  ~SpinGuard() { lock_.Unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

// For the mutexes inside the public structures, and for control paths.
class MutexGuard {
 public:
  explicit MutexGuard(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~MutexGuard() { pthread_mutex_unlock(&mutex_); }
  MutexGuard(const MutexGuard&) = delete;
  MutexGuard& operator=(const MutexGuard&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace verbena::client

#include "core/client/sync.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace verbena::client {
namespace {

TEST(SpinLock, OneHolderAtATime) {
  constexpr int kThreads = 4, kRounds = 50'000;
  SpinLock lock;
  int64_t count = 0;  // unguarded: updates would be lost
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        SpinGuard guard(lock);
        count = count + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, int64_t{kThreads} * kRounds);
}

TEST(SpinLock, TryLockFailsWhileHeld) {
  SpinLock lock;
  ASSERT_TRUE(lock.TryLock());
  EXPECT_FALSE(lock.TryLock());
  lock.Unlock();
  EXPECT_TRUE(lock.TryLock());
  lock.Unlock();
}

// Who is alone still must not find its own half-built request taken from it (cq.cc, TakeFlush).
TEST(SpinLock, ElidedOneSaysWhetherItIsInUse) {
  SpinLock lock;
  lock.Elide();
  lock.Lock();
  EXPECT_FALSE(lock.TryLock());
  lock.Unlock();
  ASSERT_TRUE(lock.TryLock());
  EXPECT_FALSE(lock.TryLock());
  lock.Unlock();
  lock.Lock();
  lock.Unlock();
}

// In debug builds, which sync_debug_test is.
TEST(SpinLockDeathTest, BrokenPromiseIsToldInDebugBuilds) {
  SpinLock lock;
  lock.Elide();
  for (int i = 0; i < 3; ++i) {
    SpinGuard guard(lock);  // one thread after another is what was promised
  }
#ifdef NDEBUG
  lock.Lock();
  lock.Lock();
  lock.Unlock();
#else
  lock.Lock();
  EXPECT_DEATH(std::thread([&] { lock.Lock(); }).join(), "two threads are in a queue");
  lock.Unlock();
#endif
}

}  // namespace
}  // namespace verbena::client

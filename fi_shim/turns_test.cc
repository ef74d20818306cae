#include "fi_shim/turns.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace verbena::fi {
namespace {

TEST(Turns, OneLeadsAtATime) {
  Turns turns;
  ASSERT_TRUE(turns.Lead());
  const uint32_t turn = turns.now();
  std::thread([&] { EXPECT_FALSE(turns.Lead()); }).join();
  turns.Leave();
  EXPECT_NE(turns.now(), turn);  // who sleeps is to try again
  EXPECT_TRUE(turns.Lead());
}

// Each waits for a number of its own; one thread at a time sees the numbers come.
TEST(Turns, WhoSleepsHearsOfEveryTurn) {
  constexpr int kThreads = 6, kRounds = 2000;
  Turns turns;
  std::atomic<int> value{0}, arrived{0};
  ASSERT_TRUE(turns.Lead());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 1; round <= kRounds; ++round) {
        for (;;) {
          const uint32_t turn = turns.now();
          if (value.load() >= round) break;
          turns.AwaitNext(turn, -1);
        }
        arrived.fetch_add(1);
      }
    });
  }
  for (int round = 1; round <= kRounds; ++round) {
    value.store(round);
    turns.Tell();
    while (arrived.load() < round * kThreads) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Turns, ATurnThatHasPassedIsNotAwaited) {
  Turns turns;
  const uint32_t turn = turns.now();
  turns.Tell();
  EXPECT_TRUE(turns.AwaitNext(turn, -1));
}

TEST(Turns, LeadsAfterOneThatEndedWithoutLeaving) {
  Turns turns;
  std::thread([&] { EXPECT_TRUE(turns.Lead()); }).join();
  EXPECT_TRUE(turns.Lead());
}

TEST(Turns, AForkedChildLeads) {
  Turns turns;
  ASSERT_TRUE(turns.Lead());
  const pid_t child = fork();
  if (child == 0) _exit(turns.Lead() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Turns, ASignalEndsTheWait) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  Turns turns;
  std::atomic<bool> is_told{false};
  std::thread sleeper([&] {
    while (turns.AwaitNext(turns.now(), -1)) {
    }
    is_told.store(true);
  });
  // Until it comes while it sleeps.
  while (!is_told.load()) {
    pthread_kill(sleeper.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  sleeper.join();
}

TEST(Turns, WhoSleepsCanBeCancelled) {
  Turns turns;
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* self) -> void* {
                  auto* turns = static_cast<Turns*>(self);
                  for (;;) turns->AwaitNext(turns->now(), -1);
                },
                &turns),
            0);
  pthread_cancel(thread);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

}  // namespace
}  // namespace verbena::fi

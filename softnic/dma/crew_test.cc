#include "softnic/dma/crew.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/sched_attr.h"

namespace verbena::softnic {

// How long a turn the calling thread has asked for; 0: none, or the kernel (before 6.12) can't be.
uint64_t OwnTurnNs() {
  SchedulingAttributes attributes = {};
  syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0);
  return attributes.runtime_ns;
}

bool KernelKnowsTurns() {
  bool knows = false;
  std::thread([&] {
    SchedulingAttributes attributes = {};
    attributes.size = sizeof attributes;
    attributes.runtime_ns = 500'000;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
    knows = OwnTurnNs() == attributes.runtime_ns;
  }).join();
  return knows;
}

class CopyCrewTest : public ::testing::Test {
 protected:
  // As a watchdog does that is preempted before it has taken the lead. False: the watchdog itself
  // was quicker.
  bool Depose() {
    const uint64_t word = crew_.baton_.Load();
    return word % 2 == 1 && crew_.baton_.Depose(word);
  }
  // One thread watches, the other waits to be wanted.
  bool NobodyLeads() {
    std::lock_guard lock(crew_.mutex_);
    uint32_t idle = 0;
    for (const auto& thread : crew_.threads_) idle += thread->idle_ ? 1 : 0;
    return crew_.has_standby_ && idle + 1 == crew_.threads_.size();
  }

  CopyCrew crew_;
};

TEST_F(CopyCrewTest, WhoWasDeposedLeadsNoMoreThoughNobodyHasTakenOverYet) {
  std::atomic<int> leads{0};
  std::atomic<bool> is_deposed{false}, was_ours{false};
  auto lead = [&](CopyThread& me) {
    if (++leads > 1) {  // until it is told to stop
      while (!crew_.IsStopping()) std::this_thread::yield();
      return;
    }
    me.Enter(nullptr);
    was_ours = Depose();
    me.Leave();
    is_deposed = true;
  };
  crew_.Start(lead, [] {});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (leads < 2 && !(is_deposed && NobodyLeads())) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  if (was_ours) {
    EXPECT_EQ(leads, 1) << "two threads would lead at once";
  }
  EXPECT_TRUE(crew_.Stop(10'000));
}

TEST_F(CopyCrewTest, WhoLeadsRunsSoonAfterItIsWoken) {
  if (!KernelKnowsTurns()) GTEST_SKIP() << "not before Linux 6.12";
  std::atomic<uint64_t> turn_ns{0};
  std::atomic<bool> leads{false};
  auto lead = [&](CopyThread&) {
    turn_ns = OwnTurnNs();
    leads = true;
    while (!crew_.IsStopping()) std::this_thread::yield();
  };
  crew_.Start(lead, [] {});
  while (!leads) std::this_thread::yield();
  EXPECT_TRUE(crew_.Stop(10'000));
  EXPECT_EQ(turn_ns, kShortTurnNs);
}

}  // namespace verbena::softnic

#include "softnic/dma/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace verbena::softnic {

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

}  // namespace verbena::softnic

// The engine with its crew, for tests that only submit and wait.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "softnic/dma/process_dma.h"

namespace verbena::softnic {

// Runs the engine on its crew: each RunUntilIdle is one or more leader turns.
class DmaFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    crew_.Start([this](CopyThread& me) { Lead(me); }, [this] { Wake(); });
  }
  void TearDown() override { EXPECT_TRUE(crew_.Stop(5000)); }

  void Lead(CopyThread& me) {
    std::unique_lock lock(mutex_);
    while (!crew_.IsStopping()) {
      wake_.wait_for(lock, std::chrono::milliseconds(20),
                     [&] { return crew_.IsStopping() || wants_run_; });
      if (!wants_run_.exchange(false)) continue;  // nothing moves before it is told to
      while (dma_.HasWork()) {
        if (dma_.RunBatch(me, batch_bytes_) == ProcessDma::Batch::kDeposed) {
          lock.release()->unlock();
          return;
        }
        if (after_batch_) after_batch_();
      }
      // On a busy machine a copy may last long enough to be given to another thread, which wakes
      // us.
      if (!dma_.IsIdle()) continue;
      idle_ = true;
      wake_.notify_all();
    }
  }
  void Wake() {
    wants_run_ = true;
    wake_.notify_all();
  }
  // Runs everything submitted so far and returns what is done.
  std::vector<ProcessDma::Done> Run() {
    std::unique_lock lock(mutex_);
    idle_ = false;
    wants_run_ = true;
    wake_.notify_all();
    wake_.wait(lock, [&] { return idle_; });
    return PollAll();
  }
  // What is done already.
  std::vector<ProcessDma::Done> TakeDone() {
    std::lock_guard lock(mutex_);
    return PollAll();
  }
  // Precondition: mutex_ is held.
  std::vector<ProcessDma::Done> PollAll() {
    std::vector<ProcessDma::Done> all;
    ProcessDma::Done done;
    while (dma_.PollDone(&done)) all.push_back(done);
    return all;
  }

  CopyCrew crew_;
  ProcessDma dma_{&crew_};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> wants_run_{false};
  bool idle_ = false;
  uint64_t batch_bytes_ = 1 << 20;
  std::function<void()> after_batch_;  // with the mutex held
};

}  // namespace verbena::softnic

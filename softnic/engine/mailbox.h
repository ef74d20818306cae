// Closures for the shard's leader from other threads.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace verbena::softnic {

class Mailbox {
 public:
  // Any thread. The caller wakes the reader.
  void Post(std::function<void()> closure) {
    std::lock_guard lock(mutex_);
    closures_.push_back(std::move(closure));
    // seq_cst: pairs with the reader's fence between saying it sleeps and looking here once more.
    is_full_.store(true, std::memory_order_seq_cst);
  }
  bool IsEmpty() const { return !is_full_.load(std::memory_order_acquire); }
  // Reader.
  void Take(std::vector<std::function<void()>>* out) {
    std::lock_guard lock(mutex_);
    out->swap(closures_);
    is_full_.store(false, std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> closures_;
  std::atomic<bool> is_full_{false};
};

}  // namespace verbena::softnic

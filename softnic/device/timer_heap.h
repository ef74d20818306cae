// Deadlines of many QPs: a binary heap ordered by (time, sequence) in which every timer knows its
// place, so that setting, moving and removing one of 10 000 costs a few comparisons and no scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/instant.h"

namespace verbena::softnic {

// Embed one in what is timed.
struct Timer {
  explicit Timer(void* self) : owner(self) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  bool IsSet() const { return place != kNowhere; }

  static constexpr uint32_t kNowhere = 0xffff'ffff;
  void* const owner;
  Instant deadline = Instant::Never();
  uint64_t sequence = 0;  // simultaneous timers fire in the order they were set
  uint32_t place = kNowhere;
};

class TimerHeap {
 public:
  // Sets `timer`, or moves it.
  void Set(Timer& timer, Instant deadline);
  void Remove(Timer& timer);
  // The earliest timer, or nullptr.
  Timer* Earliest() const { return heap_.empty() ? nullptr : heap_.front(); }
  // The earliest timer, out of the heap, if its deadline has come; else nullptr.
  Timer* TakeDue(Instant now) {
    Timer* timer = Earliest();
    if (timer == nullptr || timer->deadline > now) return nullptr;
    Remove(*timer);
    return timer;
  }
  std::size_t size() const { return heap_.size(); }

 private:
  static bool Before(const Timer& a, const Timer& b) {
    return a.deadline != b.deadline ? a.deadline < b.deadline : a.sequence < b.sequence;
  }
  void Put(uint32_t place, Timer* timer) {
    heap_[place] = timer;
    timer->place = place;
  }
  void SiftUp(uint32_t place);
  void SiftDown(uint32_t place);

  std::vector<Timer*> heap_;
  uint64_t next_sequence_ = 0;
};

}  // namespace verbena::softnic

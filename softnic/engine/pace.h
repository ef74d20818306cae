// How often something may happen in the long run, with a burst allowed before that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

class Pace {
 public:
  constexpr Pace(Duration interval, int64_t burst) : interval_(interval), burst_(burst) {}

  void Count(Instant now) {
    // Lies in the past by as many intervals as may still happen at once.
    Instant burst_ago = {now.ns - interval_.ns * burst_};
    due_ = std::max(due_, burst_ago) + interval_;
  }
  // One that counts for a pause of its own.
  void Pause(Instant until) { due_ = std::max(due_, until); }

  // Before this the next one is too early.
  Instant due() const { return due_; }
  bool IsDue(Instant now) const { return due_ <= now; }

 private:
  Duration interval_;
  int64_t burst_;
  Instant due_{0};
};

}  // namespace verbena::softnic

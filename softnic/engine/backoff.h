// For how long not to do what has just been seen to do harm, where only doing it again would tell
// whether it still does.
#pragma once

#include <algorithm>

#include "core/base/instant.h"

namespace verbena::softnic {

class Backoff {
 public:
  constexpr Backoff(Duration first, Duration longest) : first_(first), longest_(longest) {}

  // It did harm: not again for a while, twice as long as the last time.
  void OnHarm(Instant now) {
    length_ = std::clamp(length_ * 2, first_, longest_);
    until_ = now + length_;
  }
  // It did none: once it has been so for as long as the last pause, the next will be half as long.
  void OnGood(Instant now) {
    if (length_.ns == 0 || now - until_ < length_) return;
    length_ = length_ > first_ ? Duration{length_.ns / 2} : Duration{0};
    until_ = now;
  }
  bool IsOn(Instant now) const { return now < until_; }
  // Too soon after one to trust that the harm has ended: within as long as it was, and `longest`.
  bool IsOnProbation(Instant now, Duration longest) const {
    return now - until_ < std::min(length_, longest);
  }

 private:
  Duration first_, longest_;
  Duration length_{0};  // of the last one
  Instant until_{0};
};

}  // namespace verbena::softnic

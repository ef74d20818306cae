// Whether others want the shard's CPU who are none of its clients.
//
// Two hosts on one machine of two cores: the scheduler puts both programs on one CPU and both NICs
// on the other. Each NIC finds that it shares the CPU with no client, and spins there as long as a
// remote wake-up costs, while the other one, which has the next packet, waits to run: 0.25 ms a
// message. Neither sees the other, but each can tell how long it waited after it was woken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/instant.h"

namespace verbena::softnic {

class CpuContention {
 public:
  static constexpr uint32_t kSleepsPerLook = 16;
  // Who does not spin is not waited for, and so can't tell whether it would be: it tries again,
  // first soon, then more and more seldom.
  static constexpr Duration kFirst = Milliseconds(10);
  static constexpr Duration kLongest = Milliseconds(1'000);

  CpuContention() = default;
  // A thread that is woken on another CPU is late by about what that costs without anyone's doing.
  explicit CpuContention(Duration wakeup_cost) : too_long_{2 * wakeup_cost.ns + kTooLongMin.ns} {}

  // Once for each sleep. True: OnLook is due.
  bool OnSlept() { return ++sleeps_ % kSleepsPerLook == 0; }
  // `waited`: RunDelay of the shard's thread.
  void OnLook(Instant now, Duration waited) {
    const Duration each{(waited.ns - waited_.ns) / kSleepsPerLook};
    const bool is_known = std::exchange(is_known_, true);
    waited_ = waited;
    if (!is_known || now < until_) return;
    if (each < too_long_) {
      if (now - until_ > kLongest) length_ = {0};
      return;
    }
    length_ = std::clamp(Duration{2 * length_.ns}, kFirst, kLongest);
    until_ = now + length_;
  }
  // A thread of its own follows: what the one before had waited means nothing to it.
  void OnNewThread() { is_known_ = false; }
  bool IsContended(Instant now) const { return now < until_; }

 private:
  static constexpr Duration kTooLongMin = Microseconds(10);

  Duration too_long_ = kTooLongMin;
  uint32_t sleeps_ = 0;
  bool is_known_ = false;
  Duration waited_{0};  // when it was looked at last
  Duration length_{0};  // of the last time that was contended
  Instant until_{0};
};

}  // namespace verbena::softnic

// Whether others want the shard's CPU who are none of its clients.
//
// Two hosts on one machine of two cores: the scheduler puts both programs on one CPU and both NICs
// on the other. Each NIC finds that it shares the CPU with no client, and spins there as long as a
// remote wake-up costs, while the other one, which has the next packet, waits to run: 0.25 ms a
// message. Neither sees the other, but each can tell how long it waited after it was woken.
#pragma once

#include <cstdint>
#include <utility>

#include "core/base/instant.h"
#include "softnic/engine/backoff.h"

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
    if (!is_known || IsContended(now)) return;
    if (each < too_long_) {
      backoff_.OnGood(now);
    } else {
      backoff_.OnHarm(now);
    }
  }
  // A thread of its own follows: what the one before had waited means nothing to it.
  void OnNewThread() { is_known_ = false; }
  bool IsContended(Instant now) const { return backoff_.IsOn(now); }

 private:
  static constexpr Duration kTooLongMin = Microseconds(10);

  Duration too_long_ = kTooLongMin;
  uint32_t sleeps_ = 0;
  bool is_known_ = false;
  Duration waited_{0};  // when it was looked at last
  Backoff backoff_{kFirst, kLongest};
};

}  // namespace verbena::softnic

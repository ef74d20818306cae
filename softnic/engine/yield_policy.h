// Whether the shard, while it waits for work, gives its CPU away without sleeping (sched_yield).
//
// Others that poll and give it back at once (our libraries do while they poll in vain, and so do
// other NICs) need only a switch each way then, without the system calls of a sleep and a waking,
// and the NIC still looks at its networks in between. Two programs and two NICs of two hosts on two
// CPUs: 10 µs one way instead of 15 to 150, as the scheduler pleases. But whoever computes, or
// polls memory, keeps the CPU until its turn ends, milliseconds later; a sleeping NIC would be
// woken before. Which of the two is there, only a yield tells.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/instant.h"
#include "softnic/engine/backoff.h"

namespace verbena::softnic {

class YieldPolicy {
 public:
  // Who polls has the CPU for microseconds, and a few of them for some more, as slow as the machine
  // is; who computes keeps it for longer than either of these.
  static constexpr Duration kLateMin = Microseconds(300);
  static constexpr Duration kLateMax = Milliseconds(1);
  // So much is let pass, and an eighth of the time: a program that begins, a thread of the
  // kernel's.
  static constexpr Duration kLostMax = Milliseconds(4);
  static constexpr int64_t kLostShare = 8;
  // Who keeps the CPU all the time shows in the first yields after a pause. Who does so later is
  // somebody else, now and then.
  static constexpr Duration kProbation = Milliseconds(12);
  static constexpr Duration kFirst = Milliseconds(4);
  static constexpr Duration kLongest = Milliseconds(500);
  // So many in vain let nobody run who is there: the scheduler keeps to the shard (before Linux 6.6
  // it does so until others have run for as long).
  static constexpr uint64_t kManyInVain = 32;

  YieldPolicy() = default;
  explicit YieldPolicy(Duration wakeup_cost)
      : late_{std::clamp(8 * wakeup_cost.ns, kLateMin.ns, kLateMax.ns)} {}

  bool MayYield(Instant now) const { return !backoff_.IsOn(now); }

  // `took`: until the thread had its CPU again. True: too long.
  bool OnYielded(Instant now, Duration took) {
    ++yields_;
    if (took < late_) {
      backoff_.OnGood(now);
      return false;
    }
    const Duration forgiven{(now - last_late_).ns / kLostShare};
    lost_ = std::max(lost_ - forgiven, Duration{0}) + took;
    last_late_ = now;
    if (lost_ >= kLostMax || backoff_.IsOnProbation(now, kProbation)) backoff_.OnHarm(now);
    return true;
  }

  // Whether OnSleep wants to know the switches.
  bool HasYielded() const { return yields_ != seen_yields_; }
  // Nothing came for as long as the shard yields. `switches`: how often anybody took the CPU from
  // the thread since it began. `is_shared`: somebody else should have wanted it.
  void OnSleep(Instant now, uint64_t switches, bool is_shared) {
    const uint64_t yields = yields_ - seen_yields_;
    if (is_shared && yields >= kManyInVain && switches == seen_switches_) backoff_.OnHarm(now);
    seen_yields_ = yields_;
    seen_switches_ = switches;
  }

 private:
  Backoff backoff_{kFirst, kLongest};
  Duration late_ = kLateMin;
  Duration lost_{0};  // by late ones, less what was forgiven since
  Instant last_late_{0};
  uint64_t yields_ = 0, seen_yields_ = 0;
  uint64_t seen_switches_ = 0;
};

}  // namespace verbena::softnic

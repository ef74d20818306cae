// What sched_setattr(2) takes; glibc has it from 2.41 on.
#pragma once

#include <cstdint>

namespace verbena {

// struct sched_attr of the first version.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

// Turns so short instead of some milliseconds: in return the kernel lets a thread run soon after it
// is woken beside programs that poll (from Linux 6.12 on). The shortest that it takes.
inline constexpr uint64_t kShortTurnNs = 100'000;

}  // namespace verbena

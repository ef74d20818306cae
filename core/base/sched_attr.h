// What sched_setattr(2) takes; glibc has it from 2.41 on.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

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
// As long as everybody's.
inline constexpr uint64_t kOrdinaryTurnNs = 0;

// For the calling thread. It may be refused: the thread then only waits longer for its CPU.
inline void AskForTurns(uint64_t turn_ns) {
  SchedulingAttributes attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.flags = 0;
  attributes.runtime_ns = turn_ns;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace verbena

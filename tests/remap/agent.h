// Lives in a program that knows nothing of it (LD_PRELOAD) and keeps registering random ranges of
// its memory, has the NIC read and write there, and compares.
//
// The environment says how:
//   VERBENA_REMAP_SEED   what ranges, in what order; 64 bits. Without it the agent does nothing.
//   VERBENA_REMAP_LOG    a file, to which each process appends one line of JSON as it ends
//   VERBENA_REMAP_HOW    calls:   a step in about every n-th call into libc, in the caller's
//   thread;
//                                 nothing else runs then, so all memory can be compared
//                        beside:  a thread of its own, which leaves the program's memory alone
//                        parking: a thread of its own, which stops all others while it compares,
//                                 and while memory is copied and mapped anew (world.h)
//   VERBENA_REMAP_ONLY   the name of the program to act in; others, its starters, are left alone
//   VERBENA_REMAP_SIGNAL what stops threads, for programs that block the one chosen here
//   VERBENA_REMAP_EVERY  that n, or the microseconds between two steps of the thread
//
// A difference ends the process with kExitDifference, and the log says which step of which seed.
#pragma once

#include <cstdint>

namespace verbena::remap {

constexpr int kExitDifference = 97;

enum class How { kOff, kCalls, kBeside, kParking };

extern How how;

// A call into libc is over, which returns to `caller`. errno stays.
extern int64_t calls_until_step;
void StepAtCall(const void* caller);
inline void OnCall(const void* caller) {
  if (how == How::kCalls && __builtin_expect(--calls_until_step <= 0, 0)) StepAtCall(caller);
}
// No step happens between them.
bool EnterFork();
void LeaveFork(bool was_inside);

// Whether the calling thread is within a registration, where memory may be mapped anew.
bool IsRegistering();
// What the process did goes to the log.
void Report();

}  // namespace verbena::remap

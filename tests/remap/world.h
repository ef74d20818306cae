// Stops all other threads of the process: by a signal whose handler waits.
//
// Thread: one stops the world at a time, and takes no lock meanwhile (malloc has some).
#pragma once

#include <cstdint>

namespace verbena::remap {

// Programs use it for nothing.
constexpr int kStopSignal = 62;

void PrepareToStop(int signal);
// False: not all could be stopped in time, they go on. A thread that blocks all signals can't be,
// nor one that waits for its vfork child.
bool StopWorld();
void LetWorldGo();
bool IsWorldStopped();

extern uint64_t world_stops, world_stop_failures;

}  // namespace verbena::remap

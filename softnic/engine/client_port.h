// One client's doorbells and command slots, as the shard polls them.
//
// Thread: the leader. Trust: the control area is the client's to scribble on; what is true about it
// (which slots are busy, which bits are still to be served) stands here, in the daemon's memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/instant.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"
#include "softnic/device/services.h"
#include "softnic/engine/doorbell_scan.h"
#include "softnic/engine/pace.h"

namespace verbena::softnic {

// While other clients are active, a client's commands, and its doorbells that announce nothing,
// keep to a pace, beyond a burst that lets a program set up its objects unhurried. A flood of them,
// each with a waking of the shard, would have the shard use up its right to a CPU, and everybody
// would wait then while other programs have their turns.
inline constexpr Pace kCommandPace(Microseconds(50), 64);
inline constexpr Pace kFruitlessPace(Microseconds(20), 256);

struct ClientPort {
  SessionId id = 0;
  shm::ControlArea* area = nullptr;
  shm::StatusPage* status = nullptr;
  int doorbell_event = -1;

  struct Slot {
    uint32_t submitted = 0;  // of the last command taken from the slot
    bool is_busy = false;    // taken and not completed
  };
  Slot slots[shm::kCommandSlots];

  DoorbellScan doorbells;
  uint32_t last_doorbell = 0;
  uint64_t deferred_commands = 0;  // slots that wait for their pace

  uint32_t LastCpu() const { return doorbells.LastCpu(area->doorbells); }
  bool MayBePolled() const { return !is_quarantined && !is_suspended; }

  uint32_t sleep = 1;           // number of the last one it was told of
  bool is_parked = true;        // sleeping != 0: the client rings its eventfd
  bool is_quarantined = false;  // lied; waits for the control thread to end it
  bool is_suspended = false;    // kept ringing for nothing; not heard for a while
  bool is_recent = false;       // in the shard's list of recently active clients
  bool follows = false;         // its first ring after our sleep came from the CPU that we slept on
  uint64_t sleeps_seen = 0;     // ours, by its last ring
  Instant last_ring{0};
  Pace commands = kCommandPace;
  Pace fruitless = kFruitlessPace;
  uint32_t index = 0;  // in the shard's list
};

}  // namespace verbena::softnic

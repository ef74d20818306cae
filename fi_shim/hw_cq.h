// A CQ of the NIC, as the provider uses it: of an fi_cq, or of an endpoint that has only counters.
//
// Its room is at least the sum of what may complete into it (Grow), so that it is never overrun.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/ring/completion_queue.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

struct HwCq {
  Domain* domain = nullptr;
  shm::Handle handle = 0;
  shm::Handle channel = 0;  // 0: nobody can wait for it
  int channel_fd = -1;      // readable once an armed CQ has something
  Lock lock;
  CqConsumer ring;
  uint64_t reserved_entries = 0;  // of queues that complete here
};

// `with_channel`: it can be armed, and its fd waited for.
// Errors: -FI_ENOMEM; -FI_EMFILE; -FI_EIO: the daemon is gone.
int OpenHwCq(Domain* domain, uint32_t entries, bool with_channel, HwCq** out);
void CloseHwCq(HwCq* hw);
// Room for `entries` more (a queue that completes here is made), or less (negative).
// -FI_ENOMEM: more than a CQ of the NIC can have.
int Reserve(HwCq* hw, int64_t entries);
// Endpoints whose queues complete here: Progress calls `progress` of those that have one, and
// `on_death` of each when the daemon is gone. -FI_ENOMEM.
int Join(HwCq* hw, Endpoint* ep);
void Leave(HwCq* hw, Endpoint* ep);
// A counter whose value, before it is read or waited for, needs what completes in `hw`. Each may be
// asked for several times, and is then to be undone as often. -FI_ENOMEM.
int Watch(Cntr* cntr, HwCq* hw);
void Unwatch(Cntr* cntr, HwCq* hw);
// The next completion raises an event in channel_fd. Then look once more before waiting.
void Arm(HwCq* hw);
// Takes the events that channel_fd holds.
void TakeEvents(HwCq* hw);

}  // namespace verbena::fi

// A CQ of the NIC, as the provider uses it: of an fi_cq, or of an endpoint that has only counters.
//
// Its room is at least the sum of what may complete into it (Reserve), so that it is never overrun.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/client/empty_polls.h"
#include "core/ring/completion_queue.h"
#include "fi_shim/list.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

class Waiter;

// An endpoint whose queues complete in a HwCq.
struct HwMember {
  Endpoint* endpoint;
  uint32_t joins;
  bool knows_of_death;
};

struct HwCq {
  Domain* domain = nullptr;
  shm::Handle handle = 0;
  shm::Handle channel = 0;  // 0: nobody can wait for it
  int channel_fd = -1;      // readable once an armed CQ has something
  Cq* cq = nullptr;         // whose it is; nullptr: of an endpoint with counters alone
  Lock lock;
  CqConsumer ring;
  uint64_t reserved_entries = 0;  // of queues that complete here
  uint32_t entries = 0;           // of the ring
  // Messages of one receive and data that come with WRITEs complete here, too, up to half of the
  // ring (core/shm/rdm.h).
  bool has_receives = false;
  client::EmptyPolls empty_polls;

  // Held while an endpoint's `progress` or `on_death` is called, so that it can't be closed under
  // them; before `lock`. They may take `lock` (Reserve), and must not Join or Leave.
  Lock members_lock;
  List<HwMember> members;
  std::atomic<uint32_t> with_progress{0}, with_before_sleep{0};
  std::atomic<uint32_t> unaware{0};  // members not told of the daemon's end
};

// At most so many CQEs are handed out in one call, so that who reads one completion does not wait
// for all. The NIC learns of all at once: until then they take room that others may need, since
// operations of theirs can be posted again.
inline constexpr uint32_t kCqeBatch = 256;

// Entries of a ring for so many that are reserved. With receives that some messages take none of,
// what has room of its own needs a quarter; another is for what is on its way when the NIC finds
// the CQ half full, and for a batch.
constexpr uint64_t RingEntriesFor(uint64_t reserved, bool has_receives) {
  if (!has_receives) return reserved + kCqeBatch;
  return 4 * (reserved > kCqeBatch ? reserved : kCqeBatch);
}

// `with_channel`: it can be armed, and its fd waited for.
// Errors: -FI_ENOMEM; -FI_EMFILE; -FI_EIO: the daemon is gone; -FI_EINVAL: more than a CQ can have.
int OpenHwCq(Domain* domain, uint32_t entries, bool with_channel, HwCq** out);
void CloseHwCq(HwCq* hw);
// Room for `entries` more (a queue that completes here is made), or less (negative).
// -FI_ENOMEM: more than a CQ of the NIC can have.
int Reserve(HwCq* hw, int64_t entries);
// Likewise for receives of an endpoint that has completions without one: messages of one receive,
// data that come with WRITEs.
int ReserveForReceives(HwCq* hw, int64_t entries);
// Endpoints whose queues complete here: Progress calls `progress` of those that have one, and
// `on_death` of each when the daemon is gone. An endpoint may join twice, and then leaves twice.
// -FI_ENOMEM.
int Join(HwCq* hw, Endpoint* ep);
void Leave(HwCq* hw, Endpoint* ep);
// A counter whose value, before it is read or waited for, needs what completes in `hw`. Each may be
// asked for several times, and is then to be undone as often. -FI_ENOMEM.
int Watch(Cntr* cntr, HwCq* hw);
void Unwatch(Cntr* cntr, HwCq* hw);
// As for CQs below: of an endpoint that counts there.
int AddWakeFd(Cntr* cntr, int fd);
void RemoveWakeFd(Cntr* cntr, int fd);
// An fd that wakes who waits for the CQ, since an endpoint's `progress` has something to do then
// (connection management). Of a HwCq without an fi_cq nothing is to be done. -FI_ENOMEM.
int AddWakeFd(HwCq* hw, int fd);
void RemoveWakeFd(HwCq* hw, int fd);
// Hands out all that the NIC has completed, whatever room the program's CQ has: for who ends a
// queue that completes here, so that nothing of it is left in the ring. No lock of a HwCq is held.
void TakeAll(HwCq* hw);
// The next completion raises an event in channel_fd. Then look once more before waiting.
void Arm(HwCq* hw);
// For who is about to wait with `waiter`, after Arm: one of its fds may be an endpoint's
// progress_fd that is readable already.
void ServeBeforeSleep(HwCq* hw, Waiter* waiter);
// The NIC is gone, and all that it had to tell is told: nothing completes here any more.
bool IsOver(HwCq* hw);
// Takes the events that channel_fd holds.
void TakeEvents(HwCq* hw);
// Whether the NIC has completed something that Progress has not handed out yet, or is gone and not
// everybody knows.
bool HasMore(HwCq* hw);

}  // namespace verbena::fi

// Objects of a session besides QPs. Each is created and destroyed by commands; `users` counts the
// objects that need it, and destroying one in use is EBUSY.
//
// Thread: the shard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/base/types.h"
#include "core/ring/completion_queue.h"
#include "core/ring/work_queue.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "softnic/device/intrusive_list.h"
#include "softnic/device/lanes.h"
#include "softnic/device/marked_receives.h"
#include "softnic/device/own_keys.h"
#include "softnic/device/services.h"
#include "softnic/device/sources.h"
#include "softnic/device/timer_heap.h"
#include "transport/pdu.h"

namespace verbena::softnic {

class DeviceQp;
struct Session;

// Whose memory something led to that is not its own session's: other sessions of its context, the
// NIC. Few as a rule, and mostly none.
class OtherOwners {
 public:
  bool IsEmpty() const { return ids_.empty(); }
  void Add(SessionId id) {
    if (std::find(ids_.begin(), ids_.end(), id) == ids_.end()) ids_.push_back(id);
  }
  void Add(const OtherOwners& others) {
    for (SessionId id : others.ids_) Add(id);
  }
  // Precondition: not empty.
  SessionId TakeOne() {
    const SessionId id = ids_.back();
    ids_.pop_back();
    return id;
  }

 private:
  std::vector<SessionId> ids_;
};

// Names a QP from outside its session, across its destruction and reset: `life` is new after each.
struct QpRef {
  uint32_t slot = 0;
  uint64_t life = 0;  // 0: nobody
};

enum class EntryQueue : uint8_t { kSend, kReceive, kCompletion };

// A queue's entries in memory of the program (command.h). The NIC fetches work requests from there
// before it takes them, and writes completions there after it has made them.
struct EntryMemory {
  bool IsUsed() const { return region != kNoMemory; }

  transport::MemoryId region = kNoMemory;
  uint64_t addr = 0;
  uint64_t stream = 0;   // names it to the DMA engine; never reused
  bool is_busy = false;  // work requests are being fetched
  bool is_lost = false;  // it could not be read
};

struct Pd {
  Session* session = nullptr;  // who made it, or who holds the context after that one's end
  shm::Handle handle = 0;
  uint32_t users = 0;  // MRs, MWs, QPs, SRQs, AHs
  // What its QPs' peers name regions by; nullptr: the NIC's keys.
  std::unique_ptr<OwnKeys> own_keys;
  uint32_t counted_regions = 0;  // MRs with counters
};

// A counter in memory that the program maps (core/shm/rdm.h).
struct Counter {
  void CountOne();

  Session* session = nullptr;
  shm::Handle handle = 0;
  uint32_t users = 0;  // regions, QPs, places
  QueueMemory queue;
  uint64_t operations = 0;
};

// What counts the WRITEs and READs of peers. nullptr: nothing does.
struct PeerCounters {
  bool IsAny() const { return read != nullptr || write != nullptr; }
  // Instead of those it has; all know their users.
  void Set(const PeerCounters& to);

  Counter* read = nullptr;
  Counter* write = nullptr;
};

// A thread domain: its QPs ring in a page of its own.
struct Td {
  shm::Handle handle = 0;
  uint32_t users = 0;  // QPs
  uint32_t page = 0;   // DoorbellTable::kNoPage: none was left
  QueueMemory memory;  // of the page
};

// Memory of the NIC.
struct Dm {
  Session* session = nullptr;  // as of a Pd
  shm::Handle handle = 0;
  uint32_t users = 0;  // MRs
  uint64_t length = 0;
  std::shared_ptr<NicMemory> memory;
};

struct Mr {
  Session* session = nullptr;  // as of a Pd; its process's memory, unless `memory` is none
  Pd* pd = nullptr;
  Dm* dm = nullptr;  // of device memory
  shm::Handle handle = 0;
  uint32_t key = 0;  // lkey, and rkey unless its PD's keys are its own
  bool has_own_key = false;
  uint32_t own_key = 0;      // in the PD's space
  bool is_disabled = false;  // its own key is good for nothing yet
  PeerCounters counters;
  uint32_t access = 0;
  uint64_t addr = 0;  // of device memory, ours
  uint64_t length = 0;
  uint64_t iova = 0;  // the address by which work requests name the first byte
  transport::MemoryId memory = 0;
  bool is_invalidated = false;  // by SEND with invalidate or LOCAL_INV; only dereg is left
  uint32_t windows = 0;         // bound to it: until they are gone it stays as it is

  // Whether [start, start + bytes) lies in the region. No sum is formed that could overflow.
  bool Contains(uint64_t start, uint64_t bytes) const {
    return start >= iova && bytes <= length && start - iova <= length - bytes;
  }
  // Whose DMA is at its memory; kNicSession for device memory.
  SessionId Owner() const;
  uint64_t ToProcess(uint64_t start) const { return addr + (start - iova); }
  // How work requests of its own process name it by the lkey: a region with an own key by its
  // address there, whatever peers count from.
  uint64_t LocalBase() const { return has_own_key ? addr : iova; }
};

// A memory window. Type 1 is of its PD; type 2 (2B) belongs, while it is bound, to a QP as well.
struct Mw {
  explicit Mw() : qp_hook(this) {}
  Session* session = nullptr;
  Pd* pd = nullptr;
  shm::Handle handle = 0;
  uint32_t key = 0;
  bool is_type_2 = false;
  // The binding.
  Mr* mr = nullptr;  // nullptr: not bound
  DeviceQp* qp = nullptr;
  uint32_t access = 0;
  uint64_t addr = 0;  // as the region's iova counts
  uint64_t length = 0;
  transport::MemoryId memory = 0;  // stands for the region's in what this binding grants
  ListHook<Mw> qp_hook;            // in DeviceQp::windows
  OtherOwners owners;              // of the regions it was bound to so far

  bool IsBound() const { return mr != nullptr; }
  bool IsZeroBased() const { return (access & access::kZeroBased) != 0; }
  // As Mr's.
  bool Contains(uint64_t start, uint64_t bytes) const {
    const uint64_t base = IsZeroBased() ? 0 : addr;
    return start >= base && bytes <= length && start - base <= length - bytes;
  }
  uint64_t ToProcess(uint64_t start) const {
    return mr->ToProcess(IsZeroBased() ? addr + start : start);
  }
};

struct Ah {
  Session* session = nullptr;
  Pd* pd = nullptr;
  shm::Handle handle = 0;
  transport::Path path;
};

struct Channel {
  explicit Channel() : waiting_hook(this) {}
  Session* session = nullptr;
  shm::Handle handle = 0;
  uint32_t users = 0;  // CQs
  std::deque<shm::Handle>
      undelivered;                 // CQs whose event did not fit the fd; stale ones are skipped
  ListHook<Channel> waiting_hook;  // in Session::waiting_channels while `undelivered` is not empty
};

struct Cq {
  Cq() : event_timer(this) {}

  Session* session = nullptr;
  Channel* channel = nullptr;
  shm::Handle handle = 0;
  uint32_t comp_vector = 0;
  uint64_t cookie = 0;
  QueueMemory queue;
  CqProducer ring;
  EntryMemory entries;
  uint32_t written = 0;  // CQEs given to the DMA engine, if there are `entries`
  bool is_unwritten = false;
  bool is_unwritten_solicited = false;  // one of those to be written
  IntrusiveList<DeviceQp> senders;      // QPs whose send completions come here
  IntrusiveList<DeviceQp> receivers;
  uint32_t users = 0;
  uint32_t fired_arm = 0;  // the arm sequence last answered with an event
  bool is_in_error = false;
  bool ignores_overrun = false;
  bool has_timestamps = false;
  bool has_undelivered_event = false;
  bool is_dirty = false;  // has a channel, and CQEs since its arm word was read
  bool is_dirty_solicited = false;
  // Moderation (cq_moderation.cc).
  uint16_t event_count = 0;
  uint16_t event_period_us = 0;
  uint32_t unannounced = 0;  // CQEs since it was found armed
  Timer event_timer;         // set while an event is held back
};

struct Srq {
  Session* session = nullptr;
  Pd* pd = nullptr;
  shm::Handle handle = 0;
  uint32_t srqn = 0;
  uint32_t users = 0;  // QPs
  uint64_t cookie = 0;
  QueueMemory queue;
  WorkQueueConsumer ring;
  EntryMemory entries;
  std::vector<QpRef> awaiting;  // QPs with PDUs that wait for a WQE to be fetched
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint32_t limit = 0;  // 0: not armed
  bool is_in_error = false;
  bool truncates = false;
  std::unique_ptr<MarkedReceives> marked;  // nullptr: its receives have no marks
};

// Of a region whose key is alive.
struct RegionOwner {
  SessionId context = 0;
  SessionId session = 0;  // Mr::Owner
};

// Segments as the DMA engine knows them.
struct ReachedMemory {
  const transport::DmaSegment* segments = nullptr;
  bool is_anothers = false;  // not in the process of the QP that uses them
};

// What waits, before it goes, until no DMA in flight touches its session, and what the program gets
// back only when none touches the memory of the others either.
struct Retired {
  struct Receives {  // parts that a QP had of those of a marked SRQ
    shm::Handle srq = 0, cq = 0;
    std::vector<HeldReceive> held{};
  };
  std::vector<transport::MemoryId> regions{};
  std::vector<QueueMemory> queues{};
  std::vector<Receives> receives{};  // of the program
  OtherOwners others{};
  std::vector<std::shared_ptr<NicMemory>> kept{};
};

// Where peers send to an RDM endpoint: lanes come to it without its program (places.cc).
struct Place {
  Session* session = nullptr;
  shm::Handle handle = 0;
  Pd* pd = nullptr;
  Srq* srq = nullptr;  // marked
  Cq* cq = nullptr;
  uint32_t access_flags = 0;
  uint32_t lanes_max = 0;
  PlaceToken token{};
  uint64_t cookie = 0;
  PeerCounters counters;
  Sources sources;
  std::map<LaneId, DeviceQp*> lanes;
};

}  // namespace verbena::softnic

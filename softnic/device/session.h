// A client's attachment to one NIC: its objects, doorbells, undelivered events and turn to run.
//
// Thread: the shard.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "softnic/device/intrusive_list.h"
#include "softnic/device/objects.h"
#include "softnic/device/qp.h"
#include "softnic/device/tables.h"

namespace verbena::softnic {

class Nic;

// Which table an asynchronous event's handle belongs to.
enum class EventSource : uint8_t { kQp, kCq, kSrq, kPort };

struct UndeliveredEvent {
  EventSource source;
  shm::AsyncEventMessage message;
};

// Doorbells in the page of one thread domain, and who listens to each.
class ThreadDoorbells {
 public:
  // 0 when all of the page are taken.
  uint32_t Allocate(uint32_t page, DeviceQp* qp) {
    if (~used_ == 0) return 0;
    const auto bit = static_cast<uint32_t>(std::countr_one(used_));
    used_ |= uint64_t{1} << bit;
    qps_[bit] = qp;
    return shm::kFirstThreadDoorbell + page * shm::kThreadDoorbells + bit;
  }
  DeviceQp* Find(uint32_t doorbell) const { return qps_[doorbell % shm::kThreadDoorbells]; }
  void Free(uint32_t doorbell) {
    used_ &= ~(uint64_t{1} << (doorbell % shm::kThreadDoorbells));
    qps_[doorbell % shm::kThreadDoorbells] = nullptr;
  }

 private:
  uint64_t used_ = 0;
  std::array<DeviceQp*, shm::kThreadDoorbells> qps_{};
};

// Doorbell numbers of one session and who listens to each.
class DoorbellTable {
 public:
  // The first leaf word is the command queue's.
  static constexpr uint32_t kFirst = shm::kCommandSlots;

  // A page for a thread domain; kNoPage when all are taken.
  static constexpr uint32_t kNoPage = shm::kThreadDoorbellPages;
  uint32_t AddPage() {
    for (uint32_t page = 0; page < kNoPage; ++page) {
      if (pages_[page] != nullptr) continue;
      pages_[page] = std::make_unique<ThreadDoorbells>();
      return page;
    }
    return kNoPage;
  }
  // Precondition: none of its doorbells is taken.
  void RemovePage(uint32_t page) { pages_[page].reset(); }
  // As Allocate; in the page while there is room in it. kNoPage is none.
  uint32_t AllocateIn(uint32_t page, DeviceQp* qp) {
    const uint32_t doorbell = page != kNoPage ? pages_[page]->Allocate(page, qp) : 0;
    return doorbell != 0 ? doorbell : Allocate(qp);
  }

  // 0 when all numbers are taken.
  uint32_t Allocate(DeviceQp* qp) {
    uint32_t index;
    if (!free_.IsEmpty()) {
      index = free_.Pop(slots_);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      if (index >= shm::kMaxDoorbells - kFirst) return 0;
      slots_.emplace_back();
    }
    slots_[index].qp = qp;
    return index + kFirst;
  }
  DeviceQp* Find(uint32_t doorbell) const {
    if (doorbell >= shm::kFirstThreadDoorbell) {
      const uint32_t page = PageOf(doorbell);
      return page < kNoPage && pages_[page] != nullptr ? pages_[page]->Find(doorbell) : nullptr;
    }
    if (doorbell < kFirst || doorbell - kFirst >= slots_.size()) return nullptr;
    return slots_[doorbell - kFirst].qp;
  }
  void Free(uint32_t doorbell) {
    if (doorbell >= shm::kFirstThreadDoorbell) return pages_[PageOf(doorbell)]->Free(doorbell);
    slots_[doorbell - kFirst].qp = nullptr;
    free_.Push(slots_, doorbell - kFirst);
  }

 private:
  struct Slot {
    DeviceQp* qp = nullptr;
    uint32_t next_free = kNoIndex;
  };
  static uint32_t PageOf(uint32_t doorbell) {
    return (doorbell - shm::kFirstThreadDoorbell) / shm::kThreadDoorbells;
  }

  std::vector<Slot> slots_;
  FreeIndices<Slot> free_;
  std::array<std::unique_ptr<ThreadDoorbells>, shm::kThreadDoorbellPages> pages_;
};

// What the sessions of one context have in common: its opener's, and those of who imported it. It
// ends with the last of them.
struct SharedObjects {
  SessionId id = 0;  // of the context: its first session's
  std::vector<Session*> sessions;
  HandleTable<Pd> pds;
  HandleTable<Mr> mrs;
  HandleTable<Dm> dms;
};

struct Session {
  explicit Session(std::shared_ptr<SharedObjects> objects)
      : shared(std::move(objects)),
        pds(shared->pds),
        mrs(shared->mrs),
        dms(shared->dms),
        ready_hook(this),
        events_hook(this) {}
  // One session of each context speaks for what is no session's in particular.
  bool SpeaksForContext() const { return !shared->sessions.empty() && shared->sessions[0] == this; }

  SessionId id = 0;
  Nic* nic = nullptr;
  std::string program;
  int pid = 0;
  SessionServices* services = nullptr;
  bool assists_entries = false;  // entries of its queues go by its helper, come what may
  bool is_closing = false;       // its objects are gone; only DMA in flight keeps it

  const std::shared_ptr<SharedObjects> shared;
  HandleTable<Pd>& pds;
  HandleTable<Mr>& mrs;
  HandleTable<Dm>& dms;
  HandleTable<Td> tds;
  HandleTable<Mw> mws;
  HandleTable<Channel> channels;
  HandleTable<Cq> cqs;
  HandleTable<Srq> srqs;
  HandleTable<DeviceQp> qps;
  HandleTable<Ah> ahs;
  HandleTable<Counter> counters;
  HandleTable<Place> places;
  HandleTable<DeviceQp> lanes;  // no client's command reaches them
  DoorbellTable doorbells;

  // CQEs of WRITEs in one step in this turn of the session, and in those before it: the most, of
  // which each turn forgets half.
  uint32_t direct_writes = 0;
  uint32_t direct_writes_before = 0;
  void BeginTurn() {
    direct_writes_before = std::max(std::exchange(direct_writes, 0), direct_writes_before / 2);
  }

  IntrusiveList<DeviceQp> ready;  // QPs that have something to do
  ListHook<Session> ready_hook;   // in the device's list while `ready` is not empty

  // More events than this wait only for a client that reads none; further ones are dropped.
  static constexpr size_t kMaxUndeliveredEvents = 65'536;
  std::deque<UndeliveredEvent> undelivered_events;
  IntrusiveList<Channel> waiting_channels;
  ListHook<Session> events_hook;  // in the device's list while anything is undelivered
};

}  // namespace verbena::softnic

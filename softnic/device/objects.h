// Objects of a session besides QPs. Each is created and destroyed by commands; `users` counts the
// objects that need it, and destroying one in use is EBUSY.
//
// Thread: the shard.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "core/base/types.h"
#include "core/ring/completion_queue.h"
#include "core/ring/work_queue.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "softnic/device/intrusive_list.h"
#include "softnic/device/services.h"
#include "transport/pdu.h"

namespace verbena::softnic {

class DeviceQp;
struct Session;

struct Pd {
  Session* session = nullptr;  // who made it, or who holds the context after that one's end
  shm::Handle handle = 0;
  uint32_t users = 0;  // MRs, QPs, SRQs, AHs
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
  uint32_t key = 0;  // lkey and rkey
  uint32_t access = 0;
  uint64_t addr = 0;  // of device memory, ours
  uint64_t length = 0;
  uint64_t iova = 0;  // the address by which work requests name the first byte
  transport::MemoryId memory = 0;
  bool is_invalidated = false;  // by SEND with invalidate or LOCAL_INV; only dereg is left

  // Whether [start, start + bytes) lies in the region. No sum is formed that could overflow.
  bool Contains(uint64_t start, uint64_t bytes) const {
    return start >= iova && bytes <= length && start - iova <= length - bytes;
  }
  uint64_t ToProcess(uint64_t start) const { return addr + (start - iova); }
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
  Session* session = nullptr;
  Channel* channel = nullptr;
  shm::Handle handle = 0;
  uint32_t comp_vector = 0;
  uint64_t cookie = 0;
  QueueMemory queue;
  CqProducer ring;
  IntrusiveList<DeviceQp> senders;  // QPs whose send completions come here
  IntrusiveList<DeviceQp> receivers;
  uint32_t users = 0;
  uint32_t fired_arm = 0;  // the arm sequence last answered with an event
  bool is_in_error = false;
  bool ignores_overrun = false;
  bool has_undelivered_event = false;
  bool is_dirty = false;  // has a channel, and CQEs since its arm word was read
  bool is_dirty_solicited = false;
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
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint32_t limit = 0;  // 0: not armed
  bool is_in_error = false;
};

}  // namespace verbena::softnic

// What of a send queue is to be carried out by another, when a lane is made anew.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/ring/work_queue.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

inline Operation* OperationOf(const WorkQueueProducer& queue, uint32_t index) {
  return reinterpret_cast<Operation*>(static_cast<const shm::SendWqe*>(queue.Entry(index))->wr_id);
}

// Entries of `from`, from `begin` on, go behind those of `to`, in their order; but what is left of
// an operation that has failed already stays behind. Precondition: both have the same stride, and
// `to` has room.
inline void CopyKept(const WorkQueueProducer& from, uint32_t begin, WorkQueueProducer* to) {
  for (uint32_t i = begin; i != from.producer_index(); ++i) {
    if (OperationOf(from, i)->failed_status != 0) continue;
    std::memcpy(to->Reserve(), from.Entry(i), from.stride_bytes());
  }
}

}  // namespace verbena::fi

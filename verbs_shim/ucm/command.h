// What carrying out commands has in common.
#pragma once

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "core/client/scoped_lock.h"
#include "verbs_shim/ucm/commands.h"
#include "verbs_shim/ucm/user_memory.h"

namespace verbena::ucm {

inline shm::CmRequest NewRequest(shm::CmOp op, uint32_t number = 0) {
  shm::CmRequest request;
  memset(&request, 0, sizeof(request));
  request.op = static_cast<uint32_t>(op);
  request.number = number;
  return request;
}

// One command, behind its header.
struct Commands::Command {
  Channel channel;
  int fd;
  uint64_t address;
  uint16_t in_bytes, out_bytes;

  // EINVAL: it is shorter than `at_least` (all of it, where that is 0).
  template <typename T>
  int Read(T* out, size_t at_least = 0) const {
    memset(out, 0, sizeof(T));
    if (in_bytes < (at_least == 0 ? sizeof(T) : at_least)) return EINVAL;
    return ReadUserMemory(out, address, std::min(sizeof(T), size_t{in_bytes}));
  }
  // ENOSPC: the program has room for less than `at_least` of the answer.
  int CheckRoom(size_t at_least) const { return out_bytes < at_least ? ENOSPC : 0; }
  // As much of it as there is room for.
  template <typename T>
  int Answer(uint64_t response, const T& answer) const {
    return WriteUserMemory(response, &answer, std::min(sizeof(T), size_t{out_bytes}));
  }
};

}  // namespace verbena::ucm

// In place of the helper (assist.h): functions of the program move the bytes, on a thread of ours.
// For programs that ask for it, since their memory is theirs alone to touch
// (FI_SET_OPS_HMEM_OVERRIDE).
//
// The thread takes no signals. While the program is stopped, so is the NIC's work with its memory.
#pragma once

#include <cstdint>

#include "core/shm/assist.h"

namespace verbena::client {

// Both are called by one thread, one at a time. Bytes moved, or a negative errno.
struct MoveFunctions {
  void* context = nullptr;
  int64_t (*gather)(void* context, void* to, const shm::AssistPiece* from,
                    uint32_t count) = nullptr;
  int64_t (*scatter)(void* context, const shm::AssistPiece* to, uint32_t count, const void* from,
                     uint64_t bytes) = nullptr;
};

struct Mover;

// As StartHelper.
int StartMover(int area_fd, int socket_fd, const MoveFunctions& functions, Mover** out);
// When it returns, none of the functions is running, nor will be.
void StopMover(Mover* mover);
void ForgetMover(Mover* mover);  // in a forked child

}  // namespace verbena::client

// What runs in the helper: a process of its own in the host's address space.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/shm/assist.h"

namespace verbena::client::internal {

// On the helper's stack mapping; the host reads `state` and `error` only.
struct HelperBlock {
  shm::AssistArea* area;
  int area_fd;  // these as the host had them when it made the helper
  int socket_fd;
  int host_pidfd;
  int32_t error;                // why it can't work
  std::atomic<uint32_t> state;  // futex word: one of the three below
};
inline constexpr uint32_t kHelperStarts = 0;
inline constexpr uint32_t kHelperWorks = 1;
inline constexpr uint32_t kHelperFailed = 2;

// For clone(2). Never returns: it ends with the socket, or with the host.
int HelperMain(void* block);

inline constexpr bool kHelperIsPossible =
#if defined(__x86_64__) || defined(__aarch64__)
    true;
#else
    false;
#endif

}  // namespace verbena::client::internal

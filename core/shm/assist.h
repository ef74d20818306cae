// What the NIC and a client's helper share. The helper runs in the client's address space and moves
// bytes between the client's memory and a staging area, where the NIC can't reach that memory by
// itself (docs/adr/0014). The NIC makes the file, seals its size, and maps all of it; the client
// maps the first page only: the staging area is read and written by file system calls, so that a
// bad address is an error.
//
// One request at a time. The NIC writes it, stores `requested` = n (n grows by one), and rings the
// socket (one byte) if the helper sleeps. The helper carries it out in one system call, stores
// `result`, then `answered` = n, and rings the socket if the NIC waits. Who closes its end of the
// socket ends the helper's work for good.
//
// Trust: the NIC believes nothing here but `answered` and `result`, which it copies once and
// judges.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/shm/layout.h"

namespace verbena::shm {

inline constexpr uint32_t kAssistPiecesMax = 144;
inline constexpr uint64_t kAssistStagingOffset = 4096;
inline constexpr uint64_t kAssistStagingBytes = 64 * 1024;
inline constexpr uint64_t kAssistFileBytes = kAssistStagingOffset + kAssistStagingBytes;

enum class AssistKind : uint32_t {
  kGather = 1,   // the client's pieces to the staging area, from its beginning on
  kScatter = 2,  // the staging area to the client's pieces, in ascending order
};

// As struct iovec of 64-bit systems: the helper hands the list to the kernel as it is.
struct AssistPiece {
  uint64_t addr;
  uint64_t bytes;
};

struct AssistArea {
  alignas(kCacheLineBytes) std::atomic<uint32_t> requested;       // [nic]
  std::atomic<uint32_t> nic_waits;                                // [nic]
  uint32_t kind;                                                  // [nic] AssistKind
  uint32_t piece_count;                                           // [nic]
  alignas(kCacheLineBytes) std::atomic<uint32_t> answered;        // [helper]
  std::atomic<uint32_t> helper_sleeps;                            // [helper]
  int64_t result;                                                 // [helper] bytes, or -errno
  alignas(kCacheLineBytes) AssistPiece pieces[kAssistPiecesMax];  // [nic]
};
static_assert(sizeof(AssistArea) <= kAssistStagingOffset);

}  // namespace verbena::shm

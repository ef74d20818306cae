// What may be registered, whichever verb does it.
#pragma once

#include <cerrno>
#include <cstdint>

#include "core/base/types.h"
#include "core/shm/command.h"

namespace verbena::softnic {

// Spec: IBTA 11.2.8.2; errno values as the kernel's ib_check_mr_access gives them.
inline int CheckAccess(uint32_t bits) {
  constexpr uint32_t kKnown = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                              access::kRemoteAtomic | access::kMwBind | access::kZeroBased |
                              access::kOnDemand | access::kHugetlb | access::kFlushGlobal |
                              access::kFlushPersistent | access::kOptionalMask;
  // Advertised nowhere: on-demand paging, and persistence, which no memory is known to have.
  constexpr uint32_t kUnsupported = access::kOnDemand | access::kFlushPersistent;
  constexpr uint32_t kNeedLocalWrite = access::kRemoteWrite | access::kRemoteAtomic;
  if ((bits & ~kKnown) != 0) return EINVAL;
  if ((bits & kNeedLocalWrite) != 0 && (bits & access::kLocalWrite) == 0) return EINVAL;
  return (bits & kUnsupported) != 0 ? EOPNOTSUPP : 0;
}

inline bool Overflows(uint64_t start, uint64_t length) { return start + length < start; }

// Memory of a process that `iova` names. 0 or EINVAL.
inline int CheckRange(const shm::RegMrRequest& request, uint64_t iova) {
  if ((request.flags & ~(shm::kRegMrMapped | shm::kRegMrAssisted)) != 0) return EINVAL;
  if (request.piece_count > shm::kMappedPiecesMax) return EINVAL;
  // Nothing to pin is EINVAL with every kernel driver (ib_umem_get).
  if (request.length == 0) return EINVAL;
  const bool overflows = Overflows(request.addr, request.length) || Overflows(iova, request.length);
  return overflows ? EINVAL : 0;
}

}  // namespace verbena::softnic

// What may be registered, whichever verb does it.
#pragma once

#include <cerrno>
#include <cstdint>

#include "core/base/types.h"
#include "core/shm/command.h"
#include "softnic/device/objects.h"

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

constexpr uint32_t kRemoteRights =
    access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic | access::kFlushGlobal;
constexpr uint32_t kRegionBackendFlags = shm::kRegMrMapped | shm::kRegMrAssisted;

// How a region comes to its key, and what it may be.  Spec: core/shm/rdm.h.
inline int CheckKind(const shm::RegMrRequest& request, const Pd& pd) {
  const bool has_own_key = (request.flags & shm::kRegMrOwnKey) != 0;
  if (has_own_key && pd.own_keys == nullptr) return EINVAL;
  const bool is_remote = (request.access & kRemoteRights) != 0;
  if (pd.own_keys != nullptr && !has_own_key && is_remote) return EINVAL;
  if ((request.flags & shm::kRegMrWholeProcess) == 0) return 0;
  const bool has_range = (request.addr | request.length | request.iova | request.piece_count) != 0;
  const bool has_other_flags = (request.flags & (shm::kRegMrOwnKey | shm::kRegMrMapped)) != 0;
  const bool has_rights = (request.access & ~access::kLocalWrite) != 0;
  return has_range || has_other_flags || has_rights ? EINVAL : 0;
}

// All that a process of x86-64 has without asking for more.
constexpr uint64_t kProcessBytes = uint64_t{1} << 47;
inline bool IsWholeProcess(const Mr& mr) {
  return mr.dm == nullptr && mr.addr == 0 && mr.length == kProcessBytes;
}

// What peers name the region by; 0: they can't, or it is the program's key 0.
inline uint32_t RemoteKeyOf(const Mr& mr) {
  if (mr.memory == kNullMemory || IsWholeProcess(mr)) return 0;
  if (mr.pd->own_keys != nullptr) return mr.has_own_key ? mr.own_key : 0;
  return mr.key;
}

// Memory of a process that `iova` names. 0 or EINVAL.
inline int CheckRange(const shm::RegMrRequest& request, uint64_t iova) {
  if (request.piece_count > shm::kMappedPiecesMax) return EINVAL;
  // Nothing to pin is EINVAL with every kernel driver (ib_umem_get).
  if (request.length == 0) return EINVAL;
  const bool overflows = Overflows(request.addr, request.length) || Overflows(iova, request.length);
  return overflows ? EINVAL : 0;
}

}  // namespace verbena::softnic

// What fids of all classes have in common: operations that an object does not have.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

namespace verbena::fi {

inline int NoBind(fid*, fid*, uint64_t) { return -FI_ENOSYS; }
inline int NoControl(fid*, int, void*) { return -FI_ENOSYS; }
inline int NoOpsOpen(fid*, const char*, uint64_t, void**, void*) { return -FI_ENOSYS; }
inline int NoToString(const fid*, char*, size_t) { return -FI_ENOSYS; }
inline int NoOpsSet(fid*, const char*, uint64_t, void*, void*) { return -FI_ENOSYS; }

inline fi_ops FidOps(int (*close)(fid*), int (*bind)(fid*, fid*, uint64_t) = NoBind,
                     int (*control)(fid*, int, void*) = NoControl) {
  return {sizeof(fi_ops), close, bind, control, NoOpsOpen, NoToString, NoOpsSet};
}

}  // namespace verbena::fi

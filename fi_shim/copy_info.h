// Copies of a fi_info that libfabric's fi_freeinfo may free.
#pragma once

#include <rdma/fabric.h>

namespace verbena::fi {

// nullptr: no memory. `nic` is left out, and `next`.
fi_info* CopyInfo(const fi_info* info);
void FreeInfo(fi_info* info);
// Exchanges an address (src_addr or dest_addr and its length). False: no memory.
bool SetAddress(void** to, size_t* to_bytes, const void* from, size_t bytes);

}  // namespace verbena::fi

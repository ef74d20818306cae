// Copies of a fi_info that libfabric's fi_freeinfo may free.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <utility>

#include "fi_shim/address.h"

namespace verbena::fi {

// nullptr: no memory. `nic` is left out, and `next`.
fi_info* CopyInfo(const fi_info* info);
void FreeInfo(fi_info* info);
// Exchanges an address (src_addr or dest_addr and its length). False: no memory.
bool SetAddress(void** to, size_t* to_bytes, const void* from, size_t bytes);

// fi_setname: the source of `info`, as far as `apply` goes along with it (0 or a negative FI
// errno); what there was before stays otherwise. Besides: -FI_EINVAL: no whole address of a family
// that endpoints have; -FI_ENOMEM.
template <typename Apply>
int ReplaceSource(fi_info* info, const void* address, size_t bytes, Apply apply) {
  if (address == nullptr || bytes < sizeof(sa_family_t)) return -FI_EINVAL;
  const size_t own_bytes = AddressBytes(address);
  if (own_bytes == 0 || bytes < own_bytes) return -FI_EINVAL;
  void* before = std::exchange(info->src_addr, nullptr);
  const size_t before_bytes = info->src_addrlen;
  const bool is_set = SetAddress(&info->src_addr, &info->src_addrlen, address, own_bytes);
  const int error = is_set ? apply() : -FI_ENOMEM;
  if (error != 0) {
    std::swap(before, info->src_addr);
    info->src_addrlen = before_bytes;
  }
  free(before);
  return error;
}

}  // namespace verbena::fi

// Options of identifiers, and ECE as programs set and read it.
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {

// Errors: ENOSYS: no such option; EINVAL: a value of another size, or too late; EFAULT: no value.
// Source: rdma_set_option(3).
VERBENA_EXPORT int rdma_set_option(rdma_cm_id* base, int level, int optname, void* optval,
                                   size_t optlen) {
  Id* id = ToId(base);
  if (optlen > shm::kCmOptionMax) return Fail(EINVAL);
  if (optval == nullptr && optlen != 0) return Fail(EFAULT);
  shm::CmRequest request = NewRequest(shm::CmOp::kSetOption, id->handle);
  request.option.level = static_cast<uint32_t>(level);
  request.option.name = static_cast<uint32_t>(optname);
  request.option.length = static_cast<uint32_t>(optlen);
  if (optlen != 0) memcpy(request.option.value, optval, optlen);
  shm::CmReply reply;
  return Result(Ask(id, request, &reply));
}

// For a program that owns the QP. Errors: EINVAL: the identifier has a QP, whose ECE counts; no
// vendor.  Source: rdma_set_local_ece(3).
VERBENA_EXPORT int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr || ece->vendor_id == 0 ||
      ece->comp_mask != 0) {
    return Fail(EINVAL);
  }
  ToId(id)->local_ece.vendor_id = ece->vendor_id;
  ToId(id)->local_ece.options = ece->options;
  return 0;
}

// Errors: EINVAL: as above.  Source: rdma_get_remote_ece(3).
VERBENA_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (id == nullptr || id->qp != nullptr || ece == nullptr) return Fail(EINVAL);
  ece->vendor_id = ToId(id)->remote_ece.vendor_id;
  ece->options = ToId(id)->remote_ece.options;
  ece->comp_mask = 0;
  return 0;
}

}  // namespace verbena::rdmacm

// In which order the bytes of a message become visible.
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/objects.h"

namespace verbena::verbs {
namespace {

// What v64 adds: kinds of order, as a set.
constexpr int kWholeMessage = 1 << 0;
constexpr int kAligned128Bytes = 1 << 1;

bool WritesMemoryHere(ibv_wr_opcode op) {
  switch (op) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_RDMA_READ:
      return true;
    default:
      return false;  // the verb says nothing of others
  }
}

}  // namespace

// Into memory that it maps the NIC writes word by word, in ascending order, and where all regions
// have to be mapped all data come that way. Into any other the kernel copies for it, in an order
// that no manual promises. Other CPUs than x86 may see stores in another order than they were made.
VERBENA_EXPORT int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode op, uint32_t flags) {
  if ((flags & ~(kDataInOrderReturnCapsV64 | kDataInOrderDeviceOnlyV64)) != 0) return 0;
#if defined(__x86_64__)
  const char* backend = secure_getenv("VERBENA_DMA");
  const bool is_mapped = backend != nullptr && strcmp(backend, "mapped") == 0;
  if (!is_mapped || !WritesMemoryHere(op)) return 0;
  return (flags & kDataInOrderReturnCapsV64) != 0 ? kWholeMessage | kAligned128Bytes : 1;
#else
  (void)op;
  return 0;
#endif
}

}  // namespace verbena::verbs

// Verbs this device does not have: each returns what rdma-core documents for that.
#include "verbs_shim/objects.h"

namespace verbena::verbs {
VERBENA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return Fail<ibv_mr>(EOPNOTSUPP);
}

// A zero vendor id asks for nothing and is refused the same way, with errno set as well.
VERBENA_EXPORT int ibv_set_ece(ibv_qp*, ibv_ece* ece) {
  if (ece->vendor_id == 0) errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}
VERBENA_EXPORT int ibv_query_ece(ibv_qp*, ibv_ece*) { return EOPNOTSUPP; }

// v64.
VERBENA_EXPORT int ibv_dm_export_dmabuf_fd(ibv_dm*) {
  errno = EOPNOTSUPP;
  return -1;
}

}  // namespace verbena::verbs

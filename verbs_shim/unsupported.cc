// Verbs this device does not have: each returns what rdma-core documents for that.
#include "verbs_shim/objects.h"

namespace verbena::verbs {
VERBENA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return Fail<ibv_mr>(EOPNOTSUPP);
}

// v64.
VERBENA_EXPORT int ibv_dm_export_dmabuf_fd(ibv_dm*) {
  errno = EOPNOTSUPP;
  return -1;
}

}  // namespace verbena::verbs

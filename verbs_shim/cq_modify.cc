// Moderation of completion events.
#include "verbs_shim/objects.h"

namespace verbena::verbs {

// Errors: EINVAL: no attribute, one this library does not know, or a longer period than the
// device's.
int ModifyCq(ibv_cq* base, ibv_modify_cq_attr* attr) {
  Cq* cq = ToCq(base);
  if (attr->attr_mask != IBV_CQ_ATTR_MODERATE) return EINVAL;
  return Execute(
      cq->context, shm::CommandOp::kModifyCq,
      shm::ModifyCqRequest{base->handle, attr->moderate.cq_count, attr->moderate.cq_period});
}

}  // namespace verbena::verbs

// The rate limit of a QP.
#include "verbs_shim/objects.h"

namespace verbena::verbs {

// Errors: EINVAL: a rate above the device's, a burst or packet size without a rate, an attribute
// this library does not know, or a QP that is not in RTS.
int ModifyQpRateLimit(ibv_qp* base, ibv_qp_rate_limit_attr* attr) {
  if (attr->comp_mask != 0) return EINVAL;
  shm::ModifyQpRequest request = {};
  request.qp = base->handle;
  request.mask = IBV_QP_RATE_LIMIT;
  request.attr.rate_limit = attr->rate_limit;
  request.max_burst_bytes = attr->max_burst_sz;
  request.typical_packet_bytes = attr->typical_pkt_sz;
  shm::ModifyQpReply reply = {};
  return Execute(ToQp(base)->context, shm::CommandOp::kModifyQp, request, &reply);
}

}  // namespace verbena::verbs

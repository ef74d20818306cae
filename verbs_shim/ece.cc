// Enhanced connection establishment: what two QPs may do beyond what every RoCE NIC does.
#include "verbs_shim/ece.h"

#include "verbs_shim/objects.h"

namespace verbena::verbs {

uint32_t EceOptionsOf(ibv_qp_type type) {
  return type == IBV_QPT_RC ? VERBENADV_ECE_ATOMIC_WRITE | VERBENADV_ECE_FLUSH : 0;
}

// Errors: EOPNOTSUPP: no vendor, which asks for nothing; EINVAL: another vendor's options, a field
// that is not known, or a QP past INIT, which is connected already. Only a failure sets errno.
// Spec: ibv_set_ece(3), as libmlx5 has it.
VERBENA_EXPORT int ibv_set_ece(ibv_qp* base, ibv_ece* ece) {
  Qp* qp = ToQp(base);
  if (ece->vendor_id == 0) {
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
  }
  const uint32_t state = qp->state.load(std::memory_order_relaxed);
  const bool is_connected = state != IBV_QPS_RESET && state != IBV_QPS_INIT;
  if (ece->vendor_id != qp->context->attr.vendor_id || ece->comp_mask != 0 || is_connected) {
    errno = EINVAL;
    return EINVAL;
  }
  ece->options &= EceOptionsOf(base->qp_type);
  qp->ece_options.store(ece->options, std::memory_order_relaxed);
  return 0;
}

VERBENA_EXPORT int ibv_query_ece(ibv_qp* base, ibv_ece* ece) {
  const Qp* qp = ToQp(base);
  ece->vendor_id = qp->context->attr.vendor_id;
  ece->options = qp->ece_options.load(std::memory_order_relaxed);
  ece->comp_mask = 0;
  return 0;
}

}  // namespace verbena::verbs

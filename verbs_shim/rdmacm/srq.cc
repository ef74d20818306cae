// Shared receive queues of identifiers.
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

// An XRC SRQ has a domain and a CQ. 0, or -1 and errno.
int CompleteXrcAttr(rdma_cm_id* id, ibv_srq_init_attr_ex* attr) {
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0 || attr->xrcd == nullptr) {
    attr->xrcd = XrcdOf(ToId(id)->device);
    if (attr->xrcd == nullptr) return -1;
  }
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0 || attr->cq == nullptr) {
    if (CreateCqs(id, 0, attr->attr.max_wr) != 0) return -1;
    attr->cq = id->recv_cq;
  }
  attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  return 0;
}

}  // namespace

// Errors: EINVAL: no type, or no NIC yet; those of ibv_create_srq_ex.
// Source: rdma_create_srq(3).
VERBENA_EXPORT int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attr) {
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || ToId(id)->device == nullptr) {
    return Fail(EINVAL);
  }
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    attr->pd = id->pd;
    attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  }
  if (attr->srq_type == IBV_SRQT_XRC && CompleteXrcAttr(id, attr) != 0) return -1;
  ibv_srq* srq = ibv_create_srq_ex(id->verbs, attr);
  if (srq == nullptr) {
    const int error = errno;
    DestroyCqs(id);
    return Fail(error);
  }
  if (id->pd == nullptr) id->pd = attr->pd;
  id->srq = srq;
  return 0;
}

// As above. `attr` gets what the SRQ really has.
VERBENA_EXPORT int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attr) {
  ibv_srq_init_attr_ex extended;
  memset(&extended, 0, sizeof(extended));
  extended.srq_context = attr->srq_context;
  extended.attr = attr->attr;
  extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  extended.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
  extended.pd = pd;
  const int result = rdma_create_srq_ex(id, &extended);
  attr->attr = extended.attr;
  return result;
}

VERBENA_EXPORT void rdma_destroy_srq(rdma_cm_id* id) {
  ibv_destroy_srq(id->srq);
  id->srq = nullptr;
  DestroyCqs(id);
}

}  // namespace verbena::rdmacm

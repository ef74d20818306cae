// Queue pairs of identifiers: made with their CQs, and taken through their states.
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

int QueryEce(ibv_qp* qp, ibv_ece* ece) {
  *ece = {};
  const int error = ibv_query_ece(qp, ece);
  return error == EOPNOTSUPP ? 0 : error;
}

int SetEce(ibv_qp* qp, ibv_ece* ece) {
  const int error = ibv_set_ece(qp, ece);
  return error == EOPNOTSUPP ? 0 : error;
}

// Notes what the QP can do, and of a request's identifier lets it do what both ends can.
int InitEce(Id* id, ibv_qp* qp) {
  ibv_ece ece;
  if (int error = QueryEce(qp, &ece); error != 0) return error;
  id->local_ece.vendor_id = ece.vendor_id;
  id->local_ece.options = ece.options;
  if (id->remote_ece.vendor_id == 0) return 0;
  ece = id->remote_ece;
  if (ece.vendor_id != id->local_ece.vendor_id) {
    // Another vendor's options say nothing here.
    ece.vendor_id = id->local_ece.vendor_id;
    ece.options = 0;
  }
  return SetEce(qp, &ece);
}

// What came of it, for the reply.
int NoteLocalEce(Id* id, ibv_qp* qp) {
  if (id->remote_ece.vendor_id == 0) return 0;
  ibv_ece ece;
  if (int error = QueryEce(qp, &ece); error != 0) return error;
  id->local_ece.options = ece.options;
  return 0;
}

int InitConnectedQp(Id* id, ibv_qp* qp) {
  ibv_qp_attr attr;
  int mask;
  attr.qp_state = IBV_QPS_INIT;
  if (int error = InitQpAttr(id, &attr, &mask); error != 0) return error;
  return ibv_modify_qp(qp, &attr, mask);
}

// A datagram QP has no peer to wait for.
int InitUdQp(Id* id, ibv_qp* qp) {
  if (int error = InitConnectedQp(id, qp); error != 0) return error;
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_RTR;
  if (int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE); error != 0) return error;
  attr.qp_state = IBV_QPS_RTS;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

// 0 or errno.
int PrepareQp(Id* id, ibv_qp* qp) {
  int error = InitEce(id, qp);
  if (error == 0) error = IsUd(id) ? InitUdQp(id, qp) : InitConnectedQp(id, qp);
  if (error == 0) error = NoteLocalEce(id, qp);
  return error;
}

bool NamesOther(const void* own, const void* wanted) {
  return own != nullptr && wanted != nullptr && own != wanted;
}

// 0 or errno: fills in what the program left to the library.
int CompleteInitAttr(Id* id, ibv_qp_init_attr_ex* attr) {
  const rdma_cm_id& base = id->base;
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr->pd == nullptr) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr->pd = base.pd;
  } else if (base.verbs != attr->pd->context) {
    return EINVAL;
  }
  if (attr->pd == nullptr) return EINVAL;  // of no NIC yet
  if (NamesOther(base.recv_cq, attr->recv_cq) || NamesOther(base.send_cq, attr->send_cq)) {
    return EINVAL;
  }
  const bool has_domain = (attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) != 0 && attr->xrcd != nullptr;
  if (base.qp_type == IBV_QPT_XRC_RECV && !has_domain) {
    attr->xrcd = XrcdOf(id->device);
    if (attr->xrcd == nullptr) return errno;
    attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
  }
  return 0;
}

}  // namespace

int InitQpAttr(Id* id, ibv_qp_attr* attr, int* mask) {
  shm::CmRequest request = NewRequest(shm::CmOp::kInitQpAttr, id->handle);
  request.number = static_cast<uint32_t>(attr->qp_state);
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) return error;
  const shm::CmQpAttr& from = reply.qp_attr;
  const ibv_qp_state state = attr->qp_state;  // stays as it was asked for
  memset(attr, 0, sizeof(*attr));
  attr->qp_state = state;
  attr->path_mtu = static_cast<ibv_mtu>(from.path_mtu);
  attr->qkey = from.qkey;
  attr->rq_psn = from.rq_psn;
  attr->sq_psn = from.sq_psn;
  attr->dest_qp_num = from.dest_qp_num;
  attr->qp_access_flags = from.qp_access_flags;
  CopyAddressHandle(from.ah, &attr->ah_attr);
  attr->pkey_index = from.pkey_index;
  attr->max_rd_atomic = from.max_rd_atomic;
  attr->max_dest_rd_atomic = from.max_dest_rd_atomic;
  attr->min_rnr_timer = from.min_rnr_timer;
  attr->port_num = from.port_num;
  attr->timeout = from.timeout;
  attr->retry_cnt = from.retry_cnt;
  attr->rnr_retry = from.rnr_retry;
  *mask = static_cast<int>(from.mask);
  return 0;
}

int ModifyToRtr(Id* id, uint8_t responder_resources) {
  ibv_qp* qp = id->base.qp;
  if (qp == nullptr) return 0;
  // Once more to INIT: the access flags depend on what was agreed upon since.
  if (int error = InitConnectedQp(id, qp); error != 0) return error;
  ibv_qp_attr attr;
  int mask;
  attr.qp_state = IBV_QPS_RTR;
  if (int error = InitQpAttr(id, &attr, &mask); error != 0) return error;
  if (responder_resources != RDMA_MAX_RESP_RES) attr.max_dest_rd_atomic = responder_resources;
  return ibv_modify_qp(qp, &attr, mask);
}

int ModifyToRts(Id* id, uint8_t initiator_depth) {
  ibv_qp* qp = id->base.qp;
  if (qp == nullptr) return 0;
  ibv_qp_attr attr;
  int mask;
  attr.qp_state = IBV_QPS_RTS;
  if (int error = InitQpAttr(id, &attr, &mask); error != 0) return error;
  if (initiator_depth != RDMA_MAX_INIT_DEPTH) attr.max_rd_atomic = initiator_depth;
  return ibv_modify_qp(qp, &attr, mask);
}

int ModifyToErr(Id* id) {
  if (id->base.qp == nullptr) return 0;
  ibv_qp_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(id->base.qp, &attr, IBV_QP_STATE);
}

int FinishConnectingWithEce(Id* id, uint32_t vendor_id, uint32_t options) {
  ibv_ece ece = {vendor_id, options, 0};
  if (vendor_id == 0) {
    // The other end knows nothing of ECE: none of it is used.
    ece.vendor_id = id->local_ece.vendor_id;
    ece.options = 0;
  } else if (vendor_id != id->local_ece.vendor_id) {
    // An answer has the vendor that was offered.
    ModifyToErr(id);
    return EINVAL;
  }
  id->remote_ece.vendor_id = vendor_id;
  if (int error = SetEce(id->base.qp, &ece); error != 0) return error;
  if (int error = FinishConnecting(id); error != 0) return error;
  const int error = QueryEce(id->base.qp, &ece);
  if (error != 0) ModifyToErr(id);
  id->local_ece.options = ece.options;
  return error;
}

void DestroyCqs(rdma_cm_id* id) {
  if (id->qp_type == IBV_QPT_XRC_RECV && id->srq != nullptr) return;  // the SRQ's
  if (id->recv_cq != nullptr) ibv_destroy_cq(id->recv_cq);
  if (id->send_cq != nullptr && id->send_cq != id->recv_cq) ibv_destroy_cq(id->send_cq);
  id->recv_cq = nullptr;
  id->send_cq = nullptr;
  if (id->recv_cq_channel != nullptr) ibv_destroy_comp_channel(id->recv_cq_channel);
  if (id->send_cq_channel != nullptr && id->send_cq_channel != id->recv_cq_channel) {
    ibv_destroy_comp_channel(id->send_cq_channel);
  }
  id->recv_cq_channel = nullptr;
  id->send_cq_channel = nullptr;
}

int CreateCqs(rdma_cm_id* id, uint32_t send_entries, uint32_t receive_entries) {
  auto create = [id](uint32_t entries, ibv_comp_channel** channel, ibv_cq** cq) {
    if (entries == 0) return true;
    *channel = ibv_create_comp_channel(id->verbs);
    if (*channel == nullptr) return false;
    *cq = ibv_create_cq(id->verbs, static_cast<int>(entries), id, *channel, 0);
    return *cq != nullptr;
  };
  if (create(receive_entries, &id->recv_cq_channel, &id->recv_cq) &&
      create(send_entries, &id->send_cq_channel, &id->send_cq)) {
    return 0;
  }
  const int error = errno;
  DestroyCqs(id);
  return Fail(error);
}

// What `attr` leaves open is the identifier's: PD, SRQ, CQs of their own with completion channels.
// Errors: EINVAL: it has one, no NIC yet, or a PD or CQ of another; those of ibv_create_qp and
// ibv_modify_qp.  Source: rdma_create_qp(3).
VERBENA_EXPORT int rdma_create_qp_ex(rdma_cm_id* base, ibv_qp_init_attr_ex* attr) {
  Id* id = ToId(base);
  if (base->qp != nullptr) return Fail(EINVAL);
  if (int error = CompleteInitAttr(id, attr); error != 0) return Fail(error);
  const bool has_send_cq = attr->send_cq != nullptr || base->send_cq != nullptr;
  const bool has_recv_cq = attr->recv_cq != nullptr || base->recv_cq != nullptr;
  const int result = CreateCqs(base, has_send_cq ? 0 : attr->cap.max_send_wr,
                               has_recv_cq ? 0 : attr->cap.max_recv_wr);
  if (result != 0) return result;
  if (attr->send_cq == nullptr) attr->send_cq = base->send_cq;
  if (attr->recv_cq == nullptr) attr->recv_cq = base->recv_cq;
  if (attr->srq == nullptr) attr->srq = base->srq;
  ibv_qp* qp = ibv_create_qp_ex(base->verbs, attr);
  int error = qp == nullptr ? errno : PrepareQp(id, qp);
  if (error != 0) {
    if (qp != nullptr) ibv_destroy_qp(qp);
    DestroyCqs(base);
    return Fail(error);
  }
  base->pd = qp->pd;
  base->qp = qp;
  return 0;
}

// As above. `attr` gets what the QP really has.
VERBENA_EXPORT int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attr) {
  ibv_qp_init_attr_ex extended;
  memset(&extended, 0, sizeof(extended));
  extended.qp_context = attr->qp_context;
  extended.send_cq = attr->send_cq;
  extended.recv_cq = attr->recv_cq;
  extended.srq = attr->srq;
  extended.cap = attr->cap;
  extended.qp_type = attr->qp_type;
  extended.sq_sig_all = attr->sq_sig_all;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd != nullptr ? pd : id->pd;
  const int result = rdma_create_qp_ex(id, &extended);
  attr->send_cq = extended.send_cq;
  attr->recv_cq = extended.recv_cq;
  attr->srq = extended.srq;
  attr->cap = extended.cap;
  return result;
}

// qperf's server comes once more when its QP has gone.
VERBENA_EXPORT void rdma_destroy_qp(rdma_cm_id* id) {
  if (id->qp == nullptr) return;
  ibv_destroy_qp(id->qp);
  id->qp = nullptr;
  DestroyCqs(id);
}

// For a program that owns the QP: attributes for attr->qp_state.
// Errors: EINVAL: another state than INIT, RTR, RTS, or not known yet.
// Source: rdma_init_qp_attr(3).
VERBENA_EXPORT int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attr, int* mask) {
  return Result(InitQpAttr(ToId(id), attr, mask));
}

}  // namespace verbena::rdmacm

// Queue pairs: creation, states, attributes.
#include <string.h>

#include <new>

#include "verbs_shim/ece.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"
#include "verbs_shim/verbena/verbenadv.h"

namespace verbena::verbs {
namespace {

bool ToService(ibv_qp_type type, Service* out) {
  switch (type) {
    case IBV_QPT_RC:
      *out = Service::kRc;
      return true;
    case IBV_QPT_UC:
      *out = Service::kUc;
      return true;
    case IBV_QPT_UD:
      *out = Service::kUd;
      return true;
    default:
      return false;
  }
}

// What is wrong with the caller's wishes: EINVAL, or EOPNOTSUPP for what this device has not.
int CheckInitAttr(const Context& context, const ibv_qp_init_attr_ex& attr) {
  constexpr uint32_t kKnownMask =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  Service service;
  if (!ToService(attr.qp_type, &service)) return EOPNOTSUPP;
  if ((attr.comp_mask & ~kKnownMask) != 0) return EOPNOTSUPP;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr.pd == nullptr) return EINVAL;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr.create_flags != 0) {
    return EOPNOTSUPP;
  }
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
      !SendOpsSupported(attr.qp_type, attr.send_ops_flags)) {
    return EOPNOTSUPP;
  }
  if (attr.send_cq == nullptr || attr.recv_cq == nullptr) return EINVAL;
  // The numbers of another context's objects may be those of others here.
  const ibv_context* base = &context.vctx.context;
  if (attr.pd->context != base || attr.send_cq->context != base || attr.recv_cq->context != base ||
      (attr.srq != nullptr && attr.srq->context != base)) {
    return EINVAL;
  }
  const shm::QueryDeviceReply& limits = context.attr;
  const ibv_qp_cap& cap = attr.cap;
  if (cap.max_send_wr > limits.max_qp_wr || cap.max_send_sge > limits.max_sge ||
      cap.max_inline_data > limits.max_inline_bytes) {
    return EINVAL;
  }
  // With an SRQ the QP's own receive queue, and so its size, does not exist.
  if (attr.srq == nullptr &&
      (cap.max_recv_wr > limits.max_qp_wr || cap.max_recv_sge > limits.max_sge)) {
    return EINVAL;
  }
  return 0;
}

// A QP with an SRQ has no receive queue.  Errors: as AllocateEntries.
int AllocateQueues(Qp* qp, const ibv_qp_init_attr_ex& attr) {
  const ibv_qp_cap& cap = attr.cap;
  const uint64_t sq_bytes = uint64_t{WorkQueueEntries(cap.max_send_wr)} *
                            SendEntryBytes(cap.max_send_sge, cap.max_inline_data);
  const uint64_t rq_bytes =
      uint64_t{WorkQueueEntries(cap.max_recv_wr)} * RecvEntryBytes(cap.max_recv_sge);
  int error = AllocateEntries(attr.pd, sq_bytes, VERBENADV_RES_TYPE_SQ, &qp->sq.entries);
  if (error != 0 || attr.srq != nullptr) return error;
  return AllocateEntries(attr.pd, rq_bytes, VERBENADV_RES_TYPE_RQ, &qp->rq.entries);
}

bool MapQueue(Context* context, const shm::QueuePlace& place, uint32_t max_wr, uint32_t max_sge,
              const Td* td, PostQueue* queue) {
  RingMemory memory = context->session->MapRing(place);
  if (!memory.IsValid()) return false;
  queue->ring = WorkQueueProducer(memory, place.entries, place.stride_bytes, max_wr,
                                  queue->entries.memory);
  queue->doorbell.number = place.doorbell;
  if (place.doorbell >= shm::kFirstThreadDoorbell) {
    if (td == nullptr || td->doorbells == nullptr) return false;
    queue->doorbell.thread_page = td->doorbells;
  }
  queue->max_sge = max_sge;
  return true;
}

int ExecuteCreate(Qp* qp, const ibv_qp_init_attr_ex& attr) {
  Service service = Service::kRc;
  ToService(attr.qp_type, &service);
  shm::CreateQpRequest request = {};
  request.pd = attr.pd->handle;
  request.send_cq = attr.send_cq->handle;
  request.recv_cq = attr.recv_cq->handle;
  request.srq = attr.srq != nullptr ? attr.srq->handle : 0;
  request.service = static_cast<uint32_t>(service);
  request.max_send_wr = attr.cap.max_send_wr;
  request.max_recv_wr = attr.srq != nullptr ? 0 : attr.cap.max_recv_wr;
  request.max_send_sge = attr.cap.max_send_sge;
  request.max_recv_sge = attr.srq != nullptr ? 0 : attr.cap.max_recv_sge;
  request.max_inline_bytes = attr.cap.max_inline_data;
  request.sq_sig_all = attr.sq_sig_all != 0 ? 1 : 0;
  request.cookie = qp->cookie;
  request.sq_memory = AddressOf(qp->sq.entries);
  request.rq_memory = AddressOf(qp->rq.entries);
  const Td* td = ToPd(attr.pd)->td;
  if (td != nullptr) request.td = td->handle;
  shm::CreateQpReply reply = {};
  int error = Execute(qp->context, shm::CommandOp::kCreateQp, request, &reply);
  if (error != 0) return error;
  qp->has_rq = reply.rq.bytes != 0;
  if (!MapQueue(qp->context, reply.sq, reply.max_send_wr, reply.max_send_sge, td, &qp->sq) ||
      (qp->has_rq &&
       !MapQueue(qp->context, reply.rq, reply.max_recv_wr, reply.max_recv_sge, td, &qp->rq))) {
    ExecuteDestroy(qp->context, shm::CommandOp::kDestroyQp, reply.qp);
    return ENOMEM;
  }
  qp->base()->handle = reply.qp;
  qp->base()->qp_num = reply.qpn;
  qp->max_inline_bytes = reply.max_inline_bytes;
  qp->cap = {reply.max_send_wr, reply.max_recv_wr, reply.max_send_sge, reply.max_recv_sge,
             reply.max_inline_bytes};
  return 0;
}

void InitBase(Qp* qp, const ibv_qp_init_attr_ex& attr) {
  ibv_qp* base = qp->base();
  base->context = Base(qp->context);
  base->qp_context = attr.qp_context;
  base->pd = attr.pd;
  base->send_cq = attr.send_cq;
  base->recv_cq = attr.recv_cq;
  base->srq = attr.srq;
  base->state = IBV_QPS_RESET;
  qp->ece_options = EceOptionsOf(attr.qp_type);
  base->qp_type = attr.qp_type;
  pthread_mutex_init(&base->mutex, nullptr);
  pthread_cond_init(&base->cond, nullptr);
}

void Link(Qp* qp) {
  Context* const context = qp->context;
  PostOrder* order = nullptr;
  {
    SpinGuard guard(context->qps_lock);
    qp->next = context->qps;
    if (qp->next != nullptr) qp->next->previous = qp;
    context->qps = qp;
    if (++context->qp_count < PostOrder::kManyQps || context->post_order != nullptr) return;
  }
  // Without memory for it posts are what they are with few QPs.
  PostOrder* const made = PostOrder::Make();
  if (!context->post_order.compare_exchange_strong(order, made)) PostOrder::Free(made);
}
void Unlink(Qp* qp) {
  SpinGuard guard(qp->context->qps_lock);
  if (qp->next != nullptr) qp->next->previous = qp->previous;
  (qp->previous != nullptr ? qp->previous->next : qp->context->qps) = qp->next;
  --qp->context->qp_count;
}

void ToShm(const ibv_qp_attr& in, uint32_t mask, shm::QpAttr* out) {
  out->qp_state = in.qp_state;
  out->cur_qp_state = in.cur_qp_state;
  out->path_mtu = in.path_mtu;
  out->path_mig_state = in.path_mig_state;
  out->qkey = in.qkey;
  out->rq_psn = in.rq_psn;
  out->sq_psn = in.sq_psn;
  out->dest_qp_num = in.dest_qp_num;
  out->qp_access_flags = in.qp_access_flags;
  out->max_send_wr = in.cap.max_send_wr;
  out->max_recv_wr = in.cap.max_recv_wr;
  out->max_send_sge = in.cap.max_send_sge;
  out->max_recv_sge = in.cap.max_recv_sge;
  out->max_inline_bytes = in.cap.max_inline_data;
  // Programs leave what they do not name uninitialised: it must not travel.
  if (mask & IBV_QP_AV) out->ah_attr = verbs::ToShm(in.ah_attr);
  if (mask & IBV_QP_ALT_PATH) out->alt_ah_attr = verbs::ToShm(in.alt_ah_attr);
  out->pkey_index = in.pkey_index;
  out->alt_pkey_index = in.alt_pkey_index;
  out->en_sqd_async_notify = in.en_sqd_async_notify;
  out->sq_draining = in.sq_draining;
  out->max_rd_atomic = in.max_rd_atomic;
  out->max_dest_rd_atomic = in.max_dest_rd_atomic;
  out->min_rnr_timer = in.min_rnr_timer;
  out->port_num = in.port_num;
  out->timeout = in.timeout;
  out->retry_cnt = in.retry_cnt;
  out->rnr_retry = in.rnr_retry;
  out->alt_port_num = in.alt_port_num;
  out->alt_timeout = in.alt_timeout;
  out->rate_limit = (mask & IBV_QP_RATE_LIMIT) != 0 ? in.rate_limit : 0;
}

void FromShm(const shm::QpAttr& in, ibv_qp_attr* out) {
  out->qp_state = static_cast<ibv_qp_state>(in.qp_state);
  out->cur_qp_state = static_cast<ibv_qp_state>(in.cur_qp_state);
  out->path_mtu = static_cast<ibv_mtu>(in.path_mtu);
  out->path_mig_state = static_cast<ibv_mig_state>(in.path_mig_state);
  out->qkey = in.qkey;
  out->rq_psn = in.rq_psn;
  out->sq_psn = in.sq_psn;
  out->dest_qp_num = in.dest_qp_num;
  out->qp_access_flags = in.qp_access_flags;
  verbs::FromShm(in.ah_attr, &out->ah_attr);
  verbs::FromShm(in.alt_ah_attr, &out->alt_ah_attr);
  out->pkey_index = in.pkey_index;
  out->alt_pkey_index = in.alt_pkey_index;
  out->en_sqd_async_notify = in.en_sqd_async_notify;
  out->sq_draining = in.sq_draining;
  out->max_rd_atomic = in.max_rd_atomic;
  out->max_dest_rd_atomic = in.max_dest_rd_atomic;
  out->min_rnr_timer = in.min_rnr_timer;
  out->port_num = in.port_num;
  out->timeout = in.timeout;
  out->retry_cnt = in.retry_cnt;
  out->rnr_retry = in.rnr_retry;
  out->alt_port_num = in.alt_port_num;
  out->alt_timeout = in.alt_timeout;
  out->rate_limit = in.rate_limit;
}

void Learn(Qp* qp, uint32_t state) {
  qp->state.store(state, std::memory_order_relaxed);
  // Two threads may learn it at once.
  std::atomic_ref(qp->base()->state)
      .store(static_cast<ibv_qp_state>(state), std::memory_order_relaxed);
}

// Both ends of a queue start again at zero when its QP is reset.
void ResetQueue(PostQueue* queue) {
  SpinGuard guard(queue->lock);
  queue->ring.Reset();
  queue->flushing = false;
}

}  // namespace

// 0, or EINVAL: attributes out of range; EOPNOTSUPP: a type, flag or operation this device has not;
// ENOMEM.
int CreateQp(Context* context, ibv_qp_init_attr_ex* attr, ibv_qp** out) {
  int error = CheckInitAttr(*context, *attr);
  if (error != 0) return error;
  auto* qp = new (std::nothrow) Qp();
  if (qp == nullptr) return ENOMEM;
  qp->context = context;
  {
    MutexGuard guard(context->table_mutex);
    qp->cookie = context->table.Add(ObjectKind::kQp, qp);
  }
  error = qp->cookie != 0 ? AllocateQueues(qp, *attr) : ENOMEM;
  if (error == 0) error = ExecuteCreate(qp, *attr);
  if (error != 0) {
    FreeEntries(&qp->sq.entries);
    FreeEntries(&qp->rq.entries);
    MutexGuard guard(context->table_mutex);
    context->table.Remove(qp->cookie);
    delete qp;
    return error;
  }
  InitBase(qp, *attr);
  qp->sq_sig_all = attr->sq_sig_all != 0;
  qp->is_extended = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (qp->is_extended) SetSendOps(qp, attr->send_ops_flags);
  Use(attr->pd);
  if (HasThreadDomain(attr->pd)) {
    qp->sq.lock.Elide();
    qp->rq.lock.Elide();
  }
  Link(qp);
  attr->cap = qp->cap;
  *out = qp->base();
  return 0;
}

// ibv_qp_init_attr is the beginning of ibv_qp_init_attr_ex, and `cap` is written back.
VERBENA_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  ibv_qp_init_attr_ex extended = {};
  static_assert(offsetof(ibv_qp_init_attr_ex, comp_mask) >= offsetof(ibv_qp_init_attr, sq_sig_all));
  memcpy(static_cast<void*>(&extended), attr, sizeof(*attr));
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd;
  ibv_qp* qp = nullptr;
  int error = CreateQp(ToContext(pd->context), &extended, &qp);
  if (error != 0) {
    Debug("creating a QP: %s", strerror(error));
    return Fail<ibv_qp>(error);
  }
  attr->cap = extended.cap;
  return qp;
}

ibv_qp* CreateQpEx(ibv_context* base, ibv_qp_init_attr_ex* attr) {
  ibv_qp* qp = nullptr;
  int error = CreateQp(ToContext(base), attr, &qp);
  return error == 0 ? qp : Fail<ibv_qp>(error);
}

// nullptr unless the QP was created with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.
VERBENA_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  return ToQp(qp)->is_extended ? &ToQp(qp)->ex.ex : nullptr;
}

// Completions of a QP that was reset are nobody's, as with drivers of hardware.
static void DropCompletions(Cq* cq, shm::Handle qp) {
  if (cq == nullptr) return;
  SpinGuard guard(cq->lock);
  cq->ring.Remove([qp](const shm::Cqe& cqe) { return cqe.qp_handle == qp; });
}

// Errors: EINVAL: a transition, mask or value that the specification does not allow; ENOMEM.
VERBENA_EXPORT int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attr, int attr_mask) {
  Qp* qp = ToQp(base);
  auto mask = static_cast<uint32_t>(attr_mask);
  shm::ModifyQpRequest request = {};
  request.qp = base->handle;
  request.mask = mask;
  ToShm(*attr, mask, &request.attr);
  shm::ModifyQpReply reply = {};
  int error = Execute(qp->context, shm::CommandOp::kModifyQp, request, &reply);
  if (error != 0) {
    Debug("modifying QP 0x%x, mask 0x%x: %s", base->qp_num, mask, strerror(error));
    return error;
  }
  if ((mask & IBV_QP_STATE) != 0) {
    if (reply.state == IBV_QPS_RESET) {
      DropCompletions(ToCq(base->recv_cq), base->handle);
      if (base->send_cq != base->recv_cq) DropCompletions(ToCq(base->send_cq), base->handle);
      ResetQueue(&qp->sq);
      if (qp->has_rq) ResetQueue(&qp->rq);
    }
    Learn(qp, reply.state);
  }
  return 0;
}

VERBENA_EXPORT int ibv_query_qp(ibv_qp* base, ibv_qp_attr* attr, int attr_mask,
                                ibv_qp_init_attr* init_attr) {
  Qp* qp = ToQp(base);
  shm::QueryQpReply reply = {};
  int error =
      Execute(qp->context, shm::CommandOp::kQueryQp, shm::HandleRequest{base->handle, 0}, &reply);
  if (error != 0) return error;
  *attr = {};
  FromShm(reply.attr, attr);
  attr->cap = qp->cap;
  init_attr->qp_context = base->qp_context;
  init_attr->send_cq = base->send_cq;
  init_attr->recv_cq = base->recv_cq;
  init_attr->srq = base->srq;
  init_attr->cap = qp->cap;
  init_attr->qp_type = base->qp_type;
  init_attr->sq_sig_all = qp->sq_sig_all ? 1 : 0;
  Learn(qp, reply.attr.qp_state);
  return 0;
}

// Waits until all events the program got were acknowledged.  Errors: EBUSY while attached to a
// multicast group.
VERBENA_EXPORT int ibv_destroy_qp(ibv_qp* base) {
  Qp* qp = ToQp(base);
  Context* context = qp->context;
  int error = ExecuteDestroy(context, shm::CommandOp::kDestroyQp, base->handle);
  if (error != 0) return error;
  Unlink(qp);
  uint32_t events;
  {
    MutexGuard guard(context->table_mutex);
    context->table.Remove(qp->cookie);
    events = qp->events_reported;
  }
  DropStaleEvents(context);
  AwaitAcks(&base->mutex, &base->cond, &base->events_completed, events);
  FreeEntries(&qp->sq.entries);
  FreeEntries(&qp->rq.entries);
  Unuse(base->pd);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete qp;
  return 0;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_create_qp);
VERBENA_VERSION_1_1(ibv_modify_qp);
VERBENA_VERSION_1_1(ibv_query_qp);
VERBENA_VERSION_1_1(ibv_destroy_qp);

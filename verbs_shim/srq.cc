// Shared receive queues.
#include <new>
#include <utility>

#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"
#include "verbs_shim/verbena/verbenadv.h"

namespace verbena::verbs {
namespace {

bool MapQueue(Srq* srq, const shm::QueuePlace& place, uint32_t max_wr) {
  RingMemory memory = srq->context->session->MapRing(place);
  if (!memory.IsValid()) return false;
  srq->queue.ring = WorkQueueProducer(memory, place.entries, place.stride_bytes, max_wr,
                                      srq->queue.entries.memory);
  srq->queue.doorbell.number = place.doorbell;
  return true;
}

// Before an allocator is asked for it; the NIC judges the rest.
int CheckSize(const Context* context, const ibv_srq_attr& attr) {
  return attr.max_wr == 0 || attr.max_wr > context->attr.max_srq_wr ||
                 attr.max_sge > context->attr.max_srq_sge
             ? EINVAL
             : 0;
}

int AllocateEntries(ibv_pd* pd, uint32_t max_wr, uint32_t max_sge, EntryBuffer* out) {
  return verbs::AllocateEntries(
      pd, uint64_t{WorkQueueEntries(max_wr)} * RecvEntryBytes(max_sge), VERBENADV_RES_TYPE_SRQ,
      out);
}

int ExecuteCreate(Srq* srq, ibv_pd* pd, ibv_srq_attr* attr) {
  shm::CreateSrqRequest request = {};
  request.pd = pd->handle;
  request.max_wr = attr->max_wr;
  request.max_sge = attr->max_sge;
  request.srq_limit = 0;  // attr's is irrelevant to creation, and often what the stack held
  request.cookie = srq->cookie;
  request.memory = AddressOf(srq->queue.entries);
  shm::CreateSrqReply reply = {};
  int error = Execute(srq->context, shm::CommandOp::kCreateSrq, request, &reply);
  if (error != 0) return error;
  if (!MapQueue(srq, reply.place, reply.max_wr)) {
    ExecuteDestroy(srq->context, shm::CommandOp::kDestroySrq, reply.srq);
    return ENOMEM;
  }
  srq->queue.max_sge = reply.max_sge;
  srq->srqn = reply.srqn;
  srq->base.handle = reply.srq;
  attr->max_wr = reply.max_wr;
  attr->max_sge = reply.max_sge;
  return 0;
}

}  // namespace

// max_wr and max_sge are written back.  Errors: EINVAL: beyond the device's limits; ENOMEM.
VERBENA_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  Context* context = ToContext(pd->context);
  auto* srq = new (std::nothrow) Srq();
  if (srq == nullptr) return Fail<ibv_srq>(ENOMEM);
  srq->context = context;
  {
    MutexGuard guard(context->table_mutex);
    srq->cookie = context->table.Add(ObjectKind::kSrq, srq);
  }
  int error = srq->cookie != 0 ? CheckSize(context, attr->attr) : ENOMEM;
  if (error == 0) {
    error = AllocateEntries(pd, attr->attr.max_wr, attr->attr.max_sge, &srq->queue.entries);
  }
  if (error == 0) error = ExecuteCreate(srq, pd, &attr->attr);
  if (error != 0) {
    FreeEntries(&srq->queue.entries);
    MutexGuard guard(context->table_mutex);
    context->table.Remove(srq->cookie);
    delete srq;
    return Fail<ibv_srq>(error);
  }
  srq->has_own_entries = srq->queue.entries.memory != nullptr;
  srq->base.context = pd->context;
  srq->base.srq_context = attr->srq_context;
  srq->base.pd = pd;
  Use(pd);
  if (HasThreadDomain(pd)) srq->queue.lock.Elide();
  pthread_mutex_init(&srq->base.mutex, nullptr);
  pthread_cond_init(&srq->base.cond, nullptr);
  return &srq->base;
}

// Errors: EOPNOTSUPP: any type but basic; EINVAL: no PD.
ibv_srq* CreateSrqEx(ibv_context*, ibv_srq_init_attr_ex* attr) {
  constexpr uint32_t kKnownMask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  if ((attr->comp_mask & ~kKnownMask) != 0) return Fail<ibv_srq>(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attr->srq_type != IBV_SRQT_BASIC) {
    return Fail<ibv_srq>(EOPNOTSUPP);
  }
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0) return Fail<ibv_srq>(EINVAL);
  ibv_srq_init_attr basic = {attr->srq_context, attr->attr};
  ibv_srq* srq = ibv_create_srq(attr->pd, &basic);
  if (srq != nullptr) attr->attr = basic.attr;
  return srq;
}

// Exchanges the SRQ's entries for `entries` if its size changed. Requires the SRQ's lock.
static int Modify(Srq* srq, ibv_srq_attr* attr, int attr_mask, EntryBuffer* entries) {
  PostQueue& queue = srq->queue;
  shm::ModifySrqRequest request = {srq->base.handle, static_cast<uint32_t>(attr_mask), attr->max_wr,
                                   attr->srq_limit, AddressOf(*entries)};
  shm::ModifySrqReply reply = {};
  // The NIC fetches from there as soon as it knows of it.
  if (entries->memory != nullptr) {
    queue.ring.CopyTo(entries->memory, WorkQueueEntries(attr->max_wr));
  }
  int error = Execute(srq->context, shm::CommandOp::kModifySrq, request, &reply);
  if (error != 0) return error;
  if (reply.place.bytes == 0) return 0;
  RingMemory memory = srq->context->session->MapRing(reply.place);
  if (!memory.IsValid()) return ENOMEM;
  queue.ring.MoveTo(memory, reply.place.entries, reply.max_wr, entries->memory);
  attr->max_wr = reply.max_wr;
  std::swap(queue.entries, *entries);
  return 0;
}

// IBV_SRQ_MAX_WR resizes, IBV_SRQ_LIMIT arms the limit event.  Errors: EINVAL: beyond the limits,
// or fewer than wait in the queue; ENOMEM.
VERBENA_EXPORT int ibv_modify_srq(ibv_srq* base, ibv_srq_attr* attr, int attr_mask) {
  Srq* srq = ToSrq(base);
  EntryBuffer entries = {};
  if (srq->has_own_entries && (attr_mask & IBV_SRQ_MAX_WR) != 0) {
    ibv_srq_attr wanted = {attr->max_wr, srq->queue.max_sge, 0};
    int error = CheckSize(srq->context, wanted);
    if (error == 0) error = AllocateEntries(base->pd, wanted.max_wr, wanted.max_sge, &entries);
    if (error == 0 && entries.memory == nullptr) error = EOPNOTSUPP;
    if (error != 0) return error;
  }
  int error;
  {
    // Nobody may post into memory that is being replaced.
    SpinGuard guard(srq->queue.lock);
    error = Modify(srq, attr, attr_mask, &entries);
  }
  FreeEntries(&entries);  // those that are not, or no more, in use
  return error;
}

VERBENA_EXPORT int ibv_query_srq(ibv_srq* base, ibv_srq_attr* attr) {
  shm::QuerySrqReply reply = {};
  int error = Execute(ToContext(base->context), shm::CommandOp::kQuerySrq,
                      shm::HandleRequest{base->handle, 0}, &reply);
  if (error != 0) return error;
  *attr = {reply.max_wr, reply.max_sge, reply.srq_limit};
  return 0;
}

// Waits until all events the program got were acknowledged.  Errors: EBUSY while a QP uses it.
VERBENA_EXPORT int ibv_destroy_srq(ibv_srq* base) {
  Srq* srq = ToSrq(base);
  Context* context = srq->context;
  int error = ExecuteDestroy(context, shm::CommandOp::kDestroySrq, base->handle);
  if (error != 0) return error;
  uint32_t events;
  {
    MutexGuard guard(context->table_mutex);
    context->table.Remove(srq->cookie);
    events = srq->events_reported;
  }
  DropStaleEvents(context);
  AwaitAcks(&base->mutex, &base->cond, &base->events_completed, events);
  FreeEntries(&srq->queue.entries);
  Unuse(base->pd);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete srq;
  return 0;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_create_srq);
VERBENA_VERSION_1_1(ibv_modify_srq);
VERBENA_VERSION_1_1(ibv_query_srq);
VERBENA_VERSION_1_1(ibv_destroy_srq);

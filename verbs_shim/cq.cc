// Completion queues: creation, polling, arming, and what happens to them when the daemon dies.
#include <string.h>
#include <time.h>

#include <new>
#include <utility>

#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"
#include "verbs_shim/verbena/verbenadv.h"

namespace verbena::verbs {
namespace {

int64_t CoarseNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What is outstanding in a queue when the daemon dies is flushed by the shim. False: nothing left.
// Requires the queue's lock.
bool NextFlushed(PostQueue* queue, uint64_t* wr_id) {
  if (!queue->flushing) {
    queue->flushing = true;
    queue->flush_index = queue->ring.ConsumerIndex();
  }
  // As published: a thread domain's queue may be posted to at this very moment.
  if (queue->flush_index == queue->ring.PublishedIndex()) return false;
  // Both kinds of WQE begin with the wr_id.
  static_assert(offsetof(shm::SendWqe, wr_id) == 0 && offsetof(shm::RecvWqe, wr_id) == 0);
  memcpy(wr_id, queue->ring.Entry(queue->flush_index), sizeof(*wr_id));
  ++queue->flush_index;
  return true;
}

enum class Flush { kNothingLeft, kInUse, kMade };

Flush TakeFlush(PostQueue* queue, const Qp* qp, bool is_send, shm::Cqe* out) {
  // A queue in use is left for a later poll: the user may be this thread, inside ibv_wr_start.
  if (!queue->lock.TryLock()) return Flush::kInUse;
  uint64_t wr_id;
  bool found = NextFlushed(queue, &wr_id);
  queue->lock.Unlock();
  if (!found) return Flush::kNothingLeft;
  out->wr_id = wr_id;
  out->timestamp_ns = 0;
  out->byte_len = 0;
  out->imm_or_rkey = 0;
  out->qpn = qp->ex.ex.qp_base.qp_num;
  out->src_qpn = 0;
  out->vendor_err = static_cast<uint32_t>(shm::VendorErr::kDeviceGone);
  out->wc_flags = 0;
  out->status = static_cast<uint8_t>(WcStatus::kWrFlushErr);
  out->opcode = static_cast<uint8_t>(is_send ? shm::WcOpcode::kSend : shm::WcOpcode::kRecv);
  out->is_send = is_send ? 1 : 0;
  return Flush::kMade;
}

// The next flush completion for any QP of this CQ. An SRQ's requests belong to no QP and are not
// reported, as on hardware.
Flush MakeFlush(Cq* cq) {
  Flush outcome = Flush::kNothingLeft;
  auto take = [&](PostQueue* queue, const Qp* qp, bool is_send) {
    const Flush taken = TakeFlush(queue, qp, is_send, &cq->flush);
    if (taken != Flush::kNothingLeft) outcome = taken;
    return taken == Flush::kMade;
  };
  SpinGuard guard(cq->context->qps_lock);
  for (Qp* qp = cq->context->qps; qp != nullptr; qp = qp->next) {
    ibv_qp* base = qp->base();
    if (base->send_cq == &cq->base && take(&qp->sq, qp, true)) break;
    if (qp->has_rq && base->recv_cq == &cq->base && take(&qp->rq, qp, false)) break;
  }
  return outcome;
}

void ToWc(const shm::Cqe& cqe, ibv_wc* wc) {
  wc->wr_id = cqe.wr_id;
  wc->status = static_cast<ibv_wc_status>(cqe.status);
  wc->opcode = static_cast<ibv_wc_opcode>(cqe.opcode);
  wc->vendor_err = cqe.vendor_err;
  wc->byte_len = cqe.byte_len;
  wc->imm_data = cqe.imm_or_rkey;
  wc->qp_num = cqe.qpn;
  wc->src_qp = cqe.src_qpn;
  wc->wc_flags = cqe.wc_flags;
  wc->pkey_index = cqe.pkey_index;
  wc->slid = 0;
  wc->sl = cqe.sl;
  wc->dlid_path_bits = 0;
}

int AllocateEntries(Cq* cq, uint32_t wanted_cqe, EntryBuffer* out) {
  return verbs::AllocateEntries(cq->parent_domain,
                                uint64_t{CqEntries(wanted_cqe)} * sizeof(shm::Cqe),
                                VERBENADV_RES_TYPE_CQ, out);
}

int ExecuteCreate(Cq* cq, const ibv_cq_init_attr_ex& attr) {
  shm::CreateCqRequest request = {};
  request.channel = attr.channel != nullptr ? ToChannel(attr.channel)->handle : 0;
  request.comp_vector = attr.comp_vector;
  request.entries = attr.cqe;
  request.flags = (attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? attr.flags : 0;
  if ((attr.wc_flags & kWcFlagsTimestamps) != 0) request.flags |= shm::kCqTimestamps;
  request.cookie = cq->cookie;
  request.memory = AddressOf(cq->entries);
  shm::CreateCqReply reply = {};
  int error = Execute(cq->context, shm::CommandOp::kCreateCq, request, &reply);
  if (error != 0) return error;
  RingMemory memory = cq->context->session->MapRing(reply.place);
  if (!memory.IsValid()) {
    ExecuteDestroy(cq->context, shm::CommandOp::kDestroyCq, reply.cq);
    return ENOMEM;
  }
  cq->ring = CqConsumer(memory, reply.place.entries, cq->entries.memory);
  cq->base.handle = reply.cq;
  cq->base.cqe = static_cast<int>(reply.place.entries);
  return 0;
}

// Whether all posted sends that complete into this CQ have done so.
bool SendsAreDone(Cq* cq) {
  SpinGuard guard(cq->context->qps_lock);
  for (Qp* qp = cq->context->qps; qp != nullptr; qp = qp->next) {
    if (qp->base()->send_cq != &cq->base) continue;
    if (qp->sq.ring.ConsumerIndex() != qp->sq.ring.PublishedIndex()) return false;
  }
  return true;
}

// On hardware a command takes longer than the work posted before it, and programs rely on it: a
// CQ is found too full to shrink by sends posted just before. Work that waits for its peer is not
// waited for.
void AwaitSends(Cq* cq) {
  constexpr int64_t kPatienceNs = 20'000'000;
  int64_t begin_ns = CoarseNowNs();
  while (!SendsAreDone(cq) && CoarseNowNs() - begin_ns < kPatienceNs) sched_yield();
}

void CountInChannel(ibv_comp_channel* channel, int change) {
  if (channel == nullptr) return;
  MutexGuard guard(channel->context->mutex);
  channel->refcnt += change;
}

}  // namespace

// nullptr with errno: EINVAL: entries or completion vector out of range; EBADF: the channel is of
// another context; ENOMEM.
Cq* CreateCq(Context* context, const ibv_cq_init_attr_ex& attr) {
  if (attr.cqe == 0 || attr.cqe > context->attr.max_cqe ||
      attr.comp_vector >= context->attr.num_comp_vectors) {
    return Fail<Cq>(EINVAL);
  }
  // As the kernel, to which a channel is an fd of its context.
  if (attr.channel != nullptr && attr.channel->context != Base(context)) return Fail<Cq>(EBADF);
  auto* cq = new (std::nothrow) Cq();
  if (cq == nullptr) return Fail<Cq>(ENOMEM);
  cq->context = context;
  {
    MutexGuard guard(context->table_mutex);
    cq->cookie = context->table.Add(ObjectKind::kCq, cq);
  }
  cq->parent_domain =
      (attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0 ? attr.parent_domain : nullptr;
  int error = cq->cookie != 0 ? AllocateEntries(cq, attr.cqe, &cq->entries) : ENOMEM;
  if (error == 0) error = ExecuteCreate(cq, attr);
  if (error != 0) {
    FreeEntries(&cq->entries);
    MutexGuard guard(context->table_mutex);
    context->table.Remove(cq->cookie);
    delete cq;
    return Fail<Cq>(error);
  }
  cq->has_own_entries = cq->entries.memory != nullptr;
  Use(cq->parent_domain);
  const bool is_single_threaded = (attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 &&
                                  (attr.flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
  if (is_single_threaded || HasThreadDomain(cq->parent_domain)) cq->lock.Elide();
  cq->base.context = Base(context);
  cq->base.channel = attr.channel;
  cq->base.cq_context = attr.cq_context;
  pthread_mutex_init(&cq->base.mutex, nullptr);
  pthread_cond_init(&cq->base.cond, nullptr);
  CountInChannel(attr.channel, 1);
  return cq;
}

VERBENA_EXPORT ibv_cq* ibv_create_cq(ibv_context* base, int cqe, void* cq_context,
                                     ibv_comp_channel* channel, int comp_vector) {
  if (cqe <= 0 || comp_vector < 0) return Fail<ibv_cq>(EINVAL);
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = static_cast<uint32_t>(cqe);
  attr.cq_context = cq_context;
  attr.channel = channel;
  attr.comp_vector = static_cast<uint32_t>(comp_vector);
  Cq* cq = CreateCq(ToContext(base), attr);
  return cq != nullptr ? &cq->base : nullptr;
}

// Exchanges the CQ's entries for `entries` if all went well. Requires the CQ's lock.
static int Resize(Cq* cq, uint32_t cqe, EntryBuffer* entries) {
  shm::ResizeCqRequest request = {cq->base.handle, cqe, AddressOf(*entries)};
  shm::CreateCqReply reply = {};
  int error = Execute(cq->context, shm::CommandOp::kResizeCq, request, &reply);
  if (error != 0) return error;
  RingMemory memory = cq->context->session->MapRing(reply.place);
  if (!memory.IsValid()) return ENOMEM;
  cq->ring.MoveTo(memory, reply.place.entries, entries->memory);
  cq->base.cqe = static_cast<int>(reply.place.entries);
  std::swap(cq->entries, *entries);
  return 0;
}

// Errors: EINVAL: more than the device allows, or fewer than wait in the CQ; ENOMEM; EOPNOTSUPP:
// the CQ is in memory of the program, and its allocator gives no more.
VERBENA_EXPORT int ibv_resize_cq(ibv_cq* base, int cqe) {
  Cq* cq = ToCq(base);
  if (cqe <= 0 || static_cast<uint32_t>(cqe) > cq->context->attr.max_cqe) return EINVAL;
  cq->lock.Lock();
  const bool shrinks = cqe < base->cqe;
  cq->lock.Unlock();
  if (shrinks) AwaitSends(cq);
  EntryBuffer entries = {};
  if (cq->has_own_entries) {
    int error = AllocateEntries(cq, static_cast<uint32_t>(cqe), &entries);
    if (error == 0 && entries.memory == nullptr) error = EOPNOTSUPP;
    if (error != 0) return error;
  }
  int error;
  {
    SpinGuard guard(cq->lock);
    error = Resize(cq, static_cast<uint32_t>(cqe), &entries);
  }
  FreeEntries(&entries);  // those that are not, or no more, in use
  return error;
}

// Waits until all events the program got were acknowledged.  Errors: EBUSY while a QP uses it.
VERBENA_EXPORT int ibv_destroy_cq(ibv_cq* base) {
  Cq* cq = ToCq(base);
  Context* context = cq->context;
  int error = ExecuteDestroy(context, shm::CommandOp::kDestroyCq, base->handle);
  if (error != 0) return error;
  uint32_t comp_events, async_events;
  {
    MutexGuard guard(context->table_mutex);
    context->table.Remove(cq->cookie);
    comp_events = cq->comp_events_reported;
    async_events = cq->async_events_reported;
  }
  if (base->channel != nullptr) DropStaleEvents(context, ToChannel(base->channel));
  DropStaleEvents(context);
  AwaitAcks(&base->mutex, &base->cond, &base->comp_events_completed, comp_events);
  AwaitAcks(&base->mutex, &base->cond, &base->async_events_completed, async_events);
  CountInChannel(base->channel, -1);
  FreeEntries(&cq->entries);
  Unuse(cq->parent_domain);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete cq;
  return 0;
}

const shm::Cqe* NextCompletion(Cq* cq) {
  cq->current_is_flush = false;
  const shm::Cqe* cqe = cq->ring.Peek();
  if (cqe != nullptr) return cqe;
  const client::Session* session = cq->context->session;
  if (__builtin_expect(session->KnownDead(), 0)) {
    const Flush flush = MakeFlush(cq);
    cq->current_is_flush = flush == Flush::kMade;
    cq->is_at_end = flush == Flush::kNothingLeft;
    if (cq->current_is_flush) return &cq->flush;
  }
  return nullptr;
}

void ConsumeCompletion(Cq* cq) {
  if (!cq->current_is_flush) cq->ring.Consume();
}

// Up to num_entries completions; fewer mean the CQ is empty. -1: a forked child's copy; or the
// daemon is gone, all that was posted is told, and nothing will ever come: who waits for a receive
// of an SRQ would wait for ever.
int PollCq(ibv_cq* base, int num_entries, ibv_wc* wc) {
  Cq* cq = ToCq(base);
  if (__builtin_expect(cq->context->session->IsForkedCopy(), 0)) return -1;
  int polled = 0;
  cq->lock.Lock();
  for (; polled < num_entries; ++polled) {
    const shm::Cqe* cqe = NextCompletion(cq);
    if (cqe == nullptr) break;
    ToWc(*cqe, &wc[polled]);
    ConsumeCompletion(cq);
  }
  if (polled > 0) {
    cq->ring.Publish();
    cq->empty_polls.Reset();
  }
  const bool is_at_end = cq->is_at_end;
  cq->lock.Unlock();
  if (polled != 0) return polled;
  if (is_at_end && num_entries > 0) return -1;
  cq->empty_polls.OnEmpty(cq->context->session);
  return 0;
}

int ReqNotifyCq(ibv_cq* base, int solicited_only) {
  Cq* cq = ToCq(base);
  if (__builtin_expect(cq->context->session->IsForkedCopy(), 0)) return EIO;
  SpinGuard guard(cq->lock);
  cq->ring.Arm(solicited_only != 0);
  return 0;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_create_cq);
VERBENA_VERSION_1_1(ibv_resize_cq);
VERBENA_VERSION_1_1(ibv_destroy_cq);

// Shared receive queues.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

// An SRQ needs no doorbell: nothing starts because a receive was posted to it.
shm::QueuePlace PlaceOf(const Srq& srq) {
  shm::QueuePlace place{};
  place.arena = srq.queue.arena;
  place.stride_bytes = srq.ring.stride_bytes();
  place.offset = srq.queue.offset;
  place.bytes = srq.queue.bytes;
  place.entries = srq.ring.entries();
  return place;
}

}  // namespace

int DeviceCore::CreateSrq(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::CreateSrqRequest>();
  Pd* pd = session.pds.Find(request.pd);
  if (pd == nullptr) return EINVAL;
  if (request.max_wr == 0 || request.max_wr > nic.limits().max_srq_wr) return EINVAL;
  if (request.max_sge > nic.limits().max_srq_sge) return EINVAL;
  if (request.srq_limit > request.max_wr) return EINVAL;
  if (nic.counts.srqs >= nic.limits().max_srq || session.srqs.IsFull()) return ENOMEM;

  auto owned = std::make_unique<Srq>();
  Srq* srq = owned.get();
  uint32_t entries = std::bit_ceil(request.max_wr);
  srq->max_sge = std::max(request.max_sge, 1u);
  uint32_t stride_bytes = shm::RecvWqeStride(srq->max_sge);
  int error = session.services->AllocateQueue(WorkQueueBytes(entries, stride_bytes), &srq->queue);
  if (error != 0) return error;
  srq->session = &session;
  srq->pd = pd;
  srq->cookie = request.cookie;
  srq->ring = WorkQueueConsumer(srq->queue.memory, entries, stride_bytes);
  srq->max_wr = entries;
  srq->limit = request.srq_limit;
  srq->handle = session.srqs.Insert(std::move(owned));
  srq->srqn = next_srqn_++ & 0xff'ffff;
  ++pd->users;
  ++nic.counts.srqs;
  command.Reply(
      shm::CreateSrqReply{srq->handle, srq->srqn, srq->max_wr, srq->max_sge, PlaceOf(*srq)});
  return 0;
}

// Both attributes are checked before either is set.
int DeviceCore::ModifySrq(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::ModifySrqRequest>();
  Srq* srq = session.srqs.Find(request.srq);
  if (srq == nullptr || srq->is_in_error) return EINVAL;
  if ((request.mask & ~(shm::kSrqMaxWr | shm::kSrqLimit)) != 0) return EINVAL;
  bool resizes = (request.mask & shm::kSrqMaxWr) != 0;
  bool arms = (request.mask & shm::kSrqLimit) != 0;
  if (resizes && (request.max_wr == 0 || request.max_wr > session.nic->limits().max_srq_wr)) {
    return EINVAL;
  }
  if (arms && request.srq_limit > (resizes ? request.max_wr : srq->max_wr)) return EINVAL;
  shm::ModifySrqReply reply{};
  if (resizes) {
    const uint32_t limit = arms ? request.srq_limit : srq->limit;
    if (int error = ResizeSrq(*srq, request.max_wr, limit, &reply); error != 0) return error;
  }
  if (arms) srq->limit = request.srq_limit;
  reply.max_wr = srq->max_wr;
  command.Reply(reply);
  return 0;
}

// `limit`: the one that holds with the new size. The client holds its SRQ's lock meanwhile, and
// goes on with the new memory from the same index.
int DeviceCore::ResizeSrq(Srq& srq, uint32_t max_wr, uint32_t limit, shm::ModifySrqReply* reply) {
  Session& session = *srq.session;
  uint32_t entries = std::bit_ceil(max_wr);
  if (entries == srq.ring.entries()) return 0;
  if (limit > max_wr) return EINVAL;
  uint32_t stride_bytes = srq.ring.stride_bytes();
  QueueMemory queue;
  int error = session.services->AllocateQueue(WorkQueueBytes(entries, stride_bytes), &queue);
  if (error != 0) return error;
  WorkQueueConsumer ring(queue.memory, entries, stride_bytes);
  if (!srq.ring.MoveTo(ring)) {
    session.services->FreeQueue(queue);
    return EINVAL;
  }
  session.services->FreeQueue(srq.queue);
  srq.queue = queue;
  srq.ring = ring;
  srq.max_wr = entries;
  reply->place = PlaceOf(srq);
  return 0;
}

int DeviceCore::QuerySrq(Command& command) {
  const Srq* srq = command.session->srqs.Find(command.Request<shm::HandleRequest>().handle);
  if (srq == nullptr) return EINVAL;
  command.Reply(shm::QuerySrqReply{srq->max_wr, srq->max_sge, srq->limit, 0});
  return 0;
}

int DeviceCore::DestroySrq(Command& command) {
  Srq* srq = command.session->srqs.Find(command.Request<shm::HandleRequest>().handle);
  if (srq == nullptr) return EINVAL;
  if (srq->users != 0) return EBUSY;
  RemoveSrq(*srq);
  // Receives taken from it may still be written to.
  FinishAfterFence(command, false, 0);
  return 0;
}

void DeviceCore::RemoveSrq(Srq& srq) {
  Session& session = *srq.session;
  session.services->FreeQueue(srq.queue);
  --session.nic->counts.srqs;
  --srq.pd->users;
  session.srqs.Remove(srq.handle);
}

// Spec: IBTA 10.2.9.2 (SRQ limit): the event comes once, when the number falls below the limit.
void DeviceCore::OnSrqFetched(Srq& srq) {
  if (srq.limit == 0 || srq.ring.Waiting() >= srq.limit) return;
  srq.limit = 0;
  PushAsyncEvent(*srq.session, EventSource::kSrq, EventType::kSrqLimitReached, srq.handle,
                 srq.cookie);
}

void DeviceCore::OnSrqLied(Srq& srq) {
  if (srq.is_in_error) return;
  srq.is_in_error = true;
  PushAsyncEvent(*srq.session, EventSource::kSrq, EventType::kSrqErr, srq.handle, srq.cookie);
}

}  // namespace verbena::softnic

// Shared receive queues.
#include <algorithm>
#include <cerrno>
#include <utility>

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
  if ((request.flags & ~(shm::kSrqMarked | shm::kSrqTruncates)) != 0) return EINVAL;
  const bool is_marked = (request.flags & shm::kSrqMarked) != 0;
  // A mark takes the place of an element; and marked receives are the NIC's own to keep.
  if (is_marked && (request.max_sge == 0 || request.srq_limit != 0 || request.memory != 0)) {
    return EINVAL;
  }
  if (nic.counts.srqs >= nic.limits().max_srq || session.srqs.IsFull()) return ENOMEM;

  auto owned = std::make_unique<Srq>();
  Srq* srq = owned.get();
  uint32_t entries = WorkQueueEntries(request.max_wr);
  srq->max_sge = std::max(request.max_sge, 1u);
  int error = AllocateWorkQueue(session, entries, RecvEntryBytes(srq->max_sge), request.memory,
                                &srq->queue, &srq->ring, &srq->entries);
  if (error != 0) return error;
  srq->session = &session;
  srq->pd = pd;
  srq->cookie = request.cookie;
  srq->max_wr = entries;
  srq->limit = request.srq_limit;
  srq->truncates = (request.flags & shm::kSrqTruncates) != 0;
  if (is_marked) srq->marked = std::make_unique<MarkedReceives>();
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
  if (srq == nullptr || srq->is_in_error || srq->marked != nullptr) return EINVAL;
  if ((request.mask & ~(shm::kSrqMaxWr | shm::kSrqLimit)) != 0) return EINVAL;
  bool resizes = (request.mask & shm::kSrqMaxWr) != 0;
  bool arms = (request.mask & shm::kSrqLimit) != 0;
  if (resizes && (request.max_wr == 0 || request.max_wr > session.nic->limits().max_srq_wr)) {
    return EINVAL;
  }
  if (arms && request.srq_limit > (resizes ? request.max_wr : srq->max_wr)) return EINVAL;
  shm::ModifySrqReply reply{};
  Retired retired;
  if (resizes) {
    const uint32_t limit = arms ? request.srq_limit : srq->limit;
    if (int error = ResizeSrq(*srq, request, limit, &reply, &retired); error != 0) return error;
  }
  if (arms) srq->limit = request.srq_limit;
  reply.max_wr = srq->max_wr;
  command.Reply(reply);
  if (!retired.queues.empty()) FinishAfterFence(command, std::move(retired));
  return 0;
}

// `limit`: the one that holds with the new size. The client holds its SRQ's lock meanwhile, and
// goes on with the new memory from the same index. What is being fetched from the old one is
// fetched again from there, where the client has put it.
int DeviceCore::ResizeSrq(Srq& srq, const shm::ModifySrqRequest& request, uint32_t limit,
                          shm::ModifySrqReply* reply, Retired* retired) {
  Session& session = *srq.session;
  uint32_t entries = WorkQueueEntries(request.max_wr);
  if (entries == srq.ring.entries()) return 0;
  if (limit > request.max_wr || srq.entries.IsUsed() != (request.memory != 0)) return EINVAL;
  QueueMemory queue;
  WorkQueueConsumer ring;
  EntryMemory memory;
  int error = AllocateWorkQueue(session, entries, srq.ring.stride_bytes(), request.memory, &queue,
                                &ring, &memory);
  if (error != 0) return error;
  if (!srq.ring.MoveTo(ring)) {
    Discard(session, queue, memory);
    return EINVAL;
  }
  Retire(session, srq.queue, srq.entries, retired);
  srq.queue = queue;
  srq.ring = ring;
  srq.entries = memory;
  EndAwaiting(srq);  // the fetch is forgotten
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
  if (srq == nullptr) return ENOENT;
  if (srq->users != 0) return EBUSY;
  Retired retired;
  RemoveSrq(*srq, &retired);
  // Receives taken from it may still be written to.
  FinishAfterFence(command, std::move(retired));
  return 0;
}

void DeviceCore::RemoveSrq(Srq& srq, Retired* retired) {
  Session& session = *srq.session;
  Retire(session, srq.queue, srq.entries, retired);
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

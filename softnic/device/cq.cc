// Completion channels and completion queues.
#include <atomic>
#include <cerrno>
#include <utility>

#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

// Bits of CreateCqRequest.flags; values equal enum ibv_create_cq_attr_flags.
constexpr uint32_t kSingleThreaded = 1u << 0;
constexpr uint32_t kIgnoreOverrun = 1u << 1;

// CQEs are held after a turn of their session with so many WRITEs that are told in one step. A
// client to whom few are told waits for each of them.
constexpr uint32_t kManyWrites = 16;

shm::QueuePlace PlaceOf(const QueueMemory& queue, uint32_t entries) {
  shm::QueuePlace place{};
  place.arena = queue.arena;
  place.stride_bytes = sizeof(shm::Cqe);
  place.offset = queue.offset;
  place.bytes = queue.bytes;
  place.entries = entries;
  return place;
}

}  // namespace

int DeviceCore::CreateChannel(Command& command) {
  Session& session = *command.session;
  if (session.channels.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Channel>();
  Channel* channel = owned.get();
  channel->session = &session;
  channel->handle = session.channels.Insert(std::move(owned));
  int error = session.services->OpenChannel(channel->handle);
  if (error != 0) {
    session.channels.Remove(channel->handle);
    return error;
  }
  command.Reply(shm::HandleReply{channel->handle, 0});
  return 0;
}

int DeviceCore::DestroyChannel(Command& command) {
  Channel* channel = command.session->channels.Find(command.Request<shm::HandleRequest>().handle);
  if (channel == nullptr) return ENOENT;
  if (channel->users != 0) return EBUSY;
  RemoveChannel(*channel);
  return 0;
}

void DeviceCore::RemoveChannel(Channel& channel) {
  Session& session = *channel.session;
  channel.waiting_hook.Unlink();
  session.services->CloseChannel(channel.handle);
  session.channels.Remove(channel.handle);
}

// On an error nothing is kept.
int DeviceCore::AllocateCq(const Session& session, uint32_t entries, shm::EntryAddress addr,
                           QueueMemory* queue, EntryMemory* memory) {
  if (int error = session.services->AllocateQueue(CqBytes(entries), queue); error != 0) {
    return error;
  }
  int error = UseEntries(session, addr, uint64_t{entries} * sizeof(shm::Cqe), memory);
  if (error != 0) session.services->FreeQueue(*queue);
  return error;
}

int DeviceCore::CreateCq(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::CreateCqRequest>();
  if (request.entries == 0 || request.entries > nic.limits().max_cqe) return EINVAL;
  if (request.comp_vector >= nic.limits().comp_vectors) return EINVAL;
  if ((request.flags & ~(kSingleThreaded | kIgnoreOverrun | shm::kCqTimestamps)) != 0)
    return EINVAL;
  Channel* channel = nullptr;
  if (request.channel != 0) {
    channel = session.channels.Find(request.channel);
    if (channel == nullptr) return EINVAL;
  }
  if (nic.counts.cqs >= nic.limits().max_cq || session.cqs.IsFull()) return ENOMEM;

  auto owned = std::make_unique<Cq>();
  Cq* cq = owned.get();
  uint32_t entries = CqEntries(request.entries);
  int error = AllocateCq(session, entries, request.memory, &cq->queue, &cq->entries);
  if (error != 0) return error;
  cq->session = &session;
  cq->channel = channel;
  cq->comp_vector = request.comp_vector;
  cq->cookie = request.cookie;
  cq->ring = CqProducer(cq->queue.memory, entries);
  cq->ignores_overrun = (request.flags & kIgnoreOverrun) != 0;
  cq->has_timestamps = (request.flags & shm::kCqTimestamps) != 0 && config_.completion_clock;
  cq->handle = session.cqs.Insert(std::move(owned));
  if (channel != nullptr) ++channel->users;
  ++nic.counts.cqs;
  command.Reply(shm::CreateCqReply{cq->handle, 0, PlaceOf(cq->queue, entries)});
  return 0;
}

// The client holds its CQ's lock meanwhile: what it has not polled moves, and it goes on with the
// new memory from the same index.
int DeviceCore::ResizeCq(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::ResizeCqRequest>();
  Cq* cq = session.cqs.Find(request.cq);
  if (cq == nullptr || cq->is_in_error) return EINVAL;
  if (request.entries == 0 || request.entries > session.nic->limits().max_cqe) return EINVAL;
  if (cq->entries.IsUsed() != (request.memory != 0)) return EINVAL;
  uint32_t entries = CqEntries(request.entries);
  QueueMemory queue;
  EntryMemory memory;
  int error = AllocateCq(session, entries, request.memory, &queue, &memory);
  if (error != 0) return error;
  CqProducer ring(queue.memory, entries);
  if (!cq->ring.MoveTo(ring)) {
    Discard(session, queue, memory);
    return EINVAL;
  }
  Retired retired;
  Retire(session, cq->queue, cq->entries, &retired);
  cq->queue = queue;
  cq->ring = ring;
  cq->entries = memory;
  command.Reply(shm::CreateCqReply{cq->handle, 0, PlaceOf(queue, entries)});
  if (!memory.IsUsed()) return 0;
  // All that is not polled is written anew, before the command ends; what a write under way would
  // have told is told with it.
  cq->written = ring.oldest_index();
  cq->is_unwritten_solicited = true;
  WriteCqes(*cq);
  FinishAfterFence(command, std::move(retired));
  return 0;
}

int DeviceCore::DestroyCq(Command& command) {
  Cq* cq = command.session->cqs.Find(command.Request<shm::HandleRequest>().handle);
  if (cq == nullptr) return ENOENT;
  if (cq->users != 0) return EBUSY;
  Retired retired;
  RemoveCq(*cq, &retired);
  if (!retired.queues.empty()) FinishAfterFence(command, std::move(retired));
  return 0;
}

void DeviceCore::RemoveCq(Cq& cq, Retired* retired) {
  Session& session = *cq.session;
  VERBENA_CHECK(!cq.is_dirty && !cq.is_unwritten);
  if (cq.channel != nullptr) --cq.channel->users;
  event_timers_.Remove(cq.event_timer);
  Retire(session, cq.queue, cq.entries, retired);
  --session.nic->counts.cqs;
  // Its undelivered event, if any, is discarded when its handle is found stale.
  session.cqs.Remove(cq.handle);
}

void DeviceCore::PushCompletion(DeviceQp& qp, bool is_direct_write) {
  transport::Completion& completion = blank_completion_;
  Cq& cq = completion.is_send ? *qp.send_cq : *qp.recv_cq;
  if (!completion.is_send && completion.recv_ticket != 0) FinishReceive(qp, completion);
  shm::Cqe& cqe = completion.cqe;
  const bool is_write = cqe.opcode == static_cast<uint8_t>(shm::WcOpcode::kRecvRdmaWithImm);
  if (!completion.is_send && is_write && qp.config.writes_take_no_receive) {
    cqe.wr_id = qp.place != nullptr ? qp.place->cookie : qp.cookie;
  }
  cqe.qpn = qp.qpn.value;
  cqe.qp_handle = qp.place == nullptr ? qp.handle : 0;
  if (qp.place != nullptr) cqe.src_qpn = qp.source;
  cqe.place = qp.place == nullptr ? 0 : qp.place->handle;
  cqe.is_send = completion.is_send ? 1 : 0;
  PushCqe(cq, completion, is_direct_write ? &qp : nullptr);
  std::construct_at(&completion);  // its atomic word can't be assigned
}

// CQEs that are held are of one CQ.
void DeviceCore::PushCqe(Cq& cq, transport::Completion& completion, DeviceQp* direct_writer) {
  const bool is_held = direct_writer != nullptr && !cq.is_in_error && !cq.entries.IsUsed() &&
                       direct_writer->session->direct_writes_before >= kManyWrites;
  if (!is_held || held_writes_.cq != &cq) PublishHeld();
  if (direct_writer != nullptr && !is_held) direct_writer->ReleaseSend(1);
  if (cq.is_in_error) return;
  shm::Cqe& cqe = completion.cqe;
  const Instant completed = cq.has_timestamps ? config_.completion_clock() : now_;
  cqe.timestamp_ns = static_cast<uint64_t>(completed.ns);
  if (!(is_held ? cq.ring.Hold(cqe) : cq.ring.Push(cqe))) {
    PublishHeld();  // who is told of the overrun finds what was before it
    if (is_held) direct_writer->ReleaseSend(1);
    if (!cq.ignores_overrun) FailCq(cq);
    return;
  }
  if (direct_writer != nullptr) ++direct_writer->session->direct_writes;
  if (is_held) {
    held_writes_.Add(cq, *direct_writer);
    if (held_writes_.count == HeldWrites::kMax) PublishHeld();
  }
  // A failed completion counts as solicited.  Spec: IBTA 11.4.2.2.
  const bool is_solicited =
      completion.solicited || cqe.status != static_cast<uint8_t>(WcStatus::kSuccess);
  if (!cq.entries.IsUsed()) return NoteCqes(cq, 1, is_solicited);
  cq.is_unwritten_solicited |= is_solicited;
  if (!std::exchange(cq.is_unwritten, true)) unwritten_cqs_.push_back(&cq);
}

// WQEs first: who has the last completion finds room in the queue.
void DeviceCore::PublishHeld() {
  Cq* const cq = std::exchange(held_writes_.cq, nullptr);
  if (cq == nullptr) return;
  for (uint32_t i = 0; i < held_writes_.count; ++i) held_writes_.qps[i]->ReleaseSend(1);
  held_writes_.count = 0;
  cq->ring.PublishHeld();
}

void DeviceCore::NoteCqes(Cq& cq, uint32_t count, bool is_solicited) {
  if (cq.channel == nullptr) return;  // nobody to tell
  cq.unannounced += count;
  cq.is_dirty_solicited |= is_solicited;
  if (!std::exchange(cq.is_dirty, true)) dirty_cqs_.push_back(&cq);
}

// Overrun, or memory of the program that can't be written.
// Spec: IBTA 11.6.3.1 (CQ error) and 10.10.2: the CQ is of no more use, nor are its QPs.
void DeviceCore::FailCq(Cq& cq) {
  cq.is_in_error = true;
  PushAsyncEvent(*cq.session, EventSource::kCq, EventType::kCqErr, cq.handle, cq.cookie);
  auto fail = [this](DeviceQp& qp) {
    if (qp.transport->state() == QpState::kReset || qp.transport->state() == QpState::kErr) return;
    qp.transport->Fail(now_, EventType::kQpFatal);
    AfterInput(qp);
  };
  cq.senders.ForEach(fail);
  cq.receivers.ForEach(fail);
}

void DeviceCore::FireArmedCqs() {
  if (dirty_cqs_.empty()) return;
  // Full fence: the CQEs' valid words are written before any arm word is read. Pairs with the fence
  // in CqConsumer::Arm: either we see the client armed, or its next poll sees the CQE.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (Cq* cq : dirty_cqs_) {
    FireIfArmed(*cq);
    cq->is_dirty = cq->is_dirty_solicited = false;
  }
  dirty_cqs_.clear();
}

void DeviceCore::FireIfArmed(Cq& cq) {
  uint32_t arm = cq.ring.LoadArm();
  uint32_t sequence = arm >> shm::kArmSequenceShift;
  if (sequence == cq.fired_arm) {
    cq.unannounced = 0;
    return;
  }
  bool is_wanted =
      (arm & shm::kArmAny) != 0 || ((arm & shm::kArmSolicited) != 0 && cq.is_dirty_solicited);
  if (is_wanted && !HoldsEvent(cq)) Fire(cq, sequence);
}

void DeviceCore::Fire(Cq& cq, uint32_t arm_sequence) {
  cq.fired_arm = arm_sequence;
  cq.unannounced = 0;
  event_timers_.Remove(cq.event_timer);
  PushChannelEvent(cq);
}

}  // namespace verbena::softnic

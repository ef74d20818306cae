// Completion channels and completion queues.
#include <atomic>
#include <bit>
#include <cerrno>

#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

// Bits of CreateCqRequest.flags; values equal enum ibv_create_cq_attr_flags.
constexpr uint32_t kSingleThreaded = 1u << 0;
constexpr uint32_t kIgnoreOverrun = 1u << 1;

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
  if (channel == nullptr) return EINVAL;
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

int DeviceCore::CreateCq(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::CreateCqRequest>();
  if (request.entries == 0 || request.entries > nic.limits().max_cqe) return EINVAL;
  if (request.comp_vector >= nic.limits().comp_vectors) return EINVAL;
  if ((request.flags & ~(kSingleThreaded | kIgnoreOverrun)) != 0) return EINVAL;
  Channel* channel = nullptr;
  if (request.channel != 0) {
    channel = session.channels.Find(request.channel);
    if (channel == nullptr) return EINVAL;
  }
  if (nic.counts.cqs >= nic.limits().max_cq || session.cqs.IsFull()) return ENOMEM;

  auto owned = std::make_unique<Cq>();
  Cq* cq = owned.get();
  uint32_t entries = std::bit_ceil(request.entries);
  if (int error = session.services->AllocateQueue(CqBytes(entries), &cq->queue); error != 0) {
    return error;
  }
  cq->session = &session;
  cq->channel = channel;
  cq->comp_vector = request.comp_vector;
  cq->cookie = request.cookie;
  cq->ring = CqProducer(cq->queue.memory, entries);
  cq->ignores_overrun = (request.flags & kIgnoreOverrun) != 0;
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
  uint32_t entries = std::bit_ceil(request.entries);
  QueueMemory queue;
  if (int error = session.services->AllocateQueue(CqBytes(entries), &queue); error != 0) {
    return error;
  }
  CqProducer ring(queue.memory, entries);
  if (!cq->ring.MoveTo(ring)) {
    session.services->FreeQueue(queue);
    return EINVAL;
  }
  session.services->FreeQueue(cq->queue);
  cq->queue = queue;
  cq->ring = ring;
  command.Reply(shm::CreateCqReply{cq->handle, 0, PlaceOf(queue, entries)});
  return 0;
}

int DeviceCore::DestroyCq(Command& command) {
  Cq* cq = command.session->cqs.Find(command.Request<shm::HandleRequest>().handle);
  if (cq == nullptr) return EINVAL;
  if (cq->users != 0) return EBUSY;
  RemoveCq(*cq);
  return 0;
}

void DeviceCore::RemoveCq(Cq& cq) {
  Session& session = *cq.session;
  VERBENA_CHECK(!cq.is_dirty);
  if (cq.channel != nullptr) --cq.channel->users;
  event_timers_.Remove(cq.event_timer);
  session.services->FreeQueue(cq.queue);
  --session.nic->counts.cqs;
  // Its undelivered event, if any, is discarded when its handle is found stale.
  session.cqs.Remove(cq.handle);
}

void DeviceCore::PushCompletion(DeviceQp& qp, transport::Completion& completion) {
  Cq& cq = completion.is_send ? *qp.send_cq : *qp.recv_cq;
  if (cq.is_in_error) return;
  shm::Cqe& cqe = completion.cqe;
  cqe.timestamp_ns = static_cast<uint64_t>(now_.ns);
  cqe.qpn = qp.qpn.value;
  cqe.qp_handle = qp.handle;
  cqe.is_send = completion.is_send ? 1 : 0;
  if (!cq.ring.Push(cqe)) {
    if (!cq.ignores_overrun) OverrunCq(cq);
    return;
  }
  if (cq.channel == nullptr) return;  // nobody to tell
  ++cq.unannounced;
  // A failed completion counts as solicited.  Spec: IBTA 11.4.2.2.
  bool is_failed = cqe.status != static_cast<uint8_t>(WcStatus::kSuccess);
  if (completion.solicited || is_failed) cq.is_dirty_solicited = true;
  if (cq.is_dirty) return;
  cq.is_dirty = true;
  dirty_cqs_.push_back(&cq);
}

// Spec: IBTA 11.6.3.1 (CQ error) and 10.10.2: the CQ is of no more use, nor are its QPs.
void DeviceCore::OverrunCq(Cq& cq) {
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

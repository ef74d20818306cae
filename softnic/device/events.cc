// Completion and asynchronous events: on their way, or kept here while the client's fd is full.
#include "softnic/device/device_core.h"

namespace verbena::softnic {

namespace {

// What may be found full in one flush: sessions, and channels of each. It is a system call each
// time that everybody waits for; the next flush goes on with others.
constexpr uint32_t kFullSessionsMax = 8;
constexpr uint32_t kFullChannelsMax = 16;

}  // namespace

void DeviceCore::PushChannelEvent(Cq& cq) {
  // One undelivered event tells as much as two: the client has not looked at the CQ since.
  if (cq.has_undelivered_event) return;
  Session& session = *cq.session;
  Channel& channel = *cq.channel;
  if (channel.undelivered.empty() &&
      session.services->SendChannelEvent(channel.handle, {cq.cookie, cq.handle, 0})) {
    return;
  }
  cq.has_undelivered_event = true;
  // Each living CQ waits once at most, so what is beyond their number is stale: a client that reads
  // nothing and creates and destroys CQs does not make the list grow.
  if (channel.undelivered.size() > 2 * static_cast<size_t>(channel.users) + 64) {
    std::erase_if(channel.undelivered,
                  [&](shm::Handle handle) { return session.cqs.Find(handle) == nullptr; });
  }
  channel.undelivered.push_back(cq.handle);
  if (!channel.waiting_hook.IsLinked()) session.waiting_channels.PushBack(channel.waiting_hook);
  if (!session.events_hook.IsLinked()) sessions_with_events_.PushBack(session.events_hook);
}

void DeviceCore::PushQpEvent(DeviceQp& qp, EventType event) {
  if (qp.place != nullptr) return;  // nobody knows it
  if (qp.undelivered_events >= DeviceQp::kMaxUndeliveredEvents) return;
  PushAsyncEvent(*qp.session, EventSource::kQp, event, qp.handle, qp.cookie);
}

void DeviceCore::PushAsyncEvent(Session& session, EventSource source, EventType event,
                                shm::Handle object, uint64_t cookie) {
  shm::AsyncEventMessage message{static_cast<uint32_t>(event), object, cookie};
  if (session.undelivered_events.empty() && session.services->SendAsyncEvent(message)) return;
  if (session.undelivered_events.size() >= Session::kMaxUndeliveredEvents) return;
  if (source == EventSource::kQp) ++session.qps.Find(object)->undelivered_events;
  session.undelivered_events.push_back({source, message});
  if (!session.events_hook.IsLinked()) sessions_with_events_.PushBack(session.events_hook);
}

// Where it stops, services have found a full fd, and so had another flush asked for. What was tried
// in vain goes behind the others, so that each has its turn.
void DeviceCore::FlushEvents() {
  IntrusiveList<Session> full;
  for (uint32_t i = 0; i < kFullSessionsMax && !sessions_with_events_.IsEmpty();) {
    Session* session = sessions_with_events_.PopFront();
    if (FlushSessionEvents(*session)) continue;
    full.PushBack(session->events_hook);
    ++i;
  }
  while (Session* session = full.PopFront()) sessions_with_events_.PushBack(session->events_hook);
}

bool DeviceCore::FlushSessionEvents(Session& session) {
  IntrusiveList<Channel> full;
  for (uint32_t i = 0; i < kFullChannelsMax && !session.waiting_channels.IsEmpty();) {
    Channel* channel = session.waiting_channels.PopFront();
    if (FlushChannel(*channel)) continue;
    full.PushBack(channel->waiting_hook);
    ++i;
  }
  while (Channel* channel = full.PopFront())
    session.waiting_channels.PushBack(channel->waiting_hook);
  bool is_async_empty = FlushAsyncEvents(session);
  return is_async_empty && session.waiting_channels.IsEmpty();
}

bool DeviceCore::FlushChannel(Channel& channel) {
  Session& session = *channel.session;
  while (!channel.undelivered.empty()) {
    Cq* cq = session.cqs.Find(channel.undelivered.front());
    // An event of a destroyed CQ is nobody's.
    if (cq != nullptr) {
      if (!session.services->SendChannelEvent(channel.handle, {cq->cookie, cq->handle, 0})) {
        return false;
      }
      cq->has_undelivered_event = false;
    }
    channel.undelivered.pop_front();
  }
  return true;
}

bool DeviceCore::FlushAsyncEvents(Session& session) {
  while (!session.undelivered_events.empty()) {
    const UndeliveredEvent& event = session.undelivered_events.front();
    shm::Handle object = event.message.object;
    DeviceQp* qp = event.source == EventSource::kQp ? session.qps.Find(object) : nullptr;
    bool is_alive = qp != nullptr || event.source == EventSource::kPort ||
                    (event.source == EventSource::kCq && session.cqs.Find(object) != nullptr) ||
                    (event.source == EventSource::kSrq && session.srqs.Find(object) != nullptr);
    if (is_alive && !session.services->SendAsyncEvent(event.message)) return false;
    if (qp != nullptr) --qp->undelivered_events;
    session.undelivered_events.pop_front();
  }
  return true;
}

}  // namespace verbena::softnic

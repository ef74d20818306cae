// Channels and the events that wait in them.
#include <errno.h>

#include <algorithm>
#include <iterator>

#include "softnic/cm/core.h"

namespace verbena::softnic {

using shm::CmHandle;

int CmCore::CreateChannel(CmSession& session, Reply* reply) {
  if (session.channels.size() >= config_.channels_per_session_max) return ENOMEM;
  reply->handle = NewHandle(session);
  session.channels[reply->handle];
  return 0;
}

int CmCore::DestroyChannel(Instant now, CmSession& session, CmHandle handle) {
  auto found = session.channels.find(handle);
  if (found == session.channels.end()) return ENOENT;
  // Connections that nobody has heard of go, and with them their requests.
  std::vector<CmHandle> unheard;
  for (const CmQueuedEvent& event : found->second.events) {
    if (event.connection != 0) unheard.push_back(event.connection);
    NoteWaiting(session, event, -1);
  }
  session.channels.erase(found);
  for (auto& [number, id] : session.ids) {
    if (id.channel == handle) id.channel = 0;
  }
  for (CmHandle connection : unheard) DestroyId(now, session, connection);
  return 0;
}

int CmCore::GetEvent(CmSession& session, CmHandle handle, Reply* reply) {
  auto found = session.channels.find(handle);
  if (found == session.channels.end()) return ENOENT;
  CmChannel& channel = found->second;
  if (channel.events.empty()) return EAGAIN;
  const CmQueuedEvent event = std::move(channel.events.front());
  channel.events.pop_front();
  NoteWaiting(session, event, -1);
  NoteChange(session, handle);
  ++session.ids.at(event.id).events_taken;
  if (event.membership != 0) ++session.memberships.at(event.membership).events_taken;
  reply->event = event.event;
  return 0;
}

int CmCore::Migrate(CmSession& session, CmIdentifier& id, CmHandle handle, Reply* reply) {
  auto to = session.channels.find(handle);
  if (to == session.channels.end()) return ENOENT;
  auto from = session.channels.find(id.channel);
  if (from != session.channels.end() && from != to && id.events_waiting > 0) {
    auto& events = from->second.events;
    auto others = std::stable_partition(
        events.begin(), events.end(),
        [&](const CmQueuedEvent& event) { return event.id != id.self.handle; });
    // So do the connections that they bring.
    for (auto event = others; event != events.end(); ++event) {
      if (event->connection != 0) session.ids.at(event->connection).channel = handle;
    }
    std::move(others, events.end(), std::back_inserter(to->second.events));
    events.erase(others, events.end());
    NoteChange(session, id.channel);
    NoteChange(session, handle);
  }
  id.channel = handle;
  reply->number = id.events_taken;
  return 0;
}

int CmCore::WriteEvent(const CmSession& session, CmIdentifier& id, const Request& request) {
  const auto& user = request.user;
  if (user.event != shm::kCmEventUser && user.event != shm::kCmEventInternal) return EINVAL;
  if (!HasRoomForEvent(session)) return ENOMEM;
  shm::CmEvent event{};
  event.arg = user.arg;
  Tell(id, static_cast<CmEventType>(user.event), user.status, event);
  return 0;
}

bool CmCore::HasRoomForEvent(const CmSession& session) const {
  return session.events_waiting < config_.events_per_session_max;
}

void CmCore::Tell(CmIdentifier& id, CmEventType type, int status, shm::CmEvent event,
                  CmMembership* membership, CmIdentifier* connection) {
  CmSession& session = sessions_.at(id.self.session);
  if (!id.is_named || !session.channels.contains(id.channel)) return;
  event.cookie = membership != nullptr ? membership->cookie : id.cookie;
  event.id = id.self.handle;
  event.event = static_cast<uint32_t>(type);
  event.status = status;
  event.is_ud = id.qp_type == kQpTypeUd;
  CmQueuedEvent queued{.id = id.self.handle};
  if (membership != nullptr) queued.membership = membership->handle;
  if (connection != nullptr) {
    event.listener = id.self.handle;
    event.id = queued.connection = connection->self.handle;
  }
  queued.event = event;
  Queue(session, id.channel, std::move(queued));
}

void CmCore::Queue(CmSession& session, CmHandle channel, CmQueuedEvent event) {
  NoteWaiting(session, event, +1);
  session.channels.at(channel).events.push_back(std::move(event));
  NoteChange(session, channel);
}

// An event came or went: whoever counts them does.
void CmCore::NoteWaiting(CmSession& session, const CmQueuedEvent& event, int change) {
  session.events_waiting += change;
  CmIdentifier& id = session.ids.at(event.id);
  id.events_waiting += change;
  if (event.connection != 0) {
    id.backlog_left -= change;
    session.ids.at(event.connection).request_of = change > 0 ? event.id : 0;
  }
  if (event.membership != 0) session.memberships.at(event.membership).events_waiting += change;
}

std::vector<CmHandle> CmCore::DropEvents(CmSession& session, CmIdentifier& id,
                                         CmHandle membership) {
  std::vector<CmHandle> unheard;
  auto channel = session.channels.find(id.channel);
  if (channel == session.channels.end() || id.events_waiting == 0) return unheard;
  std::erase_if(channel->second.events, [&](const CmQueuedEvent& event) {
    if (event.id != id.self.handle) return false;
    if (membership != 0 && event.membership != membership) return false;
    if (event.connection != 0) unheard.push_back(event.connection);
    NoteWaiting(session, event, -1);
    return true;
  });
  NoteChange(session, id.channel);
  return unheard;
}

void CmCore::DropRequestFor(CmSession& session, CmIdentifier& connection) {
  if (connection.request_of == 0) return;
  const CmHandle channel = session.ids.at(connection.request_of).channel;
  std::erase_if(session.channels.at(channel).events, [&](const CmQueuedEvent& event) {
    if (event.connection != connection.self.handle) return false;
    NoteWaiting(session, event, -1);
    return true;
  });
  NoteChange(session, channel);
}

void CmCore::NoteChange(CmSession& session, CmHandle handle) {
  CmChannel& channel = session.channels.at(handle);
  if (channel.is_in_changes || channel.events.empty() != channel.is_told_readable) return;
  channel.is_in_changes = true;
  changes_.emplace_back(session.number, handle);
}

bool CmCore::PollChannel(CmService::ChannelState* out) {
  while (!changes_.empty()) {
    const auto [number, handle] = changes_.front();
    changes_.pop_front();
    auto session = sessions_.find(number);
    if (session == sessions_.end()) continue;
    auto found = session->second.channels.find(handle);
    if (found == session->second.channels.end()) continue;
    CmChannel& channel = found->second;
    channel.is_in_changes = false;
    // It may have changed back.
    if (channel.events.empty() != channel.is_told_readable) continue;
    channel.is_told_readable = !channel.events.empty();
    *out = {number, handle, channel.is_told_readable};
    return true;
  }
  return false;
}

}  // namespace verbena::softnic

// Sessions, and whom each request is for.
#include <errno.h>

#include "softnic/cm/core.h"

namespace verbena::softnic {

using transport::cm::Engine;

CmCore::CmCore(const CmServiceConfig& config)
    : config_(config),
      random_(config.seed),
      ports_(random_()),
      last_session_(config.first_session - config.session_step) {}

// --- NICs ----------------------------------------------------------------------------------------

void CmCore::SetNics(Instant now, std::vector<CmNic> nics) {
  addresses_.SetNics(std::move(nics));
  std::set<uint32_t> gone;
  for (const auto& [index, port] : engines_) {
    const CmNic* nic = addresses_.Find(index);
    if (nic == nullptr || nic->node_guid != port.node_guid) gone.insert(index);
  }
  for (auto& [number, session] : sessions_) {
    for (auto& [handle, id] : session.ids) {
      if (!id.place.has_value()) continue;
      if (!gone.contains(id.place->nic)) {
        TellOfHardware(id);
        continue;
      }
      if (id.state == CmState::kListen) StopListening(id);
      EndPlace(now, id);
      ClearComm(id);
      id.state = CmState::kDeviceRemoval;
      id.place.reset();
      Tell(id, CmEventType::kDeviceRemoval, 0);
    }
  }
  for (uint32_t index : gone) engines_.erase(index);
  for (const CmNic& nic : addresses_.nics()) {
    Port& port = engines_[nic.index];
    if (port.engine != nullptr) continue;
    port.node_guid = nic.node_guid;
    port.engine = std::make_unique<Engine>(transport::cm::EngineConfig{
        .ca_guid = __builtin_bswap64(nic.node_guid),
        .first_comm_id = static_cast<uint32_t>(random_()),
        .communications_max = config_.communications_per_nic_max,
    });
    for (const auto& [service, listeners] : listeners_) {
      port.engine->Listen(transport::cm::ServiceId{service}, {});
    }
  }
  Pump(now);
}

// As Linux where a bond fails over. An address that is nowhere for now is where it was.
void CmCore::TellOfHardware(CmIdentifier& id) {
  const CmHardwareAddress now = addresses_.HardwareOf(id.place->nic, id.place->gid);
  if (now == CmHardwareAddress{} || now == id.hardware) return;
  const bool was_known = id.hardware != CmHardwareAddress{};
  id.hardware = now;
  if (was_known && HasRoomForEvent(sessions_.at(id.self.session))) {
    Tell(id, CmEventType::kAddrChange, 0);
  }
}

// --- sessions ------------------------------------------------------------------------------------

uint32_t CmCore::OpenSession() {
  do {
    last_session_ += config_.session_step;
  } while (last_session_ == 0 || sessions_.contains(last_session_));
  sessions_[last_session_].number = last_session_;
  return last_session_;
}

void CmCore::CloseSession(Instant now, uint32_t number) {
  auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  CmSession& session = found->second;
  // Their events first, all at once: looking for those of each identifier would take long.
  for (auto& [handle, channel] : session.channels) {
    for (const CmQueuedEvent& event : channel.events) NoteWaiting(session, event, -1);
    channel.events.clear();
  }
  while (!session.ids.empty()) DestroyId(now, session, session.ids.begin()->first);
  sessions_.erase(found);
  Pump(now);
}

shm::CmHandle CmCore::NewHandle(CmSession& session) {
  auto is_used = [&session](shm::CmHandle handle) {
    return handle == 0 || session.channels.contains(handle) || session.ids.contains(handle) ||
           session.memberships.contains(handle);
  };
  while (is_used(session.next_handle)) ++session.next_handle;
  return session.next_handle++;
}

CmIdentifier* CmCore::Find(const CmIdRef& ref) {
  auto session = sessions_.find(ref.session);
  if (session == sessions_.end()) return nullptr;
  auto id = session->second.ids.find(ref.handle);
  return id == session->second.ids.end() ? nullptr : &id->second;
}

// --- requests ------------------------------------------------------------------------------------

void CmCore::OnRequest(Instant now, uint32_t number, const Request& request, Reply* reply) {
  *reply = {};
  ++counters_.requests;
  auto session = sessions_.find(number);
  reply->error =
      session == sessions_.end() ? ENOENT : Dispatch(now, session->second, request, reply);
  if (reply->error != 0) ++counters_.requests_refused;
  Pump(now);
}

int CmCore::Dispatch(Instant now, CmSession& session, const Request& request, Reply* reply) {
  switch (static_cast<shm::CmOp>(request.op)) {
    case shm::CmOp::kCreateChannel:
      return CreateChannel(session, reply);
    case shm::CmOp::kDestroyChannel:
      return DestroyChannel(now, session, request.handle);
    case shm::CmOp::kGetEvent:
      return GetEvent(session, request.handle, reply);
    case shm::CmOp::kCreateId:
      return CreateId(session, request, reply);
    case shm::CmOp::kLeaveMcast:
      return LeaveMulticast(session, request.handle, reply);
    default:
      break;
  }
  auto found = session.ids.find(request.handle);
  if (found == session.ids.end()) return ENOENT;
  return DispatchToId(now, session, found->second, request, reply);
}

int CmCore::DispatchToId(Instant now, CmSession& session, CmIdentifier& id, const Request& request,
                         Reply* reply) {
  switch (static_cast<shm::CmOp>(request.op)) {
    case shm::CmOp::kDestroyId:
      reply->number = DestroyId(now, session, request.handle);
      return 0;
    case shm::CmOp::kMigrateId:
      return Migrate(session, id, request.migrate.channel, reply);
    case shm::CmOp::kBind:
      return Bind(id, request.bind.address);
    case shm::CmOp::kListen:
      return Listen(id, request.number);
    case shm::CmOp::kResolveAddr:
      return ResolveAddress(session, id, request);
    case shm::CmOp::kResolveRoute:
      return ResolveRoute(session, id, request.number);
    case shm::CmOp::kQuery:
      return Query(id, reply);
    case shm::CmOp::kConnect:
      return Connect(now, id, request);
    case shm::CmOp::kAccept:
      return Accept(now, id, request);
    case shm::CmOp::kReject:
      return Reject(now, id, request);
    case shm::CmOp::kEstablish:
      return Establish(now, id);
    case shm::CmOp::kDisconnect:
      return Disconnect(now, id, request.number);
    case shm::CmOp::kNotify:
      return Notify(now, id, request.number);
    case shm::CmOp::kInitQpAttr:
      return InitQpAttr(id, request.number, reply);
    case shm::CmOp::kSetOption:
      return SetOption(session, id, request);
    case shm::CmOp::kJoinMcast:
      return JoinMulticast(session, id, request, reply);
    case shm::CmOp::kServePlace:
      return ServePlace(id, request);
    case shm::CmOp::kWriteEvent:
      return WriteEvent(session, id, request);
    default:
      return EINVAL;
  }
}

}  // namespace verbena::softnic

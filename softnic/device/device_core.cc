#include "softnic/device/device_core.h"

#include <utility>

namespace verbena::softnic {

DeviceCore::DeviceCore(DeviceConfig config, DmaEngine* dma, TransportFactory make_transport)
    : config_(std::move(config)), dma_(dma), make_transport_(std::move(make_transport)) {
  for (const NicConfig& nic : config_.nics) AddNic(nic);
}

DeviceCore::~DeviceCore() = default;

void DeviceCore::AddNic(const NicConfig& config) {
  uint32_t index = static_cast<uint32_t>(nics_.size());
  nics_.push_back(std::make_unique<Nic>(index, config, config_.limits));
  ++path_epoch_;
  Nic* nic = nics_.back().get();
  for (uint32_t i = 0; i < kGidTableEntries; ++i) {
    Gid gid;
    if (nic->FindGid(GidIndex{static_cast<uint8_t>(i)}, &gid)) nic_by_gid_.emplace(gid, nic);
  }
}

std::vector<shm::NicInfo> DeviceCore::ListNics() const {
  std::vector<shm::NicInfo> infos;
  for (const auto& nic : nics_) infos.push_back(nic->Info());
  return infos;
}

std::vector<NicStatus> DeviceCore::ListNicStatuses() const {
  std::vector<NicStatus> statuses;
  for (const auto& nic : nics_) {
    NicStatus status;
    status.info = nic->Info();
    for (uint8_t i = 0; i < kGidTableEntries; ++i) {
      Gid gid;
      status.gids.push_back(nic->FindGid(GidIndex{i}, &gid) ? gid : Gid{});
    }
    status.active_mtu_bytes = nic->config().mtu_bytes;
    status.is_up = nic->is_up;
    status.netns = nic->config().netns;
    nic->DescribeDevice(&status.device_attributes);
    nic->DescribePort(&status.port_attributes);
    status.refusals = nic->refusals;
    status.qkey_violations = nic->qkey_violations;
    status.wire = nic->wire;
    if (nic->port != nullptr) {
      status.network = nic->port->name();
      status.port = nic->port->counters();
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

SessionId DeviceCore::OpenSession(uint32_t nic, std::string program, int pid,
                                  SessionServices* services, SessionId joins) {
  const Session* joined = joins == 0 ? nullptr : FindSession(joins);
  if (joins != 0 && (joined == nullptr || joined->is_closing)) return 0;
  if (joined == nullptr && nic >= nics_.size()) return 0;
  const SessionId id = next_session_++;
  std::shared_ptr<SharedObjects> shared;
  if (joined != nullptr) {
    shared = joined->shared;
  } else {
    shared = std::make_shared<SharedObjects>();
    shared->id = id;
  }
  auto session = std::make_unique<Session>(shared);
  shared->sessions.push_back(session.get());
  session->id = id;
  session->nic = joined != nullptr ? joined->nic : nics_[nic].get();
  session->program = std::move(program);
  session->pid = pid;
  session->services = services;
  sessions_.emplace(id, std::move(session));
  return id;
}

void DeviceCore::AbandonSession(Instant now, SessionId id) {
  AdvanceTo(now);
  Session* session = FindSession(id);
  if (session == nullptr || session->is_closing) return;
  EndProcessPart(*session);
  Settle();
}

// Objects go in the order in which they need one another. Memory regions stay until no DMA in
// flight can touch them; the fence ends the session.
void DeviceCore::CloseSession(Instant now, SessionId id) {
  AdvanceTo(now);
  Session* session = FindSession(id);
  if (session == nullptr || session->is_closing) return;
  session->is_closing = true;
  EndProcessPart(*session);
  std::vector<Session*>& holders = session->shared->sessions;
  std::erase(holders, session);
  if (holders.empty()) {
    EndSharedPart(*session);
  } else {
    Bequeath(*session, *holders[0]);
  }
  FenceRecord record;
  record.session = id;
  record.ends_session = true;
  BeginFence(id, std::move(record));
  Settle();
}

DeviceStats DeviceCore::Stats() const {
  DeviceStats stats;
  for (const auto& [id, session] : sessions_) {
    if (session->is_closing) continue;
    ++stats.sessions;
    if (session->SpeaksForContext()) {
      stats.pds += session->pds.size();
      stats.mrs += session->mrs.size();
    }
    stats.cqs += session->cqs.size();
    stats.qps += session->qps.size();
    stats.srqs += session->srqs.size();
    stats.ahs += session->ahs.size();
    stats.channels += session->channels.size();
    stats.mws += session->mws.size();
  }
  stats.send_wqes = send_wqes_;
  stats.pdus = pdus_;
  stats.payload_bytes = payload_bytes_;
  stats.commands = commands_;
  stats.hostile_acts = hostile_acts_;
  return stats;
}

}  // namespace verbena::softnic

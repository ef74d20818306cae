// Identifiers: how they begin and end, their addresses, ports and options.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "softnic/cm/core.h"

namespace verbena::softnic {
namespace {

using shm::CmAddress;
using shm::CmHandle;
using transport::cm::ServiceId;

// Options of rdma_set_option.
constexpr uint32_t kLevelId = 0, kLevelIb = 1;
constexpr uint32_t kOptionTos = 0, kOptionReuseAddress = 1, kOptionFamilyOnly = 2,
                   kOptionAckTimeout = 3;
constexpr uint32_t kOptionIbPath = 1;
// struct ibv_path_data: flags, and a path record. Of those that are given, the one for all uses
// counts: GMP, primary, outbound and back.
constexpr uint32_t kIbPathBytes = 72, kIbPathForAll = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5;

constexpr uint8_t kHopLimit = 64;
// 0.27 s, as Linux has it for RoCE (CMA_IBOE_PACKET_LIFETIME).
constexpr uint8_t kLifeTimeExp = 16;

// 0: none such. As ucma_get_qp_type: a port space's own, but for IB's.
uint8_t QpTypeOf(uint16_t port_space, uint8_t asked) {
  switch (port_space) {
    case kPortSpaceTcp:
    case shm::kPortSpaceRdm:
      return kQpTypeRc;
    case kPortSpaceUdp:
    case kPortSpaceIpoib:
      return kQpTypeUd;
    case kPortSpaceIb:
      break;
    default:
      return 0;
  }
  const bool is_known = (asked >= kQpTypeRc && asked <= kQpTypeUd) || asked == kQpTypeXrcSend ||
                        asked == kQpTypeXrcRecv;
  return is_known ? asked : 0;
}

uint32_t FlowLabelOf(const CmAddress& source, const CmAddress& destination) {
  constexpr uint32_t kMask = 0xf'ffff;
  if (destination.family == AF_INET6 && destination.flow_info != 0) {
    return __builtin_bswap32(destination.flow_info) & kMask;
  }
  // So that connections of two hosts spread over the ways between them.
  const uint32_t from = __builtin_bswap16(source.port), to = __builtin_bswap16(destination.port);
  return (from * 31 + to) & kMask;
}

// EINVAL: no records, or none that could be used.
int CheckIbPaths(const uint8_t* records, uint32_t bytes) {
  if (bytes > shm::kCmOptionMax || bytes % kIbPathBytes != 0) return EINVAL;
  for (uint32_t at = 0; at < bytes; at += kIbPathBytes) {
    uint32_t flags;
    std::memcpy(&flags, records + at, sizeof flags);
    if (flags == kIbPathForAll) return 0;
  }
  return EINVAL;
}

}  // namespace

const char* NameOf(CmState state) {
  static constexpr const char* kNames[] = {
      "idle",    "bound",        "looking", "address resolved", "route resolved",
      "connect", "disconnected", "listen",  "device removed"};
  return kNames[static_cast<size_t>(state)];
}

// --- beginning and end ---------------------------------------------------------------------------

int CmCore::CreateId(CmSession& session, const Request& request, Reply* reply) {
  if (!session.channels.contains(request.create.channel)) return ENOENT;
  const uint8_t qp_type = QpTypeOf(request.create.port_space, request.create.qp_type);
  if (qp_type == 0) return EINVAL;
  if (session.ids.size() >= config_.ids_per_session_max) return ENOMEM;
  reply->handle = NewHandle(session);
  CmIdentifier& id = session.ids[reply->handle];
  id.self = {session.number, reply->handle};
  id.channel = request.create.channel;
  id.cookie = request.create.cookie;
  id.port_space = request.create.port_space;
  id.qp_type = qp_type;
  id.connection.rq_psn = Psn(static_cast<uint32_t>(random_()));
  return 0;
}

uint32_t CmCore::DestroyId(Instant now, CmSession& session, CmHandle handle) {
  auto found = session.ids.find(handle);
  if (found == session.ids.end()) return 0;
  CmIdentifier& id = found->second;
  const uint32_t events_taken = id.events_taken;
  if (id.state == CmState::kListen) StopListening(id);
  EndPlace(now, id);
  const std::vector<CmHandle> unheard = DropEvents(session, id, /*membership=*/0);
  DropRequestFor(session, id);
  for (CmHandle membership : id.memberships) session.memberships.erase(membership);
  if (transport::cm::Engine* engine = EngineOf(id); engine != nullptr && id.comm.value != 0) {
    engine->Abandon(now, id.comm);
  }
  ClearComm(id);
  if (id.has_port) ports_.Release(id.port_space, HolderOf(id));
  session.ids.erase(found);
  // Nobody will hear of those that asked it for a connection.
  for (CmHandle connection : unheard) DestroyId(now, session, connection);
  return events_taken;
}

// --- addresses and ports -------------------------------------------------------------------------

CmPortHolder CmCore::HolderOf(const CmIdentifier& id) const {
  const bool is_rdm = id.port_space == shm::kPortSpaceRdm;
  CmAddress address = id.source;
  if (!id.place.has_value()) {
    // Of no NIC: all addresses of its family.
    address = WildcardOf(id.source.family);
    address.port = id.source.port;
  }
  return {id.self, address, id.may_share_port && !is_rdm,
          id.is_family_only.value_or(id.source.family == AF_INET), is_rdm};
}

int CmCore::Bind(CmIdentifier& id, const CmAddress& address) {
  if (!IsInet(address)) return EAFNOSUPPORT;
  if (id.state != CmState::kIdle) return EINVAL;
  if (IsLinkLocal(address) && address.scope_id == 0) return EINVAL;
  if (!addresses_.IsAny(address)) {
    CmPlace place;
    if (int error = addresses_.FindLocal(address, &place); error != 0) return error;
    Place(id, place);
  }
  id.source = address;
  CmPortHolder holder = HolderOf(id);
  if (int error = ports_.Bind(id.port_space, &holder); error != 0) {
    id.source = {};
    id.place.reset();
    return error;
  }
  id.has_port = true;
  id.source.port = holder.address.port;
  id.bound = id.source;
  id.state = CmState::kAddrBound;
  return 0;
}

void CmCore::Place(CmIdentifier& id, const CmPlace& place) const {
  id.place = place;
  id.hardware = addresses_.HardwareOf(place.nic, place.gid);
}

int CmCore::Listen(CmIdentifier& id, uint32_t backlog) {
  if (id.port_space == shm::kPortSpaceRdm) return EINVAL;  // nobody but a place is there
  if (id.state == CmState::kIdle) {
    if (int error = Bind(id, WildcardOf(AF_INET)); error != 0) return error;
  }
  if (id.state != CmState::kAddrBound) return EINVAL;
  return StartListening(id, backlog);
}

int CmCore::StartListening(CmIdentifier& id, uint32_t backlog) {
  if (id.may_share_port) {
    if (int error = ports_.CheckListen(id.port_space, HolderOf(id)); error != 0) return error;
  }
  const bool is_default = backlog == 0 || backlog > config_.backlog_max;
  id.backlog_left = is_default ? config_.backlog_max : backlog;
  id.state = CmState::kListen;
  const ServiceId service = ServiceIdOf(id.port_space, id.source.port);
  std::vector<CmIdRef>& listeners = listeners_[service.value];
  if (listeners.empty()) {
    for (auto& [index, port] : engines_) port.engine->Listen(service, {});
  }
  listeners.push_back(id.self);
  return 0;
}

void CmCore::StopListening(CmIdentifier& id) {
  const ServiceId service = ServiceIdOf(id.port_space, id.source.port);
  auto found = listeners_.find(service.value);
  std::erase(found->second, id.self);
  if (!found->second.empty()) return;
  listeners_.erase(found);
  for (auto& [index, port] : engines_) port.engine->EndListening(service, {});
}

int CmCore::ResolveAddress(CmSession& session, CmIdentifier& id, const Request& request) {
  const CmAddress& destination = request.resolve.destination;
  if (!IsInet(destination)) return EAFNOSUPPORT;
  if (IsLinkLocal(destination) && destination.scope_id == 0) return EINVAL;
  if (!HasRoomForEvent(session)) return ENOMEM;
  if (id.state == CmState::kIdle) {
    const CmAddress& source = request.resolve.source;
    int error = Bind(id, source.family == 0 ? WildcardOf(destination.family) : source);
    if (error != 0) return error;
  }
  if (id.state != CmState::kAddrBound || id.bound.family != destination.family) return EINVAL;
  CmReach reach;
  if (int error = addresses_.Resolve(id.bound, destination, &reach); error != 0) {
    // It may try again.
    Tell(id, CmEventType::kAddrError, -error);
    return 0;
  }
  if (!config_.looks_up_destinations || !IsOnANetwork(reach)) {
    HaveAddress(id, reach);
    return 0;
  }
  id.state = CmState::kAddrQuery;
  id.looked_up = reach.destination;
  id.look_up = ++last_look_up_;
  look_ups_.push_back({session.number, id.self.handle, id.look_up, reach.local.gid, reach.remote,
                       IsLinkLocal(reach.destination) ? reach.destination.scope_id : 0,
                       request.resolve.timeout_ms});
  return 0;
}

bool CmCore::IsOnANetwork(const CmReach& reach) const {
  const CmNic* nic = addresses_.Find(reach.local.nic);
  CmPlace here;
  return nic != nullptr && !nic->is_local_only && !reach.remote.IsMulticast() &&
         addresses_.FindLocal(reach.destination, &here) != 0;
}

void CmCore::HaveAddress(CmIdentifier& id, const CmReach& reach) {
  const uint16_t port = id.bound.port;
  id.source = reach.source;
  id.source.port = port;
  id.destination = reach.destination;
  Place(id, reach.local);
  id.remote_gid = reach.remote;
  id.state = CmState::kAddrResolved;
  ports_.Update(id.port_space, HolderOf(id));
  Tell(id, CmEventType::kAddrResolved, 0);
}

bool CmCore::PollLookUp(CmService::LookUp* out) {
  if (look_ups_.empty()) return false;
  *out = look_ups_.front();
  look_ups_.pop_front();
  return true;
}

CmIdentifier* CmCore::AskerOf(const CmService::LookUp& what) {
  CmIdentifier* id = Find({what.session, what.id});
  const bool asks = id != nullptr && id->state == CmState::kAddrQuery && id->look_up == what.number;
  return asks ? id : nullptr;
}

void CmCore::OnLookedUp(const CmService::LookUp& what, int error) {
  CmIdentifier* id = AskerOf(what);
  if (id == nullptr) return;
  id->state = CmState::kAddrBound;  // it may try again
  // The NIC's address may be gone by now.
  CmReach reach;
  if (error == 0) error = addresses_.Resolve(id->bound, id->looked_up, &reach);
  if (error != 0) return Tell(*id, CmEventType::kAddrError, -error);
  HaveAddress(*id, reach);
}

void CmCore::WithdrawLookUp(const CmService::LookUp& what) {
  if (CmIdentifier* id = AskerOf(what); id != nullptr) id->state = CmState::kAddrBound;
}

// --- routes --------------------------------------------------------------------------------------

// The largest enum ibv_mtu that is not above the NIC's.
uint8_t CmCore::MtuOf(uint32_t nic) const {
  const CmNic* found = addresses_.Find(nic);
  uint8_t mtu = 1;
  while (found != nullptr && mtu < 5 && (256u << mtu) <= found->active_mtu_bytes) ++mtu;
  return mtu;
}

// RoCE has no subnet administrator: nobody need be asked.
void CmCore::MakeRoute(CmIdentifier& id) {
  CmPath& path = id.path;
  path.flow_label = FlowLabelOf(id.source, id.destination);
  path.traffic_class = id.tos.value_or(0);
  path.hop_limit = kHopLimit;
  path.sl = 0;
  path.mtu = MtuOf(id.place->nic);
  CmPlace there;
  if (addresses_.FindLocal(id.destination, &there) == 0) {
    path.mtu = std::min(path.mtu, MtuOf(there.nic));
  }
  // An ACK timeout is there and back, when the NIC's own delay is next to nothing.
  const uint8_t ack_timeout_exp = id.ack_timeout_exp.value_or(0);
  path.life_time_exp = ack_timeout_exp == 0 ? kLifeTimeExp : ack_timeout_exp - 1;
  id.has_route = true;
}

int CmCore::ResolveRoute(CmSession& session, CmIdentifier& id, uint32_t timeout_ms) {
  if (timeout_ms == 0 || id.state != CmState::kAddrResolved) return EINVAL;
  if (!HasRoomForEvent(session)) return ENOMEM;
  MakeRoute(id);
  id.state = CmState::kRouteResolved;
  Tell(id, CmEventType::kRouteResolved, 0);
  return 0;
}

shm::CmAddressHandle CmCore::AddressHandleOf(const CmIdentifier& id, const Gid& destination) const {
  shm::CmAddressHandle ah{};
  ah.sgid_index = addresses_.GidIndexOf(*id.place);
  ah.traffic_class = id.path.traffic_class;
  ah.hop_limit = id.path.hop_limit == 0 ? kHopLimit : id.path.hop_limit;
  ah.sl = id.path.sl;
  ah.flow_label = id.path.flow_label;
  std::memcpy(ah.dgid, destination.raw.data(), sizeof ah.dgid);
  ah.port_num = 1;
  return ah;
}

int CmCore::Query(const CmIdentifier& id, Reply* reply) const {
  shm::CmQuery& query = reply->query;
  query.source = id.source;
  query.destination = id.destination;
  query.pkey = kDefaultPkey;
  if (!id.place.has_value()) return 0;
  const CmNic* nic = addresses_.Find(id.place->nic);
  if (nic == nullptr) return 0;
  query.node_guid = nic->node_guid;
  query.nic = nic->index;
  query.port_num = 1;
  query.rate = nic->rate;
  std::memcpy(query.sgid, id.place->gid.raw.data(), sizeof query.sgid);
  std::memcpy(query.dgid, id.remote_gid.raw.data(), sizeof query.dgid);
  query.has_route = id.has_route;
  query.mtu = id.path.mtu;
  query.packet_life_time = id.path.life_time_exp;
  query.ah = AddressHandleOf(id, id.remote_gid);
  return 0;
}

// --- options -------------------------------------------------------------------------------------

int CmCore::SetOption(CmSession& session, CmIdentifier& id, const Request& request) {
  const auto& option = request.option;
  if (option.level == kLevelIb) {
    if (option.name != kOptionIbPath) return ENOSYS;
    if (int error = CheckIbPaths(option.value, option.length); error != 0) return error;
    // A route that the program has found for itself: on RoCE all are the same.
    return ResolveRoute(session, id, /*timeout_ms=*/1);
  }
  if (option.level != kLevelId) return ENOSYS;
  uint32_t value = 0;
  auto has_length = [&](uint32_t bytes) {
    if (option.length != bytes) return false;
    std::memcpy(&value, option.value, bytes);
    return true;
  };
  switch (option.name) {
    case kOptionTos:
      if (!has_length(1)) return EINVAL;
      id.tos = static_cast<uint8_t>(value);
      return 0;
    case kOptionReuseAddress:
      // Who listens can't begin to share.
      if (!has_length(4) || (value != 0 && id.state == CmState::kListen)) return EINVAL;
      id.may_share_port = value != 0;
      break;
    case kOptionFamilyOnly:
      if (!has_length(4)) return EINVAL;
      if (id.state != CmState::kIdle && id.state != CmState::kAddrBound) return EINVAL;
      id.is_family_only = value != 0;
      break;
    case kOptionAckTimeout:
      if (!has_length(1) || value > 31) return EINVAL;
      if (id.qp_type != kQpTypeRc && id.qp_type != kQpTypeXrcSend) return EINVAL;
      id.ack_timeout_exp = static_cast<uint8_t>(value);
      return 0;
    default:
      return ENOSYS;
  }
  if (id.has_port) ports_.Update(id.port_space, HolderOf(id));
  return 0;
}

}  // namespace verbena::softnic

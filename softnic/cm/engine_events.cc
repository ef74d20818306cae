// What the NICs' connection managers tell, and the events that programs get of it.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "softnic/cm/core.h"
#include "softnic/cm/dreq_data.h"

namespace verbena::softnic {
namespace {

using transport::cm::CommId;
using transport::cm::Engine;
using transport::cm::EventKind;
using transport::cm::RejectReason;
using transport::cm::Rep;
using transport::cm::Req;
using transport::cm::SidrRep;
using transport::cm::SidrReq;
using transport::cm::SidrStatus;
using transport::cm::State;

// What a program may take to answer before the peer gives up on it: 69 s, as Linux asks for.
constexpr uint8_t kServiceTimeoutExp = 24;

template <size_t kBytes>
void SetData(const transport::cm::PrivateData<kBytes>& data, size_t at, shm::CmConnParam* param) {
  param->private_data_len = static_cast<uint8_t>(kBytes - at);
  std::memcpy(param->private_data, data.data() + at, kBytes - at);
}

void SetEce(const transport::cm::Ece& ece, shm::CmConnParam* param) {
  param->ece_vendor_id = ece.vendor_id;
  param->ece_options = ece.options;
}

bool IsFor(const Req& req, uint8_t qp_type) {
  switch (req.transport_type) {
    case transport::cm::TransportType::kRc:
      return qp_type == kQpTypeRc;
    case transport::cm::TransportType::kUc:
      return qp_type == kQpTypeUc;
    case transport::cm::TransportType::kExtended:
      return qp_type == kQpTypeXrcSend || qp_type == kQpTypeXrcRecv;
    default:
      return false;
  }
}

bool IsFor(const SidrReq&, uint8_t qp_type) { return qp_type == kQpTypeUd; }

// One side's resources are the other's depth.
shm::CmConnParam ParamOf(const Req& req) {
  shm::CmConnParam param{};
  param.responder_resources = req.initiator_depth;
  param.initiator_depth = req.responder_resources;
  param.flow_control = req.has_end_to_end_credits;
  param.retry_count = req.retry_count;
  param.rnr_retry_count = req.rnr_retry_count;
  param.srq = req.has_srq;
  param.qp_num = req.local_qpn.value;
  SetData(req.private_data, kIpHeaderBytes, &param);
  SetEce(req.ece, &param);
  return param;
}

shm::CmConnParam ParamOf(const SidrReq& req) {
  shm::CmConnParam param{};
  SetData(req.private_data, kIpHeaderBytes, &param);
  return param;
}

// Of a connection that a REQ asks for. Each side names the PSN that it expects first.
void Settle(const Req& req, CmIdentifier& id) {
  CmConnection& connection = id.connection;
  connection.remote_qpn = req.local_qpn;
  connection.sq_psn = req.starting_psn;
  connection.responder_resources = req.initiator_depth;
  connection.initiator_depth = req.responder_resources;
  connection.retry_count = req.retry_count;
  connection.rnr_retry_count = req.rnr_retry_count;
  connection.path_mtu = req.path_mtu;
  connection.ack_timeout_exp = req.primary.local_ack_timeout;
  const transport::cm::PathFields& path = req.primary;
  id.path = {path.flow_label,
             path.traffic_class,
             path.hop_limit,
             path.sl,
             req.path_mtu,
             static_cast<uint8_t>(path.local_ack_timeout - (path.local_ack_timeout > 0 ? 1 : 0))};
  id.has_route = true;
}

void Settle(const SidrReq&, CmIdentifier&) {}

}  // namespace

void CmCore::OnMad(Instant now, uint32_t nic, const transport::cm::Route& route,
                   const std::byte* bytes, size_t length) {
  auto found = engines_.find(nic);
  if (found == engines_.end()) return;
  found->second.engine->OnMad(now, route, bytes, length);
  Pump(now);
}

void CmCore::OnTimeout(Instant now) {
  for (auto& [index, port] : engines_) port.engine->OnTimeout(now);
  Pump(now);
}

Instant CmCore::PollTimeout() const {
  Instant first = Instant::Never();
  for (const auto& [index, port] : engines_) first = std::min(first, port.engine->PollTimeout());
  return first;
}

void CmCore::PrepareEnd(Instant now) {
  for (auto& [index, port] : engines_) port.engine->HurryDreqs(now);
}

// Peers on the NICs of this daemon end with it.
bool CmCore::AwaitsPeers() const {
  for (const auto& [index, port] : engines_) {
    for (const Gid& peer : port.engine->PeersToAnswerDreqs()) {
      const bool is_ours = std::any_of(
          addresses_.nics().begin(), addresses_.nics().end(), [&peer](const CmNic& nic) {
            return std::find(nic.gids.begin(), nic.gids.end(), peer) != nic.gids.end();
          });
      if (!is_ours) return true;
    }
  }
  return false;
}

bool CmCore::PollMad(CmService::OutMad* out) {
  transport::cm::OutMad mad;
  for (auto& [index, port] : engines_) {
    if (!port.engine->PollMad(&mad)) continue;
    *out = {index, mad.route, mad.mad};
    return true;
  }
  return false;
}

void CmCore::Pump(Instant now) {
  for (auto& [index, port] : engines_) {
    EngineEvent event;
    while (port.engine->PollEvent(&event)) OnEngineEvent(now, index, event);
  }
}

void CmCore::OnEngineEvent(Instant now, uint32_t nic, const EngineEvent& event) {
  if (event.kind == EventKind::kReqReceived) {
    return OnRequestOfPeer(now, nic, event, std::get<Req>(event.body));
  }
  if (event.kind == EventKind::kSidrReqReceived) {
    return OnRequestOfPeer(now, nic, event, std::get<SidrReq>(event.body));
  }
  if (OnLaneEvent(now, {nic, event.id.value}, event)) return;
  auto found = by_comm_.find({nic, event.id.value});
  CmIdentifier* id = found == by_comm_.end() ? nullptr : Find(found->second);
  if (id != nullptr) OnConnectionEvent(now, *id, event);
}

// --- connections ---------------------------------------------------------------------------------

void CmCore::OnConnectionEvent(Instant now, CmIdentifier& id, const EngineEvent& event) {
  Engine& engine = *EngineOf(id);
  const bool is_gone = engine.StateOf(event.id) == State::kGone;
  if (is_gone) ClearComm(id);
  // A connection tells once that it is over, whoever ended it, and then only when it is forgotten.
  const CmState expected =
      event.kind == EventKind::kTimewaitExit ? CmState::kDisconnect : CmState::kConnect;
  if (id.state != expected) return;
  switch (event.kind) {
    case EventKind::kRepReceived:
      engine.PrepareMra(id.comm, kServiceTimeoutExp);
      return OnRep(id, std::get<Rep>(event.body));
    case EventKind::kEstablished:
      return Tell(id, CmEventType::kEstablished, 0);
    case EventKind::kRejected: {
      const auto& rej = std::get<transport::cm::Rej>(event.body);
      shm::CmEvent told{};
      SetData(rej.private_data, 0, &told.param);
      return Tell(id, CmEventType::kRejected, static_cast<int>(rej.reason), told);
    }
    case EventKind::kReqTimeout:
    case EventKind::kRepTimeout:
    case EventKind::kSidrReqTimeout:
      return Tell(id, CmEventType::kUnreachable, -ETIMEDOUT);
    case EventKind::kDreqReceived:
      // Both sides at once: neither program will answer the other's.
      if (id.has_asked_to_disconnect) engine.SendDrep(now, id.comm, {});
      [[fallthrough]];
    case EventKind::kDrepReceived:
    case EventKind::kDreqTimeout:
      return OnDisconnected(id, event);
    case EventKind::kTimewaitExit:
      return Tell(id, CmEventType::kTimewaitExit, 0);
    case EventKind::kSidrRepReceived:
      return OnSidrRep(id, std::get<SidrRep>(event.body));
    case EventKind::kMraReceived:
    case EventKind::kReqReceived:
    case EventKind::kSidrReqReceived:
      return;
  }
}

void CmCore::OnDisconnected(CmIdentifier& id, const EngineEvent& event) {
  id.state = CmState::kDisconnect;
  shm::CmEvent told{};
  if (event.kind == EventKind::kDreqReceived) {
    const auto done = DecodeDreqData(std::get<transport::cm::Dreq>(event.body).private_data);
    if (done.has_value()) told.peer_psn = shm::kCmNamesPsn | done->value();
  }
  const bool is_answered = event.kind != EventKind::kDreqTimeout;
  Tell(id, CmEventType::kDisconnected, is_answered ? 0 : -ETIMEDOUT, told);
}

// The client sets its QP and says kEstablish, or the device sets it for a lane.
void CmCore::OnRep(CmIdentifier& id, const Rep& rep) {
  CmConnection& connection = id.connection;
  connection.remote_qpn = rep.local_qpn;
  connection.sq_psn = rep.starting_psn;
  connection.responder_resources = rep.initiator_depth;
  connection.initiator_depth = rep.responder_resources;
  connection.rnr_retry_count = rep.rnr_retry_count;
  connection.ack_timeout_exp = AckTimeoutOf(rep.target_ack_delay, id.path.life_time_exp);
  if (id.sender.has_value()) return OrderSender(id);
  shm::CmEvent told{};
  told.param.responder_resources = rep.initiator_depth;
  told.param.initiator_depth = rep.responder_resources;
  told.param.flow_control = rep.has_end_to_end_credits;
  told.param.rnr_retry_count = rep.rnr_retry_count;
  told.param.srq = rep.has_srq;
  told.param.qp_num = rep.local_qpn.value;
  SetData(rep.private_data, 0, &told.param);
  SetEce(rep.ece, &told.param);
  Tell(id, CmEventType::kConnectResponse, 0, told);
}

void CmCore::OnSidrRep(CmIdentifier& id, const SidrRep& rep) {
  shm::CmEvent told{};
  SetData(rep.private_data, 0, &told.param);
  if (rep.status != SidrStatus::kValid) {
    return Tell(id, CmEventType::kUnreachable, static_cast<int>(rep.status), told);
  }
  if (int error = SetQkey(id, rep.qkey); error != 0) {
    return Tell(id, CmEventType::kAddrError, -error);
  }
  id.connection.remote_qpn = rep.qpn;
  told.param.qp_num = rep.qpn.value;
  told.param.qkey = rep.qkey.value;
  SetEce(rep.ece, &told.param);
  told.ah = AddressHandleOf(id, id.remote_gid);
  Tell(id, CmEventType::kEstablished, 0, told);
}

// --- requests of peers ---------------------------------------------------------------------------

// `is_there_one`: somebody listens on this NIC, if not at the address.
CmIdentifier* CmCore::FindListener(uint32_t nic, transport::cm::ServiceId service,
                                   const IpHeader& header, bool* is_there_one) {
  *is_there_one = false;
  auto found = listeners_.find(service.value);
  if (found == listeners_.end()) return nullptr;
  CmIdentifier* match = nullptr;
  for (const CmIdRef& ref : found->second) {
    CmIdentifier& listener = *Find(ref);
    const bool is_wildcard = !listener.place.has_value();
    if (!is_wildcard && listener.place->nic != nic) continue;
    *is_there_one = true;
    const bool is_both_families = is_wildcard && !HolderOf(listener).is_family_only;
    if (listener.source.family != header.destination.family && !is_both_families) continue;
    if (is_wildcard || IsSameHost(listener.source, header.destination)) match = &listener;
  }
  return match;
}

CmIdentifier* CmCore::NewConnection(CmSession& session, const CmIdentifier& listener, uint32_t nic,
                                    const EngineEvent& event, const IpHeader& header) {
  const shm::CmHandle handle = NewHandle(session);
  CmIdentifier& id = session.ids[handle];
  id.self = {session.number, handle};
  id.channel = listener.channel;
  id.is_named = false;
  id.port_space = listener.port_space;
  id.qp_type = listener.qp_type;
  id.is_family_only = listener.is_family_only;
  id.tos = listener.tos;
  id.ack_timeout_exp = listener.ack_timeout_exp;
  id.state = CmState::kConnect;
  id.connection.rq_psn = Psn(static_cast<uint32_t>(random_()));
  id.source = header.destination;
  id.source.port = listener.source.port;
  id.destination = header.source;
  const uint32_t scope_id = addresses_.Find(nic)->scope_id;
  if (IsLinkLocal(id.source)) id.source.scope_id = scope_id;
  if (IsLinkLocal(id.destination)) id.destination.scope_id = scope_id;
  id.bound = id.source;
  Place(id, {nic, event.route.local});
  id.remote_gid = event.route.remote;
  SetComm(id, event.id);
  return &id;
}

void CmCore::Refuse(Instant now, uint32_t nic, const EngineEvent& event, RejectReason reason) {
  Engine& engine = *engines_.at(nic).engine;
  if (event.kind == EventKind::kReqReceived) {
    engine.SendRej(now, event.id, reason, {});
    return;
  }
  SidrRep rep;
  rep.status = reason == RejectReason::kInvalidServiceId ? SidrStatus::kServiceIdNotSupported
                                                         : SidrStatus::kRejected;
  engine.SendSidrRep(now, event.id, rep);
}

template <typename M>
void CmCore::OnRequestOfPeer(Instant now, uint32_t nic, const EngineEvent& event, const M& m) {
  Engine& engine = *engines_.at(nic).engine;
  IpHeader header;
  if (!DecodeIpHeader(m.private_data.data(), &header)) {
    return Refuse(now, nic, event, RejectReason::kConsumerDefined);
  }
  // Who is reached through this NIC need not be reached through all: an address counts where it is.
  shm::CmAddress here = header.destination;
  if (here.scope_id == 0) here.scope_id = std::max(1u, addresses_.Find(nic)->scope_id);
  CmPlace place;
  const bool is_here = GidOf(here) == event.route.local ||
                       (addresses_.FindLocal(here, &place) == 0 && place.nic == nic);
  bool is_there_one = false;
  CmIdentifier* listener = FindListener(nic, m.service_id, header, &is_there_one);
  if (listener == nullptr || !is_here || !IsFor(m, listener->qp_type)) {
    return Refuse(now, nic, event,
                  is_there_one ? RejectReason::kConsumerDefined : RejectReason::kInvalidServiceId);
  }
  if constexpr (std::is_same_v<M, Req>) {
    // Its packets would be too long for this NIC.
    if (m.path_mtu == 0 || m.path_mtu > MtuOf(nic)) {
      return Refuse(now, nic, event, RejectReason::kInvalidMtu);
    }
    if (listener->served.has_value()) return OnLaneRequest(now, nic, event, m, header, *listener);
  }
  CmSession& session = sessions_.at(listener->self.session);
  if (!session.channels.contains(listener->channel)) {
    return Refuse(now, nic, event, RejectReason::kConsumerDefined);
  }
  if (listener->backlog_left == 0 || !HasRoomForEvent(session) ||
      session.ids.size() >= config_.ids_per_session_max) {
    // The peer asks again, and there may be room by then.
    ++counters_.backlog_drops;
    engine.Forget(event.id);
    return;
  }
  CmIdentifier* connection = NewConnection(session, *listener, nic, event, header);
  Settle(m, *connection);
  shm::CmEvent told{};
  told.param = ParamOf(m);
  Tell(*listener, CmEventType::kConnectRequest, 0, told, nullptr, connection);
  if constexpr (std::is_same_v<M, Req>) engine.PrepareMra(event.id, kServiceTimeoutExp);
}

}  // namespace verbena::softnic

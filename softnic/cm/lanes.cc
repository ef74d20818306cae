// Places of RDM endpoints: peers' requests for lanes are accepted here, without the program
// (core/shm/rdm.h). The device makes the QPs, and is asked for them by orders.
#include <errno.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/shm/rdm.h"
#include "softnic/cm/core.h"

namespace verbena::softnic {
namespace {

using LaneOrder = CmService::LaneOrder;
using shm::RdmRejectReason;
using transport::cm::CommId;
using transport::cm::Engine;
using transport::cm::EventKind;
using transport::cm::PrivateData;
using transport::cm::RejectReason;
using transport::cm::Req;

constexpr uint8_t kRnrRetryForever = 7;

// False: another version, or more of a key than there can be.
bool ReadRequest(const Req& req, shm::RdmRequestData* out) {
  static_assert(kIpHeaderBytes + sizeof(*out) <= sizeof(req.private_data));
  std::memcpy(out, req.private_data.data() + kIpHeaderBytes, sizeof(*out));
  return out->version == shm::kRdmVersion && out->auth_key_bytes <= sizeof(out->auth_key);
}

bool HasKey(const shm::RdmRequestData& data, const CmServedPlace& place) {
  return std::equal(place.auth_key.begin(), place.auth_key.end(), data.auth_key,
                    data.auth_key + data.auth_key_bytes);
}

}  // namespace

// Of one address and port one place, whoever holds them.
int CmCore::ServePlace(CmIdentifier& id, const Request& request) {
  const auto& place = request.place;
  if (id.port_space != shm::kPortSpaceRdm || place.auth_key_bytes > sizeof(place.auth_key)) {
    return EINVAL;
  }
  if (id.state != CmState::kAddrBound || !id.place.has_value()) return EINVAL;
  auto others = listeners_.find(ServiceIdOf(id.port_space, id.source.port).value);
  if (others != listeners_.end()) {
    for (const CmIdRef& other : others->second) {
      if (IsSameHost(Find(other)->source, id.source)) return EADDRINUSE;
    }
  }
  if (int error = StartListening(id, /*backlog=*/0); error != 0) return error;
  CmServedPlace& served = id.served.emplace();
  std::copy(std::begin(place.token), std::end(place.token), served.token.begin());
  served.auth_key.assign(place.auth_key, place.auth_key + place.auth_key_bytes);
  return 0;
}

void CmCore::OnLaneRequest(Instant now, uint32_t nic, const EngineEvent& event, const Req& req,
                           const IpHeader& header, CmIdentifier& place) {
  shm::RdmRequestData data;
  // A peer speaks for the addresses that it is reached at.
  if (!ReadRequest(req, &data) || GidOf(header.source) != event.route.remote) {
    return RejectLane(now, {nic, event.id.value}, RdmRejectReason::kBadRequest);
  }
  if (!HasKey(data, *place.served)) {
    return RejectLane(now, {nic, event.id.value}, RdmRejectReason::kAuthKey);
  }
  CmLane lane;
  lane.place = place.self;
  lane.rq_psn = Psn(static_cast<uint32_t>(random_()));
  lane.reads_max = req.initiator_depth;
  LaneRequest request;
  request.token = place.served->token;
  request.nic = nic;
  request.local = event.route.local;
  request.remote = event.route.remote;
  request.source = header.source;
  request.remote_qpn = req.local_qpn;
  request.first_psn = lane.rq_psn;
  request.path_mtu = req.path_mtu;
  request.traffic_class = req.primary.traffic_class;
  request.hop_limit = req.primary.hop_limit;
  request.flow_label = req.primary.flow_label;
  request.reads_max = req.initiator_depth;
  const CommKey key{nic, event.id.value};
  comm_lanes_[key] = lane;
  place.served->lanes.insert(key);
  lane_orders_.push_back({LaneOrder::Kind::kMake, key.first, key.second, 0, request, {}});
}

void CmCore::RejectLane(Instant now, CommKey key, RdmRejectReason reason) {
  const shm::RdmRejectData data{
      static_cast<uint8_t>(shm::kRdmVersion), static_cast<uint8_t>(reason), {}};
  PrivateData<kRejDataMax> bytes{};
  std::memcpy(bytes.data(), &data, sizeof(data));
  engines_.at(key.first).engine->SendRej(now, CommId{key.second}, RejectReason::kConsumerDefined,
                                         bytes);
}

void CmCore::OnLaneMade(Instant now, uint32_t nic, uint32_t comm, const LaneAnswer& answer) {
  const CommKey key{nic, comm};
  auto found = comm_lanes_.find(key);
  if (found == comm_lanes_.end()) {  // the peer gave up, or the place went
    if (answer.lane != 0) OrderDrop(answer.lane);
    return;
  }
  CmLane& lane = found->second;
  if (answer.reason != RdmRejectReason::kNone) {
    ForgetLane(key);
    RejectLane(now, key, answer.reason);
    return Pump(now);
  }
  lane.lane = answer.lane;
  comm_of_lane_[answer.lane] = key;
  transport::cm::Rep rep;
  rep.local_qpn = answer.qpn;
  rep.starting_psn = lane.rq_psn;
  rep.responder_resources = lane.reads_max;
  rep.target_ack_delay = kAckDelayExp;
  rep.rnr_retry_count = kRnrRetryForever;
  rep.has_srq = true;
  if (engines_.at(nic).engine->SendRep(now, CommId{comm}, rep) != 0) EndLane(now, key);
  Pump(now);
}

void CmCore::OnLaneEnded(Instant now, LaneId lane) {
  auto found = comm_of_lane_.find(lane);
  if (found == comm_of_lane_.end()) return;
  const CommKey key = found->second;
  comm_of_lane_.erase(found);
  comm_lanes_.at(key).lane = 0;
  EndLane(now, key);
  Pump(now);
}

// True: the communication is a lane's.
bool CmCore::OnLaneEvent(Instant now, CommKey key, const EngineEvent& event) {
  auto found = comm_lanes_.find(key);
  if (found == comm_lanes_.end()) return false;
  switch (event.kind) {
    case EventKind::kDreqReceived:
      engines_.at(key.first).engine->SendDrep(now, event.id, {});
      break;
    case EventKind::kRejected:
    case EventKind::kRepTimeout:
    case EventKind::kTimewaitExit:
    case EventKind::kReqTimeout:
      break;
    default:
      return true;  // it is established, or takes its time
  }
  DropLane(found->second.lane);
  ForgetLane(key);
  return true;
}

// The peer has made the lane for it.
void CmCore::OrderSender(CmIdentifier& id) {
  LaneSender sender;
  sender.token = id.sender->token;
  sender.nic = id.place->nic;
  sender.qpn = id.connection.local_qpn;
  Reply rtr{}, rts{};
  // The peer's half is known.
  VERBENA_CHECK(InitQpAttr(id, static_cast<uint32_t>(QpState::kRtr), &rtr) == 0);
  VERBENA_CHECK(InitQpAttr(id, static_cast<uint32_t>(QpState::kRts), &rts) == 0);
  sender.rtr = rtr.qp_attr;
  sender.rts = rts.qp_attr;
  sender.rts.rnr_retry = id.sender->rnr_retry;
  lane_orders_.push_back(
      {LaneOrder::Kind::kConnectSender, sender.nic, id.comm.value, 0, {}, sender});
}

void CmCore::OnSenderConnected(Instant now, uint32_t nic, uint32_t comm, int error) {
  auto found = by_comm_.find({nic, comm});
  CmIdentifier* id = found == by_comm_.end() ? nullptr : Find(found->second);
  if (id == nullptr) return;  // it has gone, or its peer has
  Engine& engine = *EngineOf(*id);
  if (error == 0) {
    if (engine.SendRtu(now, id->comm, {}) == 0) Tell(*id, CmEventType::kEstablished, 0);
    return;
  }
  if (engine.SendRej(now, id->comm, RejectReason::kConsumerDefined, {}) != 0) return;
  ClearComm(*id);
  Tell(*id, CmEventType::kConnectError, -error);
}

bool CmCore::PollLaneOrder(CmService::LaneOrder* out) {
  if (lane_orders_.empty()) return false;
  *out = std::move(lane_orders_.front());
  lane_orders_.pop_front();
  return true;
}

void CmCore::DropLane(LaneId lane) {
  if (lane == 0) return;  // being made: OnLaneMade finds that nobody wants it
  comm_of_lane_.erase(lane);
  OrderDrop(lane);
}

void CmCore::OrderDrop(LaneId lane) {
  lane_orders_.push_back({LaneOrder::Kind::kDrop, 0, 0, lane, {}, {}});
}

void CmCore::ForgetLane(CommKey key) {
  auto found = comm_lanes_.find(key);
  CmIdentifier* place = Find(found->second.place);
  if (place != nullptr && place->served.has_value()) place->served->lanes.erase(key);
  comm_lanes_.erase(found);
}

// The peer is told, as far as it knows of it.
void CmCore::EndLane(Instant now, CommKey key) {
  DropLane(comm_lanes_.at(key).lane);
  ForgetLane(key);
  engines_.at(key.first).engine->Abandon(now, CommId{key.second});
}

void CmCore::EndPlace(Instant now, CmIdentifier& id) {
  if (!id.served.has_value()) return;
  const std::set<CommKey> lanes = id.served->lanes;
  for (const CommKey& key : lanes) EndLane(now, key);
  id.served.reset();
}

}  // namespace verbena::softnic

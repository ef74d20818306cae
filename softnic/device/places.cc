// Places of RDM endpoints, and the lanes that peers have to them (core/shm/rdm.h).
//
// A lane is an RC QP that only receives. It is in its session's table of lanes, where no command
// looks, so that a client can do to it only what the place allows. Connection management asks for
// it (MakeLane), and hears of its end if the device brought that about.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/shm/cm_qp_attr.h"
#include "core/shm/rdm.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic {

using shm::RdmRejectReason;

namespace {

constexpr uint32_t kLanesPerPlace = 16'384;
// 0.16 ms, IBTA 9.7.5.2.8: another message that is going into the same receive takes about as long.
constexpr uint8_t kRnrTimerCode = 8;
constexpr uint32_t kLaneAccess = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

bool IsAddress(const shm::CmAddress& address) {
  return (address.family == AF_INET || address.family == AF_INET6) && address.port != 0;
}

// Of an IPv4 address what does not count is zero, whoever says it.
shm::CmAddress Plain(const shm::CmAddress& address) {
  shm::CmAddress plain{};
  plain.family = address.family;
  plain.port = address.port;
  std::memcpy(plain.addr, address.addr, address.family == AF_INET ? 4 : sizeof(plain.addr));
  return plain;
}

bool IsIdle(const DeviceQp& lane) {
  return lane.held.empty() && lane.waiting.empty() && lane.moves_in_flight == 0;
}

}  // namespace

int DeviceCore::FindPlaceObjects(const Session& session, const shm::CreatePlaceRequest& request,
                                 Place* place) const {
  place->pd = session.pds.Find(request.pd);
  place->srq = session.srqs.Find(request.srq);
  place->cq = session.cqs.Find(request.recv_cq);
  if (place->pd == nullptr || place->srq == nullptr || place->cq == nullptr) return EINVAL;
  if (place->srq->pd != place->pd || place->srq->marked == nullptr) return EINVAL;
  if (place->srq->is_in_error || place->cq->is_in_error) return EINVAL;
  if ((request.access_flags & ~kLaneAccess) != 0) return EINVAL;
  return FindCounters(session, request.read_counter, request.write_counter, &place->counters);
}

int DeviceCore::CreatePlace(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::CreatePlaceRequest>();
  PlaceToken token;
  std::memcpy(token.data(), request.token, token.size());
  if (token == PlaceToken{} || request.lanes_max > kLanesPerPlace) return EINVAL;
  auto owned = std::make_unique<Place>();
  Place* place = owned.get();
  if (int error = FindPlaceObjects(session, request, place); error != 0) return error;
  if (session.places.size() >= shm::kPlacesMax || session.places.IsFull()) return ENOMEM;
  if (!places_.emplace(token, place).second) return EEXIST;
  PeerCounters counters = std::exchange(place->counters, {});
  place->counters.Set(counters);
  place->session = &session;
  place->token = token;
  place->access_flags = request.access_flags;
  place->cookie = request.cookie;
  place->lanes_max = request.lanes_max != 0 ? request.lanes_max : kLanesPerPlace;
  place->handle = session.places.Insert(std::move(owned));
  ++place->pd->users;
  ++place->srq->users;
  ++place->cq->users;
  command.Reply(shm::CreatePlaceReply{place->handle, place->lanes_max});
  return 0;
}

int DeviceCore::DestroyPlace(Command& command) {
  Place* place = command.session->places.Find(command.Request<shm::HandleRequest>().handle);
  if (place == nullptr) return ENOENT;
  Retired retired;
  for (const auto& [id, lane] : place->lanes) TellReceived(*lane);
  RemovePlace(*place, &retired);
  FinishAfterFence(command, std::move(retired));
  return 0;
}

void DeviceCore::RemovePlace(Place& place, Retired* retired) {
  while (!place.lanes.empty()) EndLane(*place.lanes.begin()->second, retired);
  place.counters.Set({});
  --place.pd->users;
  --place.srq->users;
  --place.cq->users;
  places_.erase(place.token);
  place.session->places.Remove(place.handle);
}

int DeviceCore::NameSource(Command& command) {
  auto request = command.Request<shm::NameSourceRequest>();
  Place* place = command.session->places.Find(request.place);
  if (place == nullptr || !IsAddress(request.address)) return EINVAL;
  const uint32_t number = place->sources.NumberOf(Plain(request.address));
  if (number == 0) return ENOMEM;
  place->sources.Name(number);
  command.Reply(shm::HandleReply{number, 0});
  return 0;
}

int DeviceCore::QuerySource(Command& command) {
  auto request = command.Request<shm::QuerySourceRequest>();
  const Place* place = command.session->places.Find(request.place);
  if (place == nullptr) return EINVAL;
  const Sources::Source* source = place->sources.Find(request.source);
  if (source == nullptr) return ENOENT;
  command.Reply(shm::QuerySourceReply{source->address, source->lane != 0 ? 1u : 0u});
  return 0;
}

// --- lanes ---------------------------------------------------------------------------------------

LaneAnswer DeviceCore::MakeLane(Instant now, const LaneRequest& request) {
  AdvanceTo(now);
  auto found = places_.find(request.token);
  LaneAnswer answer;
  if (found == places_.end() || found->second->session->nic->index() != request.nic) {
    answer.reason = RdmRejectReason::kNoPlace;
  } else {
    answer.reason = ConnectLane(*found->second, request, &answer);
  }
  Settle();
  return answer;
}

RdmRejectReason DeviceCore::ConnectLane(Place& place, const LaneRequest& request,
                                        LaneAnswer* answer) {
  if (place.srq->is_in_error || place.cq->is_in_error) return RdmRejectReason::kNoPlace;
  if (!IsAddress(request.source)) return RdmRejectReason::kBadRequest;
  const uint32_t number = place.sources.NumberOf(Plain(request.source));
  if (number == 0) return RdmRejectReason::kNoResources;
  Retired retired;
  // Who connects anew has no use for the lane it had, or was killed and is back.
  if (const LaneId old = place.sources.Find(number)->lane; old != 0) {
    TellReceived(*place.lanes.at(old));
    EndLane(*place.lanes.at(old), &retired);
  }
  if (place.lanes.size() >= place.lanes_max) EndIdlestLane(place, &retired);
  RemoveAfterFence(place.session->id, std::move(retired));
  if (place.lanes.size() >= place.lanes_max) return RdmRejectReason::kNoResources;
  DeviceQp* lane = NewLane(place);
  if (lane == nullptr) return RdmRejectReason::kNoResources;
  if (int error = OpenLane(*lane, request); error != 0) {
    Retired unused;
    RemoveQp(*lane, &unused);
    return RdmRejectReason::kBadRequest;
  }
  lane->lane = lane->self.life;
  lane->source = number;
  lane->last_used = now_;
  place.lanes[lane->lane] = lane;
  lanes_[lane->lane] = lane;
  place.sources.SetLane(number, lane->lane);
  *answer = {RdmRejectReason::kNone, lane->lane, lane->qpn};
  return RdmRejectReason::kNone;
}

// nullptr: a limit.
DeviceQp* DeviceCore::NewLane(Place& place) {
  Session& session = *place.session;
  Nic& nic = *session.nic;
  if (nic.counts.qps >= nic.limits().max_qp || session.lanes.IsFull()) return nullptr;
  auto owned = std::make_unique<DeviceQp>(this);
  DeviceQp* lane = owned.get();
  lane->session = &session;
  lane->nic = &nic;
  lane->pd = place.pd;
  lane->send_cq = lane->recv_cq = place.cq;
  lane->srq = place.srq;
  lane->place = &place;
  transport::QpConfig& config = lane->config;
  config.service = Service::kRc;
  config.has_srq = true;
  config.truncates = place.srq->truncates;
  config.writes_take_no_receive = true;
  config.max_send_wr = config.max_send_sge = 1;  // as little as can be
  config.max_recv_sge = place.srq->max_sge;
  SetNicLimits(nic, &config);
  lane->qpn = nic.qpns.Allocate(lane);
  if (lane->qpn == Qpn{0}) return nullptr;
  config.qpn = lane->qpn;
  lane->handle = session.lanes.Insert(std::move(owned));
  InstallQp(*lane);
  lane->counters.Set(place.counters);
  return lane;
}

int DeviceCore::OpenLane(DeviceQp& lane, const LaneRequest& request) {
  namespace qp_mask = shm::qp_mask;
  shm::ModifyQpRequest modify{};
  modify.attr.qp_state = static_cast<uint32_t>(QpState::kInit);
  modify.attr.port_num = kPortNumber;
  modify.attr.qp_access_flags = lane.place->access_flags;
  modify.mask = qp_mask::kState | qp_mask::kPkeyIndex | qp_mask::kPort | qp_mask::kAccessFlags;
  if (int error = Modify(lane, modify); error != 0) return error;
  shm::AhAttr& ah = modify.attr.ah_attr;
  Gid sgid;
  while (lane.nic->FindGid(GidIndex{ah.sgid_index}, &sgid) && sgid != request.local) {
    ++ah.sgid_index;
  }
  if (sgid != request.local) return EINVAL;
  std::memcpy(ah.dgid, request.remote.raw.data(), sizeof(ah.dgid));
  ah.is_global = 1;
  ah.port_num = kPortNumber;
  ah.hop_limit = request.hop_limit;
  ah.traffic_class = request.traffic_class;
  ah.flow_label = request.flow_label;
  modify.attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
  modify.attr.path_mtu = request.path_mtu;
  modify.attr.dest_qp_num = request.remote_qpn.value;
  modify.attr.rq_psn = request.first_psn.value();
  modify.attr.max_dest_rd_atomic =
      static_cast<uint8_t>(std::min<uint32_t>(request.reads_max, lane.config.max_dest_rd_atomic));
  modify.attr.min_rnr_timer = kRnrTimerCode;
  modify.mask = qp_mask::kState | qp_mask::kAv | qp_mask::kPathMtu | qp_mask::kDestQpn |
                qp_mask::kRqPsn | qp_mask::kMaxDestRdAtomic | qp_mask::kMinRnrTimer;
  return Modify(lane, modify);
}

// Of those that nothing is under way on: one that has failed, or else the one unused longest. Its
// peer is told, and connects anew when it has something to send.
void DeviceCore::EndIdlestLane(Place& place, Retired* retired) {
  DeviceQp* idlest = nullptr;
  for (const auto& [id, lane] : place.lanes) {
    if (!IsIdle(*lane)) continue;
    const bool has_failed = !lane->IsReceiving();
    if (idlest == nullptr || has_failed || lane->last_used < idlest->last_used) idlest = lane;
    if (has_failed) break;
  }
  if (idlest == nullptr) return;
  TellReceived(*idlest);
  EndLane(*idlest, retired);
}

int DeviceCore::ConnectSender(Instant now, const LaneSender& sender) {
  AdvanceTo(now);
  auto found = places_.find(sender.token);
  if (found == places_.end()) return ENOENT;
  const Session& session = *found->second->session;
  DeviceQp* qp = session.nic->qpns.Find(sender.qpn);
  const bool is_its_own = session.nic->index() == sender.nic && qp != nullptr &&
                          qp->session == &session && qp->place == nullptr &&
                          qp->service() == Service::kRc;
  if (!is_its_own) return EINVAL;
  for (const shm::CmQpAttr* attr : {&sender.rtr, &sender.rts}) {
    shm::ModifyQpRequest modify{};
    modify.attr = shm::QpAttrOf(*attr);
    modify.mask = attr->mask;
    if (int error = Modify(*qp, modify); error != 0) return error;
  }
  AfterInput(*qp);  // it begins with what was posted before
  Settle();
  return 0;
}

void DeviceCore::DropLane(Instant now, LaneId id) {
  AdvanceTo(now);
  auto found = lanes_.find(id);
  if (found == lanes_.end()) return;
  DeviceQp& lane = *found->second;
  const SessionId session = lane.session->id;
  Retired retired;
  TellReceived(lane);
  ForgetLane(lane);
  RemoveQp(lane, &retired);
  RemoveAfterFence(session, std::move(retired));
  Settle();
}

// What a lane has acknowledged is told before it goes.
void DeviceCore::TellReceived(DeviceQp& lane) {
  while (lane.transport->PollCompletion(blank_completion_)) PushCompletion(lane);
}

void DeviceCore::ForgetLane(DeviceQp& lane) {
  Place& place = *lane.place;
  place.sources.SetLane(lane.source, 0);
  place.lanes.erase(lane.lane);
  lanes_.erase(lane.lane);
}

void DeviceCore::EndLane(DeviceQp& lane, Retired* retired) {
  const LaneId id = lane.lane;
  ForgetLane(lane);
  RemoveQp(lane, retired);
  if (lane_end_handler_) lane_end_handler_(id);
}

}  // namespace verbena::softnic

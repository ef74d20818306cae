// What programs ask for about connections: rdma_connect, accept, reject, disconnect and their like.
#include <errno.h>

#include <algorithm>
#include <cstring>

#include "softnic/cm/core.h"
#include "softnic/cm/dreq_data.h"

namespace verbena::softnic {
namespace {

using shm::CmConnParam;
using transport::cm::CommId;
using transport::cm::Engine;
using transport::cm::PrivateData;
using transport::cm::RejectReason;
using transport::cm::State;

// IBV_EVENT_COMM_EST.
constexpr uint32_t kEventCommEst = 4;
// RoCE has no LIDs.   Spec: IBTA A16.4.1.2 (permissive)
constexpr uint16_t kPermissiveLid = 0xffff;

template <size_t kBytes>
void CopyData(const CmConnParam& param, size_t at, PrivateData<kBytes>* out) {
  std::memcpy(out->data() + at, param.private_data, param.private_data_len);
}

// Where RDMA IP CM says whose the request is.
template <size_t kBytes>
void PutIpHeader(const CmIdentifier& id, PrivateData<kBytes>* out) {
  EncodeIpHeader({id.source, id.destination}, out->data());
}

transport::cm::Ece EceOf(const CmConnParam& param) {
  return {param.ece_vendor_id & 0xff'ffff, param.ece_options};
}

transport::cm::TransportType TransportTypeOf(uint8_t qp_type) {
  switch (qp_type) {
    case kQpTypeUc:
      return transport::cm::TransportType::kUc;
    case kQpTypeXrcSend:
    case kQpTypeXrcRecv:
      return transport::cm::TransportType::kExtended;
    default:
      return transport::cm::TransportType::kRc;
  }
}

}  // namespace

uint8_t AckTimeoutOf(uint8_t ack_delay_exp, uint8_t life_time_exp) {
  const int there_and_back = life_time_exp + 1;
  int timeout = 0;
  if (there_and_back >= ack_delay_exp) {
    timeout = there_and_back + (ack_delay_exp >= there_and_back - 1 ? 1 : 0);
  } else {
    timeout = ack_delay_exp + (there_and_back >= ack_delay_exp - 1 ? 1 : 0);
  }
  return static_cast<uint8_t>(std::min(timeout, 31));
}

// --- the engine's half of an identifier ----------------------------------------------------------

Engine* CmCore::EngineOf(const CmIdentifier& id) const {
  if (!id.place.has_value()) return nullptr;
  auto found = engines_.find(id.place->nic);
  return found == engines_.end() ? nullptr : found->second.engine.get();
}

State CmCore::StateOf(const CmIdentifier& id) const {
  const Engine* engine = EngineOf(id);
  return engine == nullptr || id.comm.value == 0 ? State::kGone : engine->StateOf(id.comm);
}

void CmCore::SetComm(CmIdentifier& id, CommId comm) {
  id.comm = comm;
  id.has_comm = true;
  by_comm_[{id.place->nic, comm.value}] = id.self;
}

void CmCore::ClearComm(CmIdentifier& id) {
  if (id.comm.value == 0) return;
  by_comm_.erase({id.place->nic, id.comm.value});
  id.comm = {};
}

int CmCore::SetQkey(CmIdentifier& id, QKey qkey) {
  if (id.qkey.value != 0) return id.qkey == qkey ? 0 : EINVAL;
  id.qkey = qkey;
  return 0;
}

// --- the active side -----------------------------------------------------------------------------

int CmCore::Connect(Instant now, CmIdentifier& id, const Request& request) {
  const CmConnParam& param = request.connect.param;
  if (id.state != CmState::kRouteResolved || EngineOf(id) == nullptr) return EINVAL;
  CmSender sender;
  std::copy(std::begin(request.connect.place_token), std::end(request.connect.place_token),
            sender.token.begin());
  id.sender.reset();
  if (sender.token != PlaceToken{}) {
    if (id.port_space != shm::kPortSpaceRdm) return EINVAL;
    sender.rnr_retry = request.connect.qp_rnr_retry;
    id.sender = sender;
  }
  id.connection.local_qpn = Qpn{param.qp_num & 0xff'ffff};
  const int error = id.qp_type == kQpTypeUd ? SendSidrReq(now, id, param) : SendReq(now, id, param);
  if (error == 0) id.state = CmState::kConnect;
  return error;
}

int CmCore::SendReq(Instant now, CmIdentifier& id, const CmConnParam& param) {
  if (param.private_data_len > kReqDataMax) return EINVAL;
  transport::cm::Req req;
  req.service_id = ServiceIdOf(id.port_space, id.destination.port);
  req.local_qpn = id.connection.local_qpn;
  req.responder_resources = param.responder_resources;
  req.initiator_depth = param.initiator_depth;
  req.remote_cm_response_timeout = config_.response_timeout_exp;
  req.local_cm_response_timeout = config_.response_timeout_exp;
  req.max_cm_retries = config_.retry_count_max;
  req.transport_type = TransportTypeOf(id.qp_type);
  if (req.transport_type == transport::cm::TransportType::kExtended)
    req.extended_transport_type = 1;
  req.has_end_to_end_credits = param.flow_control != 0;
  req.starting_psn = id.connection.rq_psn;
  req.retry_count = std::min<uint8_t>(param.retry_count, 7);
  req.rnr_retry_count = std::min<uint8_t>(param.rnr_retry_count, 7);
  req.pkey = PKey{kDefaultPkey};
  req.path_mtu = id.path.mtu;
  req.has_srq = param.srq != 0;
  req.ece = EceOf(param);
  transport::cm::PathFields& path = req.primary;
  path.local_lid = path.remote_lid = kPermissiveLid;
  path.local_gid = id.place->gid;
  path.remote_gid = id.remote_gid;
  path.flow_label = id.path.flow_label;
  path.packet_rate = addresses_.Find(id.place->nic)->rate;
  path.traffic_class = id.path.traffic_class;
  path.hop_limit = id.path.hop_limit;
  path.sl = id.path.sl;
  path.local_ack_timeout = AckTimeoutOf(kAckDelayExp, id.path.life_time_exp);
  PutIpHeader(id, &req.private_data);
  CopyData(param, kIpHeaderBytes, &req.private_data);

  CommId comm;
  int error = EngineOf(id)->SendReq(now, {id.place->gid, id.remote_gid}, req, &comm);
  if (error != 0) return error;
  SetComm(id, comm);
  CmConnection& connection = id.connection;
  connection.responder_resources = param.responder_resources;
  connection.initiator_depth = param.initiator_depth;
  connection.retry_count = req.retry_count;
  connection.path_mtu = id.path.mtu;
  connection.ack_timeout_exp = path.local_ack_timeout;
  return 0;
}

int CmCore::SendSidrReq(Instant now, CmIdentifier& id, const CmConnParam& param) {
  if (param.private_data_len > kSidrReqDataMax) return EINVAL;
  transport::cm::SidrReq req;
  req.pkey = PKey{kDefaultPkey};
  req.service_id = ServiceIdOf(id.port_space, id.destination.port);
  PutIpHeader(id, &req.private_data);
  CopyData(param, kIpHeaderBytes, &req.private_data);
  CommId comm;
  int error =
      EngineOf(id)->SendSidrReq(now, {id.place->gid, id.remote_gid}, req,
                                config_.response_timeout_exp, config_.retry_count_max, &comm);
  if (error == 0) SetComm(id, comm);
  return error;
}

int CmCore::Establish(Instant now, CmIdentifier& id) {
  Engine* engine = EngineOf(id);
  if (id.state != CmState::kConnect || id.qp_type == kQpTypeUd || engine == nullptr) return EINVAL;
  return engine->SendRtu(now, id.comm, {});
}

// --- the passive side ----------------------------------------------------------------------------

int CmCore::Accept(Instant now, CmIdentifier& id, const Request& request) {
  Engine* engine = EngineOf(id);
  if (id.state != CmState::kConnect || engine == nullptr) return EINVAL;
  const State state = StateOf(id);
  if (state == State::kRepRcvd || state == State::kMraRepSent) return Establish(now, id);
  const bool is_asked =
      state == State::kReqRcvd || state == State::kMraReqSent || state == State::kSidrReqRcvd;
  if (!is_asked) return EINVAL;
  const CmConnParam& param = request.connect.param;
  id.connection.local_qpn = Qpn{param.qp_num & 0xff'ffff};
  const bool is_ud = id.qp_type == kQpTypeUd;
  const int error = is_ud ? SendSidrRep(now, id, param) : SendRep(now, id, param);
  if (error == 0) {
    id.cookie = request.connect.cookie;
    id.is_named = true;
    return 0;
  }
  // As Linux: what can't be accepted is rejected.
  if (is_ud) {
    transport::cm::SidrRep rep;
    rep.status = transport::cm::SidrStatus::kRejected;
    if (engine->SendSidrRep(now, id.comm, rep) == 0) ClearComm(id);
  } else if (engine->SendRej(now, id.comm, RejectReason::kConsumerDefined, {}) == 0) {
    ClearComm(id);
  }
  return error;
}

int CmCore::SendRep(Instant now, CmIdentifier& id, const CmConnParam& param) {
  if (param.private_data_len > kRepDataMax) return EINVAL;
  transport::cm::Rep rep;
  rep.local_qpn = id.connection.local_qpn;
  rep.starting_psn = id.connection.rq_psn;
  rep.responder_resources = param.responder_resources;
  rep.initiator_depth = param.initiator_depth;
  rep.target_ack_delay = kAckDelayExp;
  rep.has_end_to_end_credits = param.flow_control != 0;
  rep.rnr_retry_count = std::min<uint8_t>(param.rnr_retry_count, 7);
  rep.has_srq = param.srq != 0;
  rep.ece = EceOf(param);
  CopyData(param, 0, &rep.private_data);
  if (int error = EngineOf(id)->SendRep(now, id.comm, rep); error != 0) return error;
  id.connection.responder_resources = param.responder_resources;
  id.connection.initiator_depth = param.initiator_depth;
  return 0;
}

int CmCore::SendSidrRep(Instant now, CmIdentifier& id, const CmConnParam& param) {
  if (param.private_data_len > kSidrRepDataMax) return EINVAL;
  if (int error = SetQkey(id, QKey{param.qkey == 0 ? kUdpQkey : param.qkey}); error != 0) {
    return error;
  }
  transport::cm::SidrRep rep;
  rep.qpn = id.connection.local_qpn;
  rep.qkey = id.qkey;
  rep.service_id = ServiceIdOf(id.port_space, id.source.port);
  rep.ece = EceOf(param);
  CopyData(param, 0, &rep.private_data);
  int error = EngineOf(id)->SendSidrRep(now, id.comm, rep);
  if (error == 0) ClearComm(id);
  return error;
}

int CmCore::Reject(Instant now, CmIdentifier& id, const Request& request) {
  const auto& reject = request.reject;
  const auto reason =
      reject.reason == 0 ? RejectReason::kConsumerDefined : RejectReason{reject.reason};
  if (reason != RejectReason::kConsumerDefined &&
      reason != RejectReason::kVendorOptionNotSupported) {
    return EINVAL;
  }
  Engine* engine = EngineOf(id);
  if (!id.has_comm || engine == nullptr) return EINVAL;
  int error = 0;
  if (id.qp_type == kQpTypeUd) {
    if (reject.private_data_len > kSidrRepDataMax) return EINVAL;
    transport::cm::SidrRep rep;
    rep.status = transport::cm::SidrStatus::kRejected;
    rep.service_id = ServiceIdOf(id.port_space, id.source.port);
    std::memcpy(rep.private_data.data(), reject.private_data, reject.private_data_len);
    error = engine->SendSidrRep(now, id.comm, rep);
  } else {
    if (reject.private_data_len > kRejDataMax) return EINVAL;
    PrivateData<kRejDataMax> data{};
    std::memcpy(data.data(), reject.private_data, reject.private_data_len);
    error = engine->SendRej(now, id.comm, reason, data);
  }
  if (error == 0) ClearComm(id);
  return error;
}

// --- either side ---------------------------------------------------------------------------------

// Whatever the connection is doing: programs disconnect what has ended already, and what never was.
int CmCore::Disconnect(Instant now, CmIdentifier& id, uint32_t done_psn) {
  Engine* engine = EngineOf(id);
  if (!id.has_comm || engine == nullptr) return EINVAL;
  std::optional<Psn> done;
  if ((done_psn & shm::kCmNamesPsn) != 0) done = Psn(done_psn);
  if (engine->SendDreq(now, id.comm, EncodeDreqData(done)) == 0) {
    id.has_asked_to_disconnect = true;
  } else {
    engine->SendDrep(now, id.comm, {});
  }
  return 0;
}

int CmCore::Notify(Instant now, CmIdentifier& id, uint32_t event) {
  Engine* engine = EngineOf(id);
  if (!id.has_comm || engine == nullptr || event != kEventCommEst) return EINVAL;
  if (StateOf(id) == State::kEstablished) return EISCONN;
  return engine->Establish(now, id.comm);
}

}  // namespace verbena::softnic

// How MSG endpoints connect and accept.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/client/cm_address.h"
#include "core/client/sync.h"
#include "core/shm/cm_qp_attr.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/errors.h"
#include "fi_shim/msg.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

using client::MutexGuard;

MsgEndpoint* ToMsg(fid_ep* fid) { return static_cast<MsgEndpoint*>(ToEndpoint(fid)); }
MsgEndpoint* ToMsg(CmId* id) { return static_cast<MsgEndpoint*>(id->owner); }

// Retries without end: who has no receive buffer yet gets the message when it has.
constexpr uint8_t kRnrRetryForever = 7;
constexpr uint8_t kRetryCount = 7;
// After 0.32 ms a message that found no receive buffer is sent again. IBTA table 45.
constexpr uint8_t kMinRnrTimerCode = 10;

// --- what the program is told
// ---------------------------------------------------------------------

void PostCm(MsgEndpoint* ep, uint32_t event, const CmData& data) {
  alignas(fi_eq_cm_entry) char entry[sizeof(fi_eq_cm_entry) + shm::kCmPrivateDataMax] = {};
  auto* head = reinterpret_cast<fi_eq_cm_entry*>(entry);
  head->fid = &ep->fid.fid;
  if (data.bytes != 0) memcpy(head->data, data.data, data.bytes);
  if (ep->eq != nullptr) Post(ep->eq, event, entry, sizeof(*head) + data.bytes);
}

void PostFailure(MsgEndpoint* ep, int error, int provider, const void* data, size_t bytes) {
  fi_eq_err_entry entry = {};
  entry.fid = &ep->fid.fid;
  entry.context = ep->fid.fid.context;
  entry.err = error;
  entry.prov_errno = provider;
  if (ep->eq != nullptr) PostError(ep->eq, entry, data, bytes);
}

void FailConnecting(MsgEndpoint* ep, int error, int provider, const CmData& data) {
  EndConnection(ep, /*is_told=*/false);
  PostFailure(ep, error, provider, data.data, data.bytes);
}

// --- the QP
// ---------------------------------------------------------------------------------------

int Modify(MsgEndpoint* ep, QpState state) {
  shm::CmRequest request = NewCmRequest(shm::CmOp::kInitQpAttr, ep->id.handle);
  request.number = static_cast<uint32_t>(state);
  shm::CmReply reply;
  if (int error = AskCm(ep->id.channel, request, &reply); error != 0) return error;
  shm::QpAttr attr = shm::QpAttrOf(reply.qp_attr);
  if (state == QpState::kRtr) {
    attr.min_rnr_timer = kMinRnrTimerCode;
    if (const uint8_t tos = TypeOfService(ep); tos != 0) attr.ah_attr.traffic_class = tos;
  } else {
    attr.retry_cnt = kRetryCount;
    attr.rnr_retry = ep->domain->resource_mgmt == FI_RM_DISABLED ? 0 : kRnrRetryForever;
  }
  (state == QpState::kRtr ? ep->rtr : ep->rts) = attr;
  (state == QpState::kRtr ? ep->rtr_mask : ep->rts_mask) = reply.qp_attr.mask;
  return ModifyHwQp(&ep->qp, reply.qp_attr.mask, attr);
}

int ToRts(MsgEndpoint* ep) {
  const int error = Modify(ep, QpState::kRtr);
  return error != 0 ? error : Modify(ep, QpState::kRts);
}

// --- events
// ---------------------------------------------------------------------------------------

bool HasKeyOf(const Endpoint& ep, const uint8_t* key, size_t bytes) {
  const AuthKey own = AuthKeyOf(ep.domain, ep.info->ep_attr);
  return own.bytes == bytes && (bytes == 0 || memcmp(own.key, key, bytes) == 0);
}

void OnConnectResponse(MsgEndpoint* ep, const shm::CmEvent& event) {
  if (ep->state.load() != ConnectionState::kConnecting) return;
  const CmData data = DecodeCmData(event.param.private_data, event.param.private_data_len);
  if (!HasKeyOf(*ep, data.auth_key, data.auth_key_bytes)) {
    shm::CmRequest request = NewCmRequest(shm::CmOp::kReject, ep->id.handle);
    shm::CmReply reply;
    AskCm(ep->id.channel, request, &reply);
    return FailConnecting(ep, FI_ECONNREFUSED, 0, {});
  }
  int error = ToRts(ep);
  if (error == 0) error = AskCm(&ep->id, shm::CmOp::kEstablish);
  if (error != 0) return FailConnecting(ep, -error, 0, {});
  ep->state.store(ConnectionState::kConnected);
  PostCm(ep, FI_CONNECTED, data);
}

// -FI_EINVAL: the peer's address is not known yet.
int ResolveRoute(MsgEndpoint* ep) { return AskCm(&ep->id, shm::CmOp::kResolveRoute, kResolveMs); }

// Where the route is known: asks the peer.
int RequestConnection(MsgEndpoint* ep) {
  shm::CmQuery query;
  const int error = QueryCmId(ep->id.channel, ep->id.handle, &query);
  if (error != 0) return error;
  if (query.nic != ep->domain->nic) return -FI_EHOSTUNREACH;  // only another NIC leads there
  shm::CmRequest request = NewCmRequest(shm::CmOp::kConnect, ep->id.handle);
  request.connect.param = ep->connect_param;
  request.connect.cookie = reinterpret_cast<uintptr_t>(&ep->id);
  shm::CmReply reply;
  return AskCm(ep->id.channel, request, &reply);
}

void OnAddressResolved(MsgEndpoint* ep) {
  if (!std::exchange(ep->awaits_address, false)) return;
  int error = ResolveRoute(ep);
  if (error == 0) error = RequestConnection(ep);
  if (error != 0) FailConnecting(ep, -error, 0, {});
}

void OnEstablished(MsgEndpoint* ep) {
  if (ep->state.load() != ConnectionState::kAccepting) return;
  ep->state.store(ConnectionState::kConnected);
  PostCm(ep, FI_CONNECTED, {});
}

// Whom nobody answers, or refuses.
void OnRefused(MsgEndpoint* ep, const shm::CmEvent& event) {
  const ConnectionState state = ep->state.load();
  if (state == ConnectionState::kConnected) return EndConnection(ep, /*is_told=*/true);
  if (state == ConnectionState::kEnded) return;
  const CmData data = DecodeCmData(event.param.private_data, event.param.private_data_len);
  switch (static_cast<CmEventType>(event.event)) {
    case CmEventType::kRejected: {
      constexpr int kRejectConsumer = 28;  // by a program: the data are its own
      const bool is_by_program = event.status == kRejectConsumer;
      return FailConnecting(ep, FI_ECONNREFUSED, kRejectErrnoBase + event.status,
                            is_by_program ? data : CmData{});
    }
    case CmEventType::kUnreachable:
      return FailConnecting(ep, event.status < 0 ? -event.status : FI_EHOSTUNREACH, 0, {});
    default:
      return FailConnecting(ep, event.status < 0 ? -event.status : FI_ECONNABORTED, 0, {});
  }
}

void OnEvent(CmId* id, const shm::CmEvent& event) {
  MsgEndpoint* ep = ToMsg(id);
  switch (static_cast<CmEventType>(event.event)) {
    case CmEventType::kAddrResolved:
      return OnAddressResolved(ep);
    case CmEventType::kConnectResponse:
      return OnConnectResponse(ep, event);
    case CmEventType::kEstablished:
      return OnEstablished(ep);
    case CmEventType::kDisconnected:
      return EndByPeer(ep, event.peer_psn);
    case CmEventType::kDeviceRemoval:
      return EndConnection(ep, /*is_told=*/true);
    case CmEventType::kRejected:
    case CmEventType::kUnreachable:
    case CmEventType::kAddrError:
    case CmEventType::kRouteError:
    case CmEventType::kConnectError:
      return OnRefused(ep, event);
    default:
      return;  // a route is resolved at once
  }
}

void OnCmDeath(CmId* id) {
  MsgEndpoint* ep = ToMsg(id);
  const bool is_connected = ep->state.load() == ConnectionState::kConnected;
  if (!is_connected && ep->state.load() != ConnectionState::kEnded) {
    return FailConnecting(ep, FI_ENODEV, 0, {});
  }
  EndConnection(ep, /*is_told=*/true);
}

// --- fi_ops_cm
// ------------------------------------------------------------------------------------

int Prepare(MsgEndpoint* ep) {
  if (ep->eq == nullptr && ep->domain->eq == nullptr) return -FI_ENOEQ;
  if (!ep->is_enabled) {
    const int error = fi_enable(&ep->fid);
    if (error != 0) return error;
  }
  if (ep->eq == nullptr) return -FI_ENOEQ;
  ep->id.owner = ep;
  ep->id.on_event = OnEvent;
  ep->id.on_death = OnCmDeath;
  return 0;
}

int FillParam(const MsgEndpoint& ep, const void* data, size_t bytes, size_t room,
              shm::CmConnParam* param) {
  const AuthKey key = AuthKeyOf(ep.domain, ep.info->ep_attr);
  if (bytes != 0 && data == nullptr) return -FI_EINVAL;
  const CmData from = {static_cast<const uint8_t*>(data), bytes, key.key, key.bytes};
  EncodeCmData(from, room, param->private_data);
  param->private_data_len = static_cast<uint8_t>(room);
  param->responder_resources = ep.max_rd_atomic;
  param->initiator_depth = ep.max_rd_atomic;
  param->retry_count = kRetryCount;
  param->rnr_retry_count = kRnrRetryForever;
  param->qp_num = ep.qp.qpn;
  param->srq = 1;
  return 0;
}

// Names its own address and the peer's. As a rule the way between is known at once, and the request
// goes out before this returns; else the host looks for its neighbour first, and an event tells.
// The channel's mutex is held, so that the event comes after.
int Resolve(MsgEndpoint* ep, const void* address) {
  shm::CmRequest request = NewCmRequest(shm::CmOp::kResolveAddr, ep->id.handle);
  if (!client::ToCmAddress(address, &request.resolve.destination)) return -FI_EINVAL;
  if (ep->info->src_addr != nullptr) {
    client::ToCmAddress(ep->info->src_addr, &request.resolve.source);
  }
  request.resolve.timeout_ms = kResolveMs;
  shm::CmReply reply;
  int error = AskCm(ep->id.channel, request, &reply);
  if (error != 0) return error;
  error = ResolveRoute(ep);
  ep->awaits_address = error == -FI_EINVAL;
  if (ep->awaits_address) return 0;
  return error != 0 ? error : RequestConnection(ep);
}

int Connect(fid_ep* fid, const void* address, const void* data, size_t bytes) {
  MsgEndpoint* ep = ToMsg(fid);
  if (address == nullptr) address = ep->info->dest_addr;
  if (address == nullptr || ep->request != nullptr) return -FI_EINVAL;
  if (ep->state.load() == ConnectionState::kEnded) return -FI_EOPBADSTATE;
  if (ep->state.load() != ConnectionState::kNone) return -FI_EISCONN;
  int error = Prepare(ep);
  ep->connect_param = {};
  if (error == 0) error = FillParam(*ep, data, bytes, kRequestDataBytes, &ep->connect_param);
  if (error == 0) error = OpenCmId(&ep->id, ep->channel, kPortSpaceTcp);
  if (error != 0) return error;
  ep->state.store(ConnectionState::kConnecting);  // before the first event
  {
    MutexGuard guard(ep->channel->mutex);
    error = Resolve(ep, address);
  }
  if (error != 0) {
    ep->state.store(ConnectionState::kNone);
    CloseCmId(&ep->id);
  }
  return error;
}

int Accept(fid_ep* fid, const void* data, size_t bytes) {
  MsgEndpoint* ep = ToMsg(fid);
  ConnectionRequest* from = ep->request;
  if (from == nullptr) return -FI_EINVAL;
  if (ep->state.load() == ConnectionState::kEnded) return -FI_ECONNABORTED;  // it was refused
  if (ep->state.load() != ConnectionState::kNone) return -FI_EISCONN;
  if (from->nic != ep->domain->nic) return -FI_EHOSTUNREACH;  // only another NIC leads there
  int error = Prepare(ep);
  shm::CmRequest request = {};
  if (error == 0) error = FillParam(*ep, data, bytes, kReplyDataBytes, &request.connect.param);
  if (error != 0) return error;
  if (!TakeRequest(from)) return -FI_ECONNABORTED;
  const bool is_allowed = HasKeyOf(*ep, from->auth_key, from->auth_key_bytes);
  if (!is_allowed) {
    Reject(from->channel, from->id, nullptr, 0);
    error = -FI_EACCES;
  } else {
    error = AdoptCmId(&ep->id, ep->channel, from->id);
  }
  shm::CmConnParam& param = request.connect.param;
  param.responder_resources = std::min(ep->max_rd_atomic, from->responder_resources);
  param.initiator_depth = std::min(ep->max_rd_atomic, from->initiator_depth);
  if (error == 0) {
    ep->request = nullptr;
    DropRequest(from);
    error = ToRts(ep);
  }
  if (error == 0) {
    ep->state.store(ConnectionState::kAccepting);
    request.op = static_cast<uint32_t>(shm::CmOp::kAccept);
    request.handle = ep->id.handle;
    request.connect.cookie = reinterpret_cast<uintptr_t>(&ep->id);
    shm::CmReply reply;
    error = AskCm(ep->id.channel, request, &reply);
  }
  if (error == -FI_EINVAL) error = -FI_ECONNABORTED;  // the peer has given up
  if (error != 0) {
    ep->state.store(ConnectionState::kEnded);
    CloseCmId(&ep->id);
  }
  return error;
}

int GetName(fid_t fid, void* out, size_t* bytes) {
  auto* ep = static_cast<MsgEndpoint*>(ToEndpoint(fid));
  shm::CmQuery query;
  if (ep->id.handle != 0 && QueryCmId(ep->id.channel, ep->id.handle, &query) == 0 &&
      query.source.family != 0) {
    return CopyName(query.source, out, bytes);
  }
  return CopyName(ep->info->src_addr, ep->info->src_addrlen, out, bytes);
}

int SetName(fid_t fid, void* address, size_t bytes) {
  auto* ep = static_cast<MsgEndpoint*>(ToEndpoint(fid));
  if (ep->state.load() != ConnectionState::kNone) return -FI_EOPBADSTATE;
  return ReplaceSource(ep->info, address, bytes, [] { return 0; });
}

int GetPeer(fid_ep* fid, void* out, size_t* bytes) {
  MsgEndpoint* ep = ToMsg(fid);
  const ConnectionState state = ep->state.load();
  if (state != ConnectionState::kConnected && state != ConnectionState::kAccepting) {
    return -FI_ENOTCONN;
  }
  shm::CmQuery query;
  const int error = QueryCmId(ep->id.channel, ep->id.handle, &query);
  return error != 0 ? error : CopyName(query.destination, out, bytes);
}

}  // namespace

fi_ops_cm msg_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = SetName,
    .getname = GetName,
    .getpeer = GetPeer,
    .connect = Connect,
    .listen = kUnsupported,
    .accept = Accept,
    .reject = kUnsupported,
    .shutdown = ShutDown,
    .join = kUnsupported,
};

}  // namespace verbena::fi

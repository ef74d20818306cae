// Passive endpoints: they listen, and hand out requests for connections.
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/client/cm_address.h"
#include "core/client/sync.h"
#include "fi_shim/address.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/domain.h"
#include "fi_shim/enums.h"
#include "fi_shim/msg.h"
#include "fi_shim/nic_attr.h"
#include "fi_shim/nics.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

using client::MutexGuard;

PassiveEndpoint* ToPassive(fid* fid) { return reinterpret_cast<PassiveEndpoint*>(fid); }

// Guards all lists of requests, and what holds each.
pthread_mutex_t g_requests_mutex = PTHREAD_MUTEX_INITIALIZER;

// --- requests
// -------------------------------------------------------------------------------------

// Makes the listener's info that of the NIC of this index, where it is another. What can't be asked
// changes nothing: who accepts by another NIC's endpoint is refused. False: no memory.
bool DescribeNic(uint32_t index, fi_info* info) {
  std::vector<shm::NicInfo> nics;
  std::string text;
  if (info->domain_attr == nullptr || ListNics(&nics, &text) != 0) return true;
  for (const shm::NicInfo& nic : nics) {
    if (nic.index != index) continue;
    char name[shm::kNicNameBytes + 1] = {};
    memcpy(name, nic.name, sizeof(nic.name));
    const char* own = info->domain_attr->name;
    if (own != nullptr && strcmp(own, name) == 0) return true;
    NicFacts facts;
    if (QueryNic(index, &facts, &text) != 0) return true;
    FreeNic(info->nic);
    info->nic = MakeNic(name, facts.device, facts.port);
    return info->nic != nullptr && MoveToNic(name, LimitsOf(facts.device, facts.port), info);
  }
  return true;
}

// One that listens at all addresses has requests by several NICs. nullptr: no memory.
const fi_info* FindInfo(PassiveEndpoint* listener, uint32_t nic) {
  for (const InfoOfNic& known : listener->infos) {
    if (known.nic == nic) return known.info;
  }
  fi_info* info = CopyInfo(listener->info);
  if (info == nullptr) return nullptr;
  if (DescribeNic(nic, info) && listener->infos.Push({nic, info})) return info;
  FreeInfo(info);
  return nullptr;
}

// From its listener's list. False: it is none that waits. The mutex is held.
bool TakeLocked(ConnectionRequest* request) {
  if (!std::exchange(request->is_waiting, false)) return false;
  if (request->listener == nullptr) return true;
  ConnectionRequest** link = &request->listener->requests;
  while (*link != request) link = &(*link)->next;
  *link = request->next;
  request->listener = nullptr;
  return true;
}

// Whether it has waited. The mutex is held.
bool RejectIfWaiting(ConnectionRequest* request, const void* data = nullptr, size_t bytes = 0) {
  if (!TakeLocked(request)) return false;
  Reject(request->channel, request->id, data, bytes);
  return true;
}

// `change` takes away what held it.
template <typename Change>
void DeleteUnlessHeld(ConnectionRequest* request, Change change) {
  {
    MutexGuard guard(g_requests_mutex);
    change();
    if (request->endpoints != 0 || request->is_in_eq || !request->is_answered) return;
  }
  if (request->owns_channel) GiveChannel(request->channel);
  delete request;
}

// The listener's info, of the NIC that was asked, with who asks and whom.
fi_info* InfoOf(PassiveEndpoint* listener, ConnectionRequest* request) {
  shm::CmQuery query;
  if (QueryCmId(request->channel, request->id, &query) != 0) return nullptr;
  request->nic = query.nic;
  const fi_info* of_nic = FindInfo(listener, query.nic);
  fi_info* info = of_nic == nullptr ? nullptr : CopyInfo(of_nic);
  if (info == nullptr) return nullptr;
  if (fi_domain_attr* domain = info->domain_attr; domain != nullptr && domain->domain == nullptr) {
    domain->domain = domain->name == nullptr ? nullptr : FirstOpen(domain->name);
  }
  sockaddr_in6 local = {}, peer = {};
  client::FromCmAddress(query.source, &local);
  client::FromCmAddress(query.destination, &peer);
  info->handle = &request->fid;
  const bool is_done =
      SetAddress(&info->src_addr, &info->src_addrlen, &local, AddressBytes(&local)) &&
      SetAddress(&info->dest_addr, &info->dest_addrlen, &peer, AddressBytes(&peer));
  if (is_done) return info;
  FreeInfo(info);
  return nullptr;
}

// False: the request can't be told.
bool Tell(PassiveEndpoint* listener, ConnectionRequest* request, const CmData& data) {
  fi_info* info = InfoOf(listener, request);
  if (info == nullptr) return false;
  {
    MutexGuard guard(g_requests_mutex);
    request->listener = listener;
    request->next = listener->requests;
    listener->requests = request;
  }
  alignas(fi_eq_cm_entry) char entry[sizeof(fi_eq_cm_entry) + shm::kCmPrivateDataMax] = {};
  auto* head = reinterpret_cast<fi_eq_cm_entry*>(entry);
  head->fid = &listener->fid.fid;
  head->info = info;
  if (data.bytes != 0) memcpy(head->data, data.data, data.bytes);
  Post(listener->eq, FI_CONNREQ, entry, sizeof(*head) + data.bytes);
  return true;
}

void OnEvent(CmId* id, const shm::CmEvent& event) {
  auto* listener = static_cast<PassiveEndpoint*>(id->owner);
  if (static_cast<CmEventType>(event.event) != CmEventType::kConnectRequest) return;
  const CmData data = DecodeCmData(event.param.private_data, event.param.private_data_len);
  auto* request = new (std::nothrow) ConnectionRequest;
  if (request != nullptr) {
    request->fid.fclass = FI_CLASS_CONNREQ;
    request->channel = listener->channel;
    request->id = event.id;
    request->responder_resources = event.param.responder_resources;
    request->initiator_depth = event.param.initiator_depth;
    if (data.auth_key_bytes <= sizeof(request->auth_key)) {
      request->auth_key_bytes = data.auth_key_bytes;
      if (data.auth_key_bytes != 0) {
        memcpy(request->auth_key, data.auth_key, data.auth_key_bytes);
      }
      if (Tell(listener, request, data)) return;
    }
    delete request;
  }
  Reject(listener->channel, event.id, nullptr, 0);
}

void OnDeath(CmId* id) {
  auto* listener = static_cast<PassiveEndpoint*>(id->owner);
  fi_eq_err_entry entry = {};
  entry.fid = &listener->fid.fid;
  entry.context = listener->fid.fid.context;
  entry.err = FI_ENODEV;
  PostError(listener->eq, entry, nullptr, 0);
}

// --- the endpoint
// ---------------------------------------------------------------------------------

int EnsureBound(PassiveEndpoint* pep) {
  if (pep->id.handle != 0) return 0;
  if (pep->eq == nullptr) return -FI_ENOEQ;
  if (pep->channel == nullptr) {
    const int error = TakeChannel(pep->eq, &pep->channel);
    if (error != 0) return error;
  }
  pep->id.owner = pep;
  pep->id.on_event = OnEvent;
  pep->id.on_death = OnDeath;
  int error = OpenCmId(&pep->id, pep->channel, kPortSpaceTcp);
  if (error != 0) return error;
  shm::CmRequest request = NewCmRequest(shm::CmOp::kBind, pep->id.handle);
  if (pep->info->src_addr == nullptr) {
    request.bind.address.family = AF_INET;
  } else if (!client::ToCmAddress(pep->info->src_addr, &request.bind.address)) {
    error = -FI_EINVAL;
  }
  shm::CmReply reply;
  if (error == 0) error = AskCm(pep->channel, request, &reply);
  if (error != 0) CloseCmId(&pep->id);
  return error;
}

int Listen(fid_pep* fid) {
  PassiveEndpoint* pep = ToPassive(&fid->fid);
  if (pep->is_listening) return -FI_EOPBADSTATE;
  int error = EnsureBound(pep);
  if (error == 0) {
    error = AskCm(&pep->id, shm::CmOp::kListen, static_cast<uint32_t>(pep->backlog));
  }
  pep->is_listening = error == 0;
  return error;
}

int GetName(fid_t fid, void* out, size_t* bytes) {
  PassiveEndpoint* pep = ToPassive(fid);
  if (pep->eq != nullptr) {
    const int error = EnsureBound(pep);
    if (error != 0) return error;
    shm::CmQuery query;
    if (QueryCmId(pep->channel, pep->id.handle, &query) == 0 && query.source.family != 0) {
      return CopyName(query.source, out, bytes);
    }
  }
  return CopyName(pep->info->src_addr, pep->info->src_addrlen, out, bytes);
}

int SetName(fid_t fid, void* address, size_t bytes) {
  PassiveEndpoint* pep = ToPassive(fid);
  if (pep->id.handle != 0) return -FI_EOPBADSTATE;
  // Without an EQ it is bound, and found out to be in use or nobody's, when it listens.
  return ReplaceSource(pep->info, address, bytes,
                       [pep] { return pep->eq == nullptr ? 0 : EnsureBound(pep); });
}

int RejectRequest(fid_pep*, fid_t handle, const void* data, size_t bytes) {
  if (handle == nullptr || handle->fclass != FI_CLASS_CONNREQ) return -FI_EINVAL;
  if (bytes != 0 && data == nullptr) return -FI_EINVAL;
  auto* request = reinterpret_cast<ConnectionRequest*>(handle);
  bool has_waited, is_of_endpoint;
  DeleteUnlessHeld(request, [&] {
    has_waited = RejectIfWaiting(request, data, bytes);
    // An endpoint made of it, that failed before it was accepted, has still to be closed.
    is_of_endpoint = request->endpoints != 0;
    request->is_answered = !is_of_endpoint;
  });
  return has_waited || !is_of_endpoint ? 0 : -FI_EINVAL;
}

int Bind(fid* fid, struct fid* other, uint64_t flags) {
  PassiveEndpoint* pep = ToPassive(fid);
  if (flags != 0) return -FI_EBADFLAGS;
  if (other == nullptr || other->fclass != FI_CLASS_EQ) return -FI_EINVAL;
  auto* eq = reinterpret_cast<Eq*>(other);
  if (pep->eq != nullptr || eq->fabric != pep->fabric) return -FI_EINVAL;
  pep->eq = eq;
  eq->users.fetch_add(1);
  return 0;
}

int Control(fid* fid, int command, void* arg) {
  PassiveEndpoint* pep = ToPassive(fid);
  if (command != FI_BACKLOG) return -FI_ENOSYS;
  if (arg == nullptr || *static_cast<int*>(arg) < 0) return -FI_EINVAL;
  pep->backlog = *static_cast<int*>(arg);
  return 0;
}

// Of a listener that is closed: what the program has read of may still be answered. What it can't
// be, for want of a descriptor, is refused.
void LeaveRequests(PassiveEndpoint* pep) {
  if (pep->requests == nullptr) return;
  CmChannel* channel = nullptr;
  if (TakeChannel(nullptr, &channel) != 0) channel = nullptr;
  {
    MutexGuard guard(g_requests_mutex);
    while (pep->requests != nullptr) {
      ConnectionRequest* request = pep->requests;
      pep->requests = request->next;
      request->listener = nullptr;
      if (channel != nullptr && MoveCmId(request->id, channel) == 0) {
        request->channel = channel;
        request->owns_channel = true;
        ShareChannel(channel);
      } else {
        request->is_waiting = false;
        Reject(request->channel, request->id, nullptr, 0);
      }
    }
  }
  if (channel != nullptr) GiveChannel(channel);
}

int Close(fid* fid) {
  PassiveEndpoint* pep = ToPassive(fid);
  CloseCmId(&pep->id);
  if (pep->eq != nullptr) ForgetEvents(pep->eq, fid);
  LeaveRequests(pep);
  if (pep->channel != nullptr) GiveChannel(pep->channel);
  if (pep->eq != nullptr) pep->eq->users.fetch_sub(1);
  pep->fabric->users.fetch_sub(1);
  for (const InfoOfNic& known : pep->infos) FreeInfo(known.info);
  FreeInfo(pep->info);
  delete pep;
  return 0;
}

int GetOption(fid_t, int level, int name, void* out, size_t* bytes) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE) return -FI_ENOPROTOOPT;
  if (out == nullptr || bytes == nullptr) return -FI_EINVAL;
  const size_t data_bytes = DataRoom(kRequestDataBytes, /*auth_key_bytes=*/0);
  if (*bytes < sizeof(data_bytes)) return -FI_ETOOSMALL;
  memcpy(out, &data_bytes, sizeof(data_bytes));
  *bytes = sizeof(data_bytes);
  return 0;
}

int SetOption(fid_t, int, int, const void*, size_t) { return -FI_ENOPROTOOPT; }

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = Close,
    .bind = Bind,
    .control = Control,
    .ops_open = kUnsupported,
    .tostr = nullptr,
    .ops_set = kUnsupported,
};

fi_ops_ep g_endpoint_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = kUnsupported,
    .getopt = GetOption,
    .setopt = SetOption,
    .tx_ctx = kUnsupported,
    .rx_ctx = kUnsupported,
    .rx_size_left = kUnsupported,
    .tx_size_left = kUnsupported,
};

fi_ops_cm g_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = SetName,
    .getname = GetName,
    .getpeer = kUnsupported,
    .connect = kUnsupported,
    .listen = Listen,
    .accept = kUnsupported,
    .reject = RejectRequest,
    .shutdown = kUnsupported,
    .join = kUnsupported,
};

}  // namespace

int AcquireAddress(PassiveEndpoint* pep, fi_info* info) {
  sockaddr_in6 name = {};
  size_t bytes = sizeof(name);
  const int error = pep->id.handle != 0
                        ? GetName(&pep->fid.fid, &name, &bytes)
                        : CopyName(pep->info->src_addr, pep->info->src_addrlen, &name, &bytes);
  if (error != 0) return 0;  // it has none
  if (!SetAddress(&info->src_addr, &info->src_addrlen, &name, bytes)) return -FI_ENOMEM;
  CloseCmId(&pep->id);
  return 0;
}

bool TakeRequest(ConnectionRequest* request) {
  MutexGuard guard(g_requests_mutex);
  return TakeLocked(request);
}

void HoldRequest(ConnectionRequest* request) {
  MutexGuard guard(g_requests_mutex);
  ++request->endpoints;
}

void DropRequest(ConnectionRequest* request) {
  DeleteUnlessHeld(request, [&] {
    RejectIfWaiting(request);
    request->is_answered = --request->endpoints == 0;
  });
}

void ReleaseRequest(fid_t handle, bool is_read) {
  auto* request = reinterpret_cast<ConnectionRequest*>(handle);
  DeleteUnlessHeld(request, [&] {
    request->is_in_eq = false;
    if (is_read) return;
    if (request->endpoints == 0) RejectIfWaiting(request);
    request->is_answered = true;
  });
}

void Reject(CmChannel* channel, shm::CmHandle id, const void* data, size_t bytes) {
  constexpr uint8_t kRejectConsumer = 28;  // IBTA 12.6.7.2, table 110
  shm::CmRequest request = NewCmRequest(shm::CmOp::kReject, id);
  request.reject.reason = kRejectConsumer;
  EncodeCmData({static_cast<const uint8_t*>(data), bytes, nullptr, 0}, kRejectDataBytes,
               request.reject.private_data);
  request.reject.private_data_len = kRejectDataBytes;
  shm::CmReply reply;
  AskCm(channel, request, &reply);
  AskCm(channel, NewCmRequest(shm::CmOp::kDestroyId, id), &reply);
}

int CopyName(const void* address, size_t address_bytes, void* out, size_t* bytes) {
  if (bytes == nullptr || (out == nullptr && *bytes != 0)) return -FI_EINVAL;
  if (address == nullptr) return -FI_EADDRNOTAVAIL;
  const size_t room = *bytes;
  *bytes = address_bytes;
  memcpy(out, address, room < address_bytes ? room : address_bytes);
  return room < address_bytes ? -FI_ETOOSMALL : 0;
}

int CopyName(const shm::CmAddress& address, void* out, size_t* bytes) {
  sockaddr_in6 name = {};
  client::FromCmAddress(address, &name);
  return CopyName(&name, AddressBytes(&name), out, bytes);
}

int OpenPassiveEndpoint(Fabric* fabric, fi_info* info, fid_pep** out, void* context) {
  if (info->ep_attr != nullptr && NumberOf(info->ep_attr->type) != FI_EP_MSG) return -FI_EINVAL;
  auto* pep = new (std::nothrow) PassiveEndpoint;
  if (pep == nullptr) return -FI_ENOMEM;
  pep->info = CopyInfo(info);
  if (pep->info == nullptr) {
    delete pep;
    return -FI_ENOMEM;
  }
  pep->fabric = fabric;
  fabric->users.fetch_add(1);
  pep->fid.fid.fclass = FI_CLASS_PEP;
  pep->fid.fid.context = context;
  pep->fid.fid.ops = &g_fid_ops;
  pep->fid.ops = &g_endpoint_ops;
  pep->fid.cm = &g_cm_ops;
  *out = &pep->fid;
  return 0;
}

}  // namespace verbena::fi

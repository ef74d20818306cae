// DGRAM endpoints: UD QPs. A peer is a GID and a QPN, which its address says (dgram_address.h).
#include <algorithm>
#include <cstring>
#include <new>

#include "fi_shim/address.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/dgram_address.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/list.h"
#include "fi_shim/msg.h"
#include "fi_shim/protection.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

// Of endpoints without an authorization key: rdma_cm's for UDP (RDMA_UDP_QKEY).
constexpr uint32_t kPlainQkey = 0x0123'4567;
constexpr uint8_t kHopLimit = 64;

struct Way {
  uint8_t gid[16];
  uint32_t ah;
};

struct Target {
  uint32_t ah;  // 0: not looked up yet
  uint32_t qpn;
};

struct DgramEndpoint : Endpoint {
  HwQp qp;
  SockAddress name = {};  // its address
  uint8_t sgid_index = 0;
  uint32_t qkey = 0;
  bool needs_recovery = false;  // a send failed: the QP is in SQE
  List<Way> ways;               // by GID
  List<Target> targets;         // by fi_addr_t
  uint32_t removals = 0;        // of the AV, when the targets were looked up
};

DgramEndpoint* ToDgram(Endpoint* ep) { return static_cast<DgramEndpoint*>(ep); }

// Endpoints of another key do not hear these: a Q_Key that is not theirs is dropped.
uint32_t QkeyOf(const AuthKey& key) {
  if (key.bytes == 0) return kPlainQkey;
  uint32_t hash = 2166136261u;  // FNV-1a
  for (size_t i = 0; i < key.bytes; ++i) hash = (hash ^ key.key[i]) * 16777619u;
  return hash & 0x7fff'ffff;  // the highest bit is for privileged users.  Spec: IBTA 3.5.3
}

// --- the QP
// ---------------------------------------------------------------------------------------

// The GID that its packets come from: that of its address, else the first IPv4 one.
int FindGid(DgramEndpoint* ep) {
  SockAddress wanted = {};
  uint8_t wanted_gid[16];
  bool is_named = false;
  if (ep->info->src_addr != nullptr) {
    memcpy(&wanted, ep->info->src_addr, std::min(sizeof(wanted), ep->info->src_addrlen));
    is_named = GidOf(wanted, &wanted_gid);
  }
  const bool is_wildcard =
      is_named && wanted.sa.sa_family == AF_INET && wanted.in.sin_addr.s_addr == INADDR_ANY;
  shm::PortRequest request = {1, 0};
  for (;;) {
    shm::QueryGidTableReply reply = {};
    const int error = Execute(ep->domain, shm::CommandOp::kQueryGidTable, request, &reply);
    if (error != 0) return error;
    for (uint32_t i = 0; i < std::min(reply.count, shm::kGidEntriesPerReply); ++i) {
      const shm::GidEntry& entry = reply.entries[i];
      Gid gid;
      memcpy(gid.raw.data(), entry.raw, sizeof(entry.raw));
      const bool is_it = is_named && !is_wildcard
                             ? memcmp(entry.raw, wanted_gid, sizeof(wanted_gid)) == 0
                             : gid.IsIpv4Mapped();
      if (!is_it) continue;
      ep->sgid_index = static_cast<uint8_t>(entry.index);
      SetGid(entry.raw, &ep->name);
      return 0;
    }
    if (reply.next_index <= request.index) return -FI_EADDRNOTAVAIL;
    request.index = reply.next_index;
  }
}

int ToRts(DgramEndpoint* ep) {
  shm::QpAttr attr = {};
  attr.qp_state = static_cast<uint32_t>(QpState::kInit);
  attr.port_num = 1;
  attr.qkey = ep->qkey;
  int error = ModifyHwQp(
      &ep->qp,
      shm::qp_mask::kState | shm::qp_mask::kPkeyIndex | shm::qp_mask::kPort | shm::qp_mask::kQkey,
      attr);
  attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
  if (error == 0) error = ModifyHwQp(&ep->qp, shm::qp_mask::kState, attr);
  attr.qp_state = static_cast<uint32_t>(QpState::kRts);
  if (error == 0) {
    error = ModifyHwQp(&ep->qp, shm::qp_mask::kState | shm::qp_mask::kSqPsn, attr);
  }
  return error;
}

int MakeQp(DgramEndpoint* ep) {
  const fi_tx_attr& attr = *ep->info->tx_attr;
  QpSpec spec;
  spec.service = Service::kUd;
  spec.send_cq = ep->tx_hw;
  spec.recv_cq = ep->rx_hw;
  spec.pd = ep->pd;
  spec.srq = ep->receives->srq.handle;
  spec.max_send_wr = static_cast<uint32_t>(std::max<size_t>(attr.size, 1));
  spec.max_send_sge = static_cast<uint32_t>(std::max<size_t>(attr.iov_limit, 1));
  spec.max_inline_bytes = static_cast<uint32_t>(attr.inject_size);
  const int error = CreateHwQp(ep->domain, spec, &ep->qp);
  if (error != 0) return error;
  ep->qp.endpoint = ep;
  ep->receive_qp = ep->qp.handle;
  return ToRts(ep);
}

int Enable(Endpoint* base) {
  DgramEndpoint* ep = ToDgram(base);
  if (ep->receives != nullptr) return -FI_EINVAL;  // a shared context's have no place for a GRH
  ep->qkey = QkeyOf(AuthKeyOf(ep->domain, ep->info->ep_attr));
  int error = FindGid(ep);
  if (error == 0) error = PrepareQueues(ep, ep->info->tx_attr->size, ep->info->rx_attr->size);
  if (error != 0) return error;
  error = MakeQp(ep);
  if (error != 0) {
    DestroyHwQp(&ep->qp);
    ReleaseQueues(ep);
    return error;
  }
  SetQpn(ep->qp.qpn, &ep->name);
  return 0;
}

void ForgetWays(DgramEndpoint* ep) {
  for (const Way& way : ep->ways) {
    const shm::HandleRequest request = {way.ah, 0};
    ep->domain->session->Execute(shm::CommandOp::kDestroyAh, &request, sizeof(request), nullptr, 0);
  }
  ep->ways.Clear();
}

void Destroy(Endpoint* base) {
  DgramEndpoint* ep = ToDgram(base);
  DestroyHwQp(&ep->qp);
  ForgetWays(ep);
  ReleaseQueues(ep);
  Unprotect(ep);
  delete ep;
}

// --- sending
// --------------------------------------------------------------------------------------

int FindWay(DgramEndpoint* ep, const SockAddress& address, uint32_t* ah) {
  shm::CreateAhRequest request = {};
  if (!GidOf(address, &request.attr.dgid)) return -FI_EINVAL;
  for (const Way& way : ep->ways) {
    if (memcmp(way.gid, request.attr.dgid, sizeof(way.gid)) != 0) continue;
    *ah = way.ah;
    return 0;
  }
  request.pd = ep->pd;
  request.attr.is_global = 1;
  request.attr.sgid_index = ep->sgid_index;
  request.attr.hop_limit = kHopLimit;
  request.attr.traffic_class = TypeOfService(ep);
  request.attr.port_num = 1;
  shm::HandleReply reply = {};
  int error = Execute(ep->domain, shm::CommandOp::kCreateAh, request, &reply);
  if (error != 0) return error;
  Way way = {{}, reply.handle};
  memcpy(way.gid, request.attr.dgid, sizeof(way.gid));
  *ah = way.ah;
  return ep->ways.Push(way) ? 0 : -FI_ENOMEM;
}

// The lock is held.
int FindTarget(DgramEndpoint* ep, fi_addr_t addr, Target* out) {
  const uint32_t removals = ep->av->removals();
  if (removals != ep->removals) {
    ep->targets.Clear();
    ep->removals = removals;
  }
  if (addr < ep->targets.size() && ep->targets[addr].ah != 0) {
    *out = ep->targets[addr];
    return 0;
  }
  SockAddress address;
  if (!Lookup(ep->av, addr, &address)) return -FI_EINVAL;
  out->qpn = QpnOf(address);
  if (out->qpn == 0) return -FI_EHOSTUNREACH;
  const int error = FindWay(ep, address, &out->ah);
  if (error != 0) return error;
  while (ep->targets.size() <= addr) {
    if (!ep->targets.Push({0, 0})) return 0;  // it will be looked up again
  }
  ep->targets[addr] = *out;
  return 0;
}

int Recover(DgramEndpoint* ep) {
  shm::QpAttr attr = {};
  attr.qp_state = static_cast<uint32_t>(QpState::kRts);
  attr.cur_qp_state = static_cast<uint32_t>(QpState::kSqe);
  ep->needs_recovery = false;
  return ModifyHwQp(&ep->qp, shm::qp_mask::kState | shm::qp_mask::kCurState, attr);
}

ssize_t Post(Endpoint* base, const SendRequest& wanted) {
  DgramEndpoint* ep = ToDgram(base);
  if ((wanted.flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)) != 0) return -FI_EOPNOTSUPP;
  if (__builtin_expect(ep->domain->session->KnownDead(), 0)) return -FI_ENODEV;
  Guard guard(ep->lock);
  Target target;
  if (int error = FindTarget(ep, wanted.dest, &target); error != 0) {
    // What waits for more (FI_MORE) must not wait for what goes nowhere.
    ep->domain->session->RingDoorbell(ep->qp.doorbell);
    return error;
  }
  if (ep->needs_recovery) Recover(ep);
  SendRequest request = wanted;
  request.ah = target.ah;
  request.remote_qpn = target.qpn;
  request.remote_qkey = ep->qkey;
  return PostToQp(ep, &ep->qp, request);
}

// --- completions
// ----------------------------------------------------------------------------------

void OnSend(Endpoint* base, Operation* operation, const shm::Cqe& cqe) {
  if (cqe.status != 0 && cqe.status != static_cast<uint8_t>(WcStatus::kWrFlushErr)) {
    Guard guard(base->lock);
    ToDgram(base)->needs_recovery = true;
  }
  FinishSend(base, operation, cqe);
}

// Who sent it: the IPv4 header stands in the second half of the GRH's place. Spec: IBTA A17.4.5.2.
SockAddress SourceOf(Endpoint* ep, const Operation& operation, const shm::Cqe& cqe) {
  constexpr size_t kIpv4At = 20, kIpv4SourceAt = 12, kGrhSourceAt = 8;
  const uint8_t* grh = ep->receives->GrhOf(operation);
  SockAddress address = {};
  if (grh[0] >> 4 == 6) {
    SetGid(grh + kGrhSourceAt, &address);
  } else {
    address.in.sin_family = AF_INET;
    memcpy(&address.in.sin_addr, grh + kIpv4At + kIpv4SourceAt, sizeof(address.in.sin_addr));
  }
  SetQpn(cqe.src_qpn, &address);
  return address;
}

void OnReceive(Endpoint* ep, Operation* operation, const shm::Cqe& cqe) {
  if ((ep->info->caps & FI_SOURCE) == 0 || cqe.status != 0) {
    return FinishReceive(ep, operation, cqe, FI_ADDR_NOTAVAIL);
  }
  const SockAddress address = SourceOf(ep, *operation, cqe);
  const fi_addr_t source = FindByAddress(ep->av, address);
  const bool is_told_unknown = (ep->info->caps & FI_SOURCE_ERR) != 0 && source == FI_ADDR_NOTAVAIL;
  FinishReceive(ep, operation, cqe, source, is_told_unknown ? &address : nullptr);
}

void OnDeath(Endpoint* ep, HwCq* hw) {
  if (hw == ep->tx_hw) FlushSends(ep);
  if (hw == ep->rx_hw) FlushReceives(ep);
}

constexpr EndpointKind kDgramKind = {
    .enable = Enable,
    .await_sends = nullptr,
    .destroy = Destroy,
    .post = Post,
    .on_send = OnSend,
    .on_receive = OnReceive,
    .progress = nullptr,
    .before_sleep = nullptr,
    .on_death = OnDeath,
};

// --- names
// ----------------------------------------------------------------------------------------

int GetName(fid_t fid, void* out, size_t* bytes) {
  DgramEndpoint* ep = ToDgram(ToEndpoint(fid));
  if (!ep->is_enabled) return -FI_EOPBADSTATE;  // the QP is what it names
  return CopyName(&ep->name, AddressBytes(&ep->name), out, bytes);
}

int SetName(fid_t fid, void* address, size_t bytes) {
  Endpoint* ep = ToEndpoint(fid);
  if (ep->is_enabled) return -FI_EOPBADSTATE;
  return ReplaceSource(ep->info, address, bytes, [] { return 0; });
}

fi_ops_cm g_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = SetName,
    .getname = GetName,
    .getpeer = kUnsupported,
    .connect = kUnsupported,
    .listen = kUnsupported,
    .accept = kUnsupported,
    .reject = kUnsupported,
    .shutdown = kUnsupported,
    .join = kUnsupported,
};

}  // namespace

int OpenDgramEndpoint(Domain* domain, fi_info* info, fid_ep** out, void* context) {
  auto* ep = new (std::nothrow) DgramEndpoint();
  if (ep == nullptr) return -FI_ENOMEM;
  const int error = OpenEndpoint(domain, info, &kDgramKind, ep, context);
  if (error != 0) {
    delete ep;
    return error;
  }
  ep->fid.cm = &g_cm_ops;
  *out = &ep->fid;
  return 0;
}

}  // namespace verbena::fi

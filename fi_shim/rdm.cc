// RDM endpoints, as libfabric sees them.
#include "fi_shim/rdm.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <new>

#include "core/client/no_cancel.h"
#include "fi_shim/cm_calls.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/linger.h"
#include "fi_shim/protection.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

RdmEndpoint* ToRdm(fid* fid) { return static_cast<RdmEndpoint*>(ToEndpoint(fid)); }

// A message to a new peer waits for a handshake, which begins with a few steps of this machine's.
// Where progress is automatic they are gone through in the call that sends: a program that goes
// away to compute would hold up its own message otherwise. From then on the NIC goes on by itself.
constexpr int kResolvingPatienceMs = 50;

// --- posting
// --------------------------------------------------------------------------------------

// What was posted with FI_MORE waits for what is posted next, wherever that goes, and whether or
// not it can be posted. The lock is held.
void RingHeld(RdmEndpoint* ep) {
  const Lane* lane = ep->held;
  ep->held = nullptr;
  if (lane == nullptr || !lane->MayBeRung()) return;
  ep->domain->session->RingDoorbell(lane->qp.doorbell);
}

ssize_t Post(Endpoint* base, const SendRequest& request) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  client::Session* session = ep->domain->session;
  if (__builtin_expect(session->KnownDead(), 0)) return -FI_ENODEV;
  uint32_t connecting = 0;
  {
    Guard guard(ep->lock);
    Lane* lane = ep->lanes.Find(request.dest);
    if (__builtin_expect(ep->held != nullptr && ep->held != lane, 0)) RingHeld(ep);
    const bool is_ready = lane != nullptr && lane->state == Lane::State::kReady &&
                          ep->seen_removals == ep->av->removals();
    if (__builtin_expect(!is_ready, 0)) {
      RingHeld(ep);
      const int error = LaneTo(ep, request.dest, &lane, &connecting);
      if (error != 0) return error;
      if (lane->state == Lane::State::kDraining) return -FI_EAGAIN;
    }
    Operation* operation = ep->sends.Take();
    int error = operation != nullptr ? FillSendWqe(ep, &lane->qp, request, operation) : -FI_EAGAIN;
    if (error == 0) {
      operation->lane = lane;
      lane->qp.sq.Publish();
    } else if (operation != nullptr) {
      ep->sends.Give(operation);
    }
    ep->held = lane;
    if ((request.flags & FI_MORE) == 0 || error != 0) RingHeld(ep);
    if (error != 0) return error;
  }
  if (connecting != 0 && ep->domain->control_progress != FI_PROGRESS_MANUAL) {
    AwaitResolved(ep, connecting, kResolvingPatienceMs);
  }
  return 0;
}

void OnSend(Endpoint* ep, Operation* operation, const shm::Cqe& cqe) {
  OnLaneCompletion(static_cast<RdmEndpoint*>(ep), operation, cqe);
}

void OnReceive(Endpoint* base, Operation* operation, const shm::Cqe& cqe) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  if ((ep->info->caps & FI_SOURCE) == 0) {
    return FinishReceive(ep, operation, cqe, FI_ADDR_NOTAVAIL);
  }
  SockAddress address;
  const fi_addr_t source = SourceOf(ep, cqe.src_qpn, &address);
  const bool is_told_unknown = (ep->info->caps & FI_SOURCE_ERR) != 0 &&
                               source == FI_ADDR_NOTAVAIL && address.sa.sa_family != 0;
  FinishReceive(ep, operation, cqe, source, is_told_unknown ? &address : nullptr);
}

// --- disabled by an error
// -------------------------------------------------------------------------

void Advance(RdmEndpoint* ep) {
  PumpLanes(ep);
  if (__builtin_expect(ep->must_cancel_receives.exchange(false), 0)) CancelReceives(ep);
}

void OnProgress(Endpoint* ep, HwCq*) { Advance(static_cast<RdmEndpoint*>(ep)); }

void OnDeath(Endpoint* base, HwCq* hw) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  AbandonLanes(ep);
  if (hw == ep->tx_hw) FlushSends(ep);
  if (hw == ep->rx_hw) FlushReceives(ep);
}

// After an error had disabled it: what was outstanding is over, and told.
int EnableAgain(RdmEndpoint* ep) {
  constexpr int kPatienceMs = 1'000;
  Advance(ep);
  for (int waited_ms = 0; ep->lanes_unsettled.load() != 0; ++waited_ms) {
    if (ep->domain->session->KnownDead()) return -FI_ENODEV;
    if (waited_ms == kPatienceMs) return -FI_EBUSY;
    Progress(ep->tx_hw);
    pollfd entry = {ep->cm_fd, POLLIN, 0};
    if (ep->lanes_unsettled.load() != 0) poll(&entry, 1, 1);
  }
  Guard guard(ep->lock);
  ep->is_disabled = false;
  return 0;
}

// --- made and unmade
// ------------------------------------------------------------------------------

int Enable(Endpoint* base) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  client::NoCancel no_cancel;
  if (ep->is_made) return EnableAgain(ep);
  const fi_info& info = *ep->info;
  const uint64_t send_entries = uint64_t{info.tx_attr->size} *
                                (info.tx_attr->rma_iov_limit > 1 ? info.tx_attr->rma_iov_limit : 1);
  int error = BindAddress(ep);
  ep->progress_fd = ep->cm_fd;
  if (error == 0) error = PrepareQueues(ep, send_entries, info.rx_attr->size);
  if (error != 0) return error;
  if ((info.caps & FI_DIRECTED_RECV) != 0 && ep->receives->is_shared) {
    ep->receives->refuses_directed = true;
  } else if ((info.caps & FI_DIRECTED_RECV) != 0) {
    ep->receives->source_of = NumberOfSource;
    ep->receives->source_context = ep;
  }
  error = MakePlace(ep);
  if (error != 0) {
    ReleaseQueues(ep);
    return error;
  }
  ep->is_made = true;
  return 0;
}

// Completions of data that came with WRITEs, which nobody has taken, would lead to it.
void DropWriteCompletions(RdmEndpoint* ep) {
  if (ep->rx_hw == nullptr) return;
  Guard guard(ep->rx_hw->lock);
  ep->rx_hw->ring.Remove(
      [ep](const shm::Cqe& cqe) { return cqe.is_send == 0 && cqe.wr_id == ReceiveIdOf(ep); });
}

// Nobody posts any more, so that lanes stay. What is posted anew after a failure, as nobody reads
// of it here, is not waited for.
void AwaitSends(Endpoint* base) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  if (ep->domain->session->KnownDead()) return;
  const auto may_finish = [ep](const Lane& lane, HwQp* qp) {
    Guard guard(ep->lock);
    RingHeld(ep);
    *qp = lane.qp;
    return lane.MayBeRung() && lane.outstanding() != 0;
  };
  LingerPause pause;
  for (;;) {
    bool waits = false;
    for (Lane* lane = ep->lanes.first(); lane != nullptr; lane = lane->next) {
      HwQp qp;
      if (may_finish(*lane, &qp) && IsWorthWaiting(qp, &lane->linger)) waits = true;
    }
    if (!waits) return;
    pause.Sleep();
    PumpLanes(ep);
  }
}

// While its queues are there another thread may be in its `progress`.
void Destroy(Endpoint* base) {
  auto* ep = static_cast<RdmEndpoint*>(base);
  CloseLanes(ep);
  UnmakePlace(ep);
  DropWriteCompletions(ep);
  ReleaseQueues(ep);
  if (ep->cm_channel != 0) AskCm(ep->cm, shm::CmOp::kDestroyChannel, ep->cm_channel);
  if (ep->cm_fd >= 0) close(ep->cm_fd);
  Unprotect(ep);
  free(ep->sources);
  delete ep;
}

constexpr EndpointKind kRdmKind = {
    .enable = Enable,
    .await_sends = AwaitSends,
    .destroy = Destroy,
    .post = Post,
    .on_send = OnSend,
    .on_receive = OnReceive,
    .progress = OnProgress,
    .before_sleep = nullptr,
    .on_death = OnDeath,
};

// --- its name
// -------------------------------------------------------------------------------------

int SetName(fid_t fid, void* address, size_t bytes) {
  RdmEndpoint* ep = ToRdm(fid);
  if (ep->is_made) return -FI_EOPBADSTATE;
  client::NoCancel no_cancel;
  return ReplaceSource(ep->info, address, bytes, [ep] { return Rebind(ep); });
}

// Its port is reserved when it is first asked for, if not enabled before.
int GetName(fid_t fid, void* address, size_t* bytes) {
  RdmEndpoint* ep = ToRdm(fid);
  if (bytes == nullptr || (address == nullptr && *bytes != 0)) return -FI_EINVAL;
  client::NoCancel no_cancel;
  if (const int error = BindAddress(ep); error != 0) return error;
  const size_t needed =
      ep->address.sa.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const size_t room = *bytes;
  *bytes = needed;
  if (room != 0) memcpy(address, &ep->address, room < needed ? room : needed);
  return room < needed ? -FI_ETOOSMALL : 0;
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

int OpenRdmEndpoint(Domain* domain, fi_info* info, fid_ep** out, void* context) {
  auto* ep = new (std::nothrow) RdmEndpoint();
  if (ep == nullptr) return -FI_ENOMEM;
  const int error = OpenEndpoint(domain, info, &kRdmKind, ep, context);
  if (error != 0) {
    delete ep;
    return error;
  }
  ep->fid.cm = &g_cm_ops;
  *out = &ep->fid;
  return 0;
}

}  // namespace verbena::fi

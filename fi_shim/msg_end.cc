// How connections of MSG endpoints end: by either program, by a failure, or with the daemon.
#include <time.h>

#include <optional>

#include "core/client/no_cancel.h"
#include "core/shm/cm.h"
#include "fi_shim/linger.h"
#include "fi_shim/msg.h"

namespace verbena::fi {
namespace {

void TellShutdown(MsgEndpoint* ep) {
  fi_eq_cm_entry entry = {};
  entry.fid = &ep->fid.fid;
  if (ep->eq != nullptr) Post(ep->eq, FI_SHUTDOWN, &entry, sizeof(entry));
}

bool IsConnected(const MsgEndpoint* ep) { return ep->state.load() == ConnectionState::kConnected; }

// From here on nobody posts, and the QP does nothing more. Returns what it was before; kEnded:
// somebody else is at it.
ConnectionState Stop(MsgEndpoint* ep, std::optional<uint32_t> peer_psn = std::nullopt) {
  const ConnectionState before = ep->state.exchange(ConnectionState::kEnded);
  if (before == ConnectionState::kEnded) return before;
  { Guard guard(ep->lock); }  // who was posting has done so
  if (ep->qp.handle != 0) FailHwQp(&ep->qp, peer_psn);
  return before;
}

void LeaveFlushToReader(MsgEndpoint* ep) {
  ep->must_flush_receives.store(true);
  WakeReceiver(ep);
}

void Flush(MsgEndpoint* ep) {
  if (!IsAlone(ep->domain->threading)) return FlushEnded(ep);
  // By an EQ, or another endpoint's CQ, we are in a thread that is not the one which reads this CQ
  // and posts receives, and their locks are dropped. That one does the rest.
  LeaveFlushToReader(ep);
}

// Of a QP that has stopped. An acknowledgement that was lost will not be sent again: this says what
// it would have.
void Disconnect(MsgEndpoint* ep) {
  shm::QueryQpReply now = {};
  const bool is_known = QueryHwQp(ep->qp, &now) == 0;
  AskCm(&ep->id, shm::CmOp::kDisconnect, is_known ? shm::kCmNamesPsn | now.attr.rq_psn : 0);
}

}  // namespace

int ShutDown(fid_ep* fid, uint64_t flags) {
  auto* ep = static_cast<MsgEndpoint*>(ToEndpoint(fid));
  if (flags != 0) return -FI_EBADFLAGS;
  const ConnectionState state = ep->state.load();
  if (state == ConnectionState::kNone || state == ConnectionState::kConnecting) {
    return -FI_ENOTCONN;
  }
  client::NoCancel no_cancel;
  AwaitSends(ep);
  if (Leave(ep)) Flush(ep);
  return 0;
}

void AwaitSends(Endpoint* base) {
  auto* ep = static_cast<MsgEndpoint*>(base);
  if (!IsConnected(ep) || ep->domain->session->KnownDead()) return;
  {
    Guard guard(ep->lock);
    if (ep->sends.taken() == 0) return;
  }
  ep->domain->session->RingDoorbell(ep->qp.doorbell);  // for what was posted with FI_MORE
  Linger linger;
  LingerPause pause;
  while (IsConnected(ep) && IsWorthWaiting(ep->qp, &linger)) {
    pause.Sleep();
    TryAskChannel(ep->channel);  // the peer may end the connection meanwhile
  }
}

bool Leave(MsgEndpoint* ep) {
  const ConnectionState state = ep->state.load();
  // Before the RTU the NIC refuses; then the identifier's end is a REJ.
  const bool is_asked =
      state == ConnectionState::kConnected || state == ConnectionState::kAccepting;
  if (is_asked && Stop(ep) != ConnectionState::kEnded) {
    Disconnect(ep);
    return true;
  }
  ep->state.store(ConnectionState::kEnded);
  return false;
}

void EndConnection(MsgEndpoint* ep, bool is_told) {
  const ConnectionState before = Stop(ep);
  if (before == ConnectionState::kEnded) return;
  if (before == ConnectionState::kConnected && is_told) TellShutdown(ep);
  Flush(ep);
}

void EndByPeer(MsgEndpoint* ep, uint32_t peer_psn) {
  AskCm(&ep->id, shm::CmOp::kDisconnect);  // the peer waits for the answer
  std::optional<uint32_t> done;
  if ((peer_psn & shm::kCmNamesPsn) != 0) done = peer_psn & ~shm::kCmNamesPsn;
  const ConnectionState before = Stop(ep, done);
  if (before == ConnectionState::kEnded) return;
  if (before == ConnectionState::kConnected) TellShutdown(ep);
  Flush(ep);
}

// The peer is not waited for: its program may be stopped.
void EndFromCompletion(MsgEndpoint* ep) {
  ConnectionState before = ConnectionState::kConnected;
  if (!ep->state.compare_exchange_strong(before, ConnectionState::kEnded)) return;
  { Guard guard(ep->lock); }                           // as in Stop
  ep->domain->session->RingDoorbell(ep->qp.doorbell);  // as in AwaitFlush
  Disconnect(ep);
  TellShutdown(ep);
  LeaveFlushToReader(ep);
}

void FlushEnded(MsgEndpoint* ep) {
  if (ep->qp.handle != 0) {
    AwaitFlush(ep);
    ResetQp(ep);
  }
  // What was cancelled is in the CQ when this returns.
  FlushReceives(ep);
}

void AwaitFlush(MsgEndpoint* ep) {
  constexpr int kPatienceMs = 100;
  constexpr timespec kPeriod = {.tv_sec = 0, .tv_nsec = 100'000};
  // Of what was posted with FI_MORE after the QP had failed the NIC has not heard.
  ep->domain->session->RingDoorbell(ep->qp.doorbell);
  for (int i = 0; i < kPatienceMs * 10; ++i) {
    TakeAll(ep->tx_hw);
    {
      Guard guard(ep->lock);
      if (ep->sends.taken() == 0) return;
    }
    if (ep->domain->session->KnownDead()) return;
    nanosleep(&kPeriod, nullptr);
  }
}

int ResetQp(MsgEndpoint* ep) {
  shm::QpAttr reset = {};
  const int error = ModifyHwQp(&ep->qp, shm::qp_mask::kState, reset);
  FlushSends(ep);
  return error;
}

}  // namespace verbena::fi

// MSG endpoints: opened, enabled, closed; what their QPs complete.
#include "fi_shim/msg.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/client/sync.h"
#include "core/shm/rdm.h"
#include "fi_shim/protection.h"

namespace verbena::fi {
namespace {

MsgEndpoint* ToMsg(Endpoint* ep) { return static_cast<MsgEndpoint*>(ep); }

uint32_t AccessOf(uint64_t caps) {
  uint32_t rights = access::kLocalWrite;
  if ((caps & FI_REMOTE_WRITE) != 0) rights |= access::kRemoteWrite;
  if ((caps & FI_REMOTE_READ) != 0) rights |= access::kRemoteRead;
  return rights;
}

int MakeQp(MsgEndpoint* ep) {
  const fi_tx_attr& attr = *ep->info->tx_attr;
  const auto parts = static_cast<uint32_t>(std::max<size_t>(attr.rma_iov_limit, 1));
  QpSpec spec;
  spec.service = Service::kRc;
  spec.send_cq = ep->tx_hw;
  spec.recv_cq = ep->rx_hw;
  spec.pd = ep->pd;
  spec.srq = ep->receives->srq.handle;
  spec.cookie = ReceiveIdOf(ep);
  spec.max_send_wr = static_cast<uint32_t>(std::max<size_t>(attr.size, 1)) * parts;
  spec.max_send_sge = static_cast<uint32_t>(std::max<size_t>(attr.iov_limit, 1));
  spec.max_inline_bytes = static_cast<uint32_t>(attr.inject_size);
  int error = CreateHwQp(ep->domain, spec, &ep->qp);
  if (error != 0) return error;
  ep->qp.endpoint = ep;
  return InitHwQp(&ep->qp, AccessOf(ep->info->caps));
}

// FI_RMA_EVENT: the NIC counts what the peer does.
int BindCounters(MsgEndpoint* ep) {
  if ((ep->info->caps & FI_RMA_EVENT) == 0) return 0;
  ep->counts_remote_by_nic = true;
  shm::BindQpCounterRequest request = {};
  request.qp = ep->qp.handle;
  int error = CounterOf(ep->cntr_remote_read, &request.read);
  if (error == 0) error = CounterOf(ep->cntr_remote_write, &request.write);
  if (error != 0 || (request.read | request.write) == 0) return error;
  return -ep->domain->session->Execute(shm::CommandOp::kBindQpCounter, &request, sizeof(request),
                                       nullptr, 0);
}

void ForgetQp(MsgEndpoint* ep) {
  if (ep->receives != nullptr && ep->receives->is_shared && ep->receive_qp != 0) {
    UnregisterReceiver(ep->receives, ep);
  }
  ep->receive_qp = 0;
  DestroyHwQp(&ep->qp);
}

int Enable(Endpoint* base) {
  MsgEndpoint* ep = ToMsg(base);
  if (ep->is_disabled) return Resume(ep);
  const fi_tx_attr& attr = *ep->info->tx_attr;
  shm::QueryDeviceReply device = {};
  int error = -ep->domain->session->Execute(shm::CommandOp::kQueryDevice, nullptr, 0, &device,
                                            sizeof(device));
  if (error != 0) return error;
  ep->max_rd_atomic = static_cast<uint8_t>(
      std::min({device.max_qp_rd_atom, device.max_qp_init_rd_atom, uint32_t{UINT8_MAX}}));
  // Who waits for completions alone is told when the connection ends, too.
  if (ep->channel == nullptr && ep->eq != nullptr) {
    error = TakeChannel(ep->eq, &ep->channel);
    if (error != 0) return error;
  }
  if (ep->channel != nullptr) ep->progress_fd = ep->channel->fd;
  const size_t receives =
      ep->receives != nullptr ? ep->receives->operations.size() : ep->info->rx_attr->size;
  error = PrepareQueues(ep, attr.size * std::max<size_t>(attr.rma_iov_limit, 1), receives);
  if (error != 0) return error;
  error = MakeQp(ep);
  if (error == 0) error = BindCounters(ep);
  if (error != 0) {
    ForgetQp(ep);
    ReleaseQueues(ep);
    return error;
  }
  ep->receive_qp = ep->qp.handle;
  if (ep->receives->is_shared) RegisterReceiver(ep->receives, ep);
  return 0;
}

// Another thread that reads one of its CQs may be at it. From here on none begins.
void StopServing(MsgEndpoint* ep) {
  ep->is_closing.store(true);
  for (HwCq* hw : {ep->tx_hw, ep->rx_hw}) {
    if (hw == nullptr) continue;
    Guard guard(hw->members_lock);
  }
}

void Destroy(Endpoint* base) {
  MsgEndpoint* ep = ToMsg(base);
  Leave(ep);
  CloseCmId(&ep->id);
  StopServing(ep);
  if (ep->request != nullptr) DropRequest(ep->request);
  ForgetQp(ep);
  ReleaseQueues(ep);
  if (ep->channel != nullptr) GiveChannel(ep->channel);
  Unprotect(ep);
  delete ep;
}

ssize_t Post(Endpoint* base, const SendRequest& request) {
  MsgEndpoint* ep = ToMsg(base);
  Guard guard(ep->lock);
  // Who ends the connection takes the lock once behind this, and finds all that was posted.
  if (ep->state.load(std::memory_order_relaxed) != ConnectionState::kConnected) {
    return -FI_ENOTCONN;
  }
  if (ep->is_disabled) return -FI_EOPBADSTATE;
  return PostToQp(ep, &ep->qp, request);
}

// After these the QP does nothing more: both ends are told, by FI_SHUTDOWN.
void EndAfterFailure(MsgEndpoint* ep, const shm::Cqe& cqe) {
  const auto status = static_cast<WcStatus>(cqe.status);
  if (status != WcStatus::kSuccess && status != WcStatus::kWrFlushErr) EndFromCompletion(ep);
}

// Whether it was before.
bool Disable(MsgEndpoint* ep) {
  Guard guard(ep->lock);
  ep->is_enabled = false;
  return std::exchange(ep->is_disabled, true);
}

// Without resource management a message that finds no receive buffer disables the endpoint.
void OnSend(Endpoint* base, Operation* operation, const shm::Cqe& cqe) {
  MsgEndpoint* ep = ToMsg(base);
  const bool is_connected = ep->state.load() == ConnectionState::kConnected;
  if (cqe.status == static_cast<uint8_t>(WcStatus::kRnrRetryExcErr) && is_connected) {
    const bool was_disabled = Disable(ep);
    if (!was_disabled) ReportDisabled(ep, FailureOf(*operation, cqe));
  } else {
    EndAfterFailure(ep, cqe);
  }
  FinishSend(ep, operation, cqe);
}

void OnReceive(Endpoint* ep, Operation* operation, const shm::Cqe& cqe) {
  if (cqe.vendor_err != static_cast<uint32_t>(shm::VendorErr::kTruncated)) {
    EndAfterFailure(ToMsg(ep), cqe);
  }
  FinishReceive(ep, operation, cqe, FI_ADDR_NOTAVAIL);
}

// A program that reads completions alone learns by them that the connection has ended.
void OnProgress(Endpoint* base, HwCq* hw) {
  constexpr uint32_t kPollsPerLook = 256;
  MsgEndpoint* ep = ToMsg(base);
  if (__builtin_expect(ep->is_closing.load(std::memory_order_relaxed), 0)) return;
  // seq_cst: pairs with the fence in Wake, of who asks for it.
  if (__builtin_expect(ep->must_flush_receives.load(), 0) && hw == ep->rx_hw) {
    ep->must_flush_receives.store(false);
    FlushEnded(ep);
  }
  // One that another thread's overwrites does not matter.
  const uint32_t polls = ep->polls.load(std::memory_order_relaxed) + 1;
  ep->polls.store(polls, std::memory_order_relaxed);
  if (polls % kPollsPerLook != 0) return;
  const ConnectionState state = ep->state.load(std::memory_order_relaxed);
  if (state == ConnectionState::kConnected) TryAskChannel(ep->channel);
}

// Whatever event it is: the fd is readable until all are told.
void BeforeSleep(Endpoint* base) {
  MsgEndpoint* ep = ToMsg(base);
  if (ep->channel != nullptr && !ep->is_closing.load()) TryAskChannel(ep->channel);
}

// Who ends the connection by the channel's events holds its mutex until all is told.
void OnDeath(Endpoint* base, HwCq* hw) {
  MsgEndpoint* ep = ToMsg(base);
  if (ep->is_closing.load()) return;
  if (ep->channel != nullptr) {
    client::MutexGuard guard(ep->channel->mutex);
    EndConnection(ep, /*is_told=*/true);
  }
  if (hw == ep->tx_hw) FlushSends(ep);
  if (hw != ep->rx_hw) return;
  ep->must_flush_receives.store(false);
  FlushReceives(ep);
}

constexpr EndpointKind kMsgKind = {
    .enable = Enable,
    .await_sends = AwaitSends,
    .destroy = Destroy,
    .post = Post,
    .on_send = OnSend,
    .on_receive = OnReceive,
    .progress = OnProgress,
    .before_sleep = BeforeSleep,
    .on_death = OnDeath,
};

}  // namespace

int Resume(MsgEndpoint* ep) {
  if (ep->state.load() != ConnectionState::kConnected) return -FI_ENOTCONN;
  AwaitFlush(ep);
  shm::QueryQpReply now = {};
  int error = QueryHwQp(ep->qp, &now);
  if (error == 0) error = ResetQp(ep);
  if (error != 0) return error;
  ep->qp.sq.Reset();
  // Each side goes on where the other is: nothing that was sent since has been carried out.
  ep->rtr.rq_psn = now.attr.rq_psn;
  ep->rts.sq_psn = now.attr.sq_psn;
  error = InitHwQp(&ep->qp, AccessOf(ep->info->caps));
  if (error == 0) error = ModifyHwQp(&ep->qp, ep->rtr_mask, ep->rtr);
  if (error == 0) error = ModifyHwQp(&ep->qp, ep->rts_mask, ep->rts);
  if (error != 0) return error;
  Guard guard(ep->lock);
  ep->is_disabled = false;
  return 0;
}

int OpenMsgEndpoint(Domain* domain, fi_info* info, fid_ep** out, void* context) {
  ConnectionRequest* request = nullptr;
  PassiveEndpoint* pep = nullptr;
  if (info->handle != nullptr && info->handle->fclass == FI_CLASS_CONNREQ) {
    request = reinterpret_cast<ConnectionRequest*>(info->handle);
  } else if (info->handle != nullptr && info->handle->fclass == FI_CLASS_PEP) {
    pep = reinterpret_cast<PassiveEndpoint*>(info->handle);
    if (pep->is_listening) return -FI_EINVAL;
  } else if (info->handle != nullptr) {
    return -FI_EINVAL;
  }
  auto* ep = new (std::nothrow) MsgEndpoint();
  if (ep == nullptr) return -FI_ENOMEM;
  int error = OpenEndpoint(domain, info, &kMsgKind, ep, context);
  if (error != 0) {
    delete ep;
    return error;
  }
  ep->fid.cm = &msg_cm_ops;
  if (pep != nullptr && (error = AcquireAddress(pep, ep->info)) != 0) {
    fi_close(&ep->fid.fid);
    return error;
  }
  // The key that goes along may be the domain's.
  ep->cm_data_bytes = DataRoom(kRequestDataBytes, AuthKeyOf(domain, info->ep_attr).bytes);
  ep->request = request;
  if (request != nullptr) HoldRequest(request);
  *out = &ep->fid;
  return 0;
}

}  // namespace verbena::fi

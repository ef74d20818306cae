// What all kinds of endpoints have: their bindings, their queues, their options.
#include "fi_shim/endpoint.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/client/no_cancel.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/host.h"
#include "fi_shim/protection.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

// --- bindings
// -------------------------------------------------------------------------------------

int BindCq(Endpoint* ep, Cq* cq, uint64_t flags) {
  constexpr uint64_t kKnown = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
  if ((flags & ~kKnown) != 0) return -FI_EBADFLAGS;
  if ((flags & (FI_TRANSMIT | FI_RECV)) == 0 || cq->domain != ep->domain) return -FI_EINVAL;
  const bool is_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  if ((flags & FI_TRANSMIT) != 0 && ep->tx_cq != nullptr) return -FI_EINVAL;
  if ((flags & FI_RECV) != 0 && ep->rx_cq != nullptr) return -FI_EINVAL;
  if ((flags & FI_TRANSMIT) != 0) {
    ep->tx_cq = cq;
    ep->tx_selective = is_selective;
    cq->users.fetch_add(1);
  }
  if ((flags & FI_RECV) != 0) {
    ep->rx_cq = cq;
    ep->rx_selective = is_selective;
    cq->users.fetch_add(1);
  }
  return 0;
}

struct CounterPlace {
  uint64_t flag;
  Cntr* Endpoint::*member;
};
constexpr CounterPlace kCounterPlaces[] = {
    {FI_SEND, &Endpoint::cntr_tx},
    {FI_RECV, &Endpoint::cntr_rx},
    {FI_READ, &Endpoint::cntr_read},
    {FI_WRITE, &Endpoint::cntr_write},
    {FI_REMOTE_READ, &Endpoint::cntr_remote_read},
    {FI_REMOTE_WRITE, &Endpoint::cntr_remote_write},
};

int BindCntr(Endpoint* ep, Cntr* cntr, uint64_t flags) {
  uint64_t known = 0;
  for (const CounterPlace& place : kCounterPlaces) known |= place.flag;
  if ((flags & ~known) != 0) return -FI_EBADFLAGS;
  if (flags == 0 || cntr->domain != ep->domain) return -FI_EINVAL;
  // What happens at the target counts where the endpoint was opened with it alone.
  const bool is_of_target = (flags & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0;
  if (is_of_target && (ep->caps & FI_RMA_EVENT) == 0) return -FI_EINVAL;
  for (const CounterPlace& place : kCounterPlaces) {
    if ((flags & place.flag) != 0 && ep->*place.member != nullptr) return -FI_EINVAL;
  }
  for (const CounterPlace& place : kCounterPlaces) {
    if ((flags & place.flag) == 0) continue;
    ep->*place.member = cntr;
    cntr->users.fetch_add(1);
  }
  return 0;
}

int BindEq(Endpoint* ep, Eq* eq) {
  if (ep->eq != nullptr || eq->fabric != ep->domain->fabric) return -FI_EINVAL;
  ep->eq = eq;
  eq->users.fetch_add(1);
  return 0;
}

int BindAv(Endpoint* ep, Av* av) {
  if (ep->av != nullptr || av->domain != ep->domain) return -FI_EINVAL;
  if (ep->info->ep_attr->type == FI_EP_MSG) return -FI_EINVAL;
  ep->av = av;
  av->users.fetch_add(1);
  return 0;
}

int BindSharedReceives(Endpoint* ep, ReceiveContext* receives) {
  if (ep->receives != nullptr || receives->domain != ep->domain) return -FI_EINVAL;
  if (receives->pd != ep->pd) {
    VERBENA_FI_WARN(FI_LOG_EP_CTRL, "shared receives are of the domain's regions and key alone");
    return -FI_EINVAL;
  }
  ep->receives = receives;
  receives->users.fetch_add(1);
  return 0;
}

int Bind(fid* fid, struct fid* other, uint64_t flags) {
  Endpoint* ep = ToEndpoint(fid);
  if (other == nullptr) return -FI_EINVAL;
  if (ep->is_enabled) return -FI_EOPBADSTATE;
  switch (other->fclass) {
    case FI_CLASS_CQ:
      return BindCq(ep, reinterpret_cast<Cq*>(other), flags);
    case FI_CLASS_CNTR:
      return BindCntr(ep, reinterpret_cast<Cntr*>(other), flags);
    case FI_CLASS_EQ:
      return flags != 0 ? -FI_EBADFLAGS : BindEq(ep, reinterpret_cast<Eq*>(other));
    case FI_CLASS_AV:
      return flags != 0 ? -FI_EBADFLAGS : BindAv(ep, reinterpret_cast<Av*>(other));
    case FI_CLASS_SRX_CTX:
      return flags != 0 ? -FI_EBADFLAGS
                        : BindSharedReceives(ep, reinterpret_cast<ReceiveContext*>(other));
    case FI_CLASS_STX_CTX:
      return flags != 0 ? -FI_EBADFLAGS
                        : BindSharedTransmits(ep, reinterpret_cast<TransmitContext*>(other));
    default:
      return -FI_EINVAL;
  }
}

void Unbind(Endpoint* ep) {
  if (ep->tx_cq != nullptr) ep->tx_cq->users.fetch_sub(1);
  if (ep->rx_cq != nullptr) ep->rx_cq->users.fetch_sub(1);
  for (const CounterPlace& place : kCounterPlaces) {
    if (ep->*place.member != nullptr) (ep->*place.member)->users.fetch_sub(1);
  }
  if (ep->av != nullptr) ep->av->users.fetch_sub(1);
  if (ep->receives != nullptr && ep->receives->is_shared) ep->receives->users.fetch_sub(1);
}

// --- control
// --------------------------------------------------------------------------------------

int Enable(Endpoint* ep) {
  if (ep->is_enabled) return -FI_EOPBADSTATE;
  const uint64_t caps = ep->info->caps;
  const bool sends = (caps & (FI_SEND | FI_READ | FI_WRITE)) != 0;
  const bool receives = (caps & FI_RECV) != 0;
  const bool has_tx = ep->tx_cq != nullptr || ep->cntr_tx != nullptr || ep->cntr_read != nullptr ||
                      ep->cntr_write != nullptr;
  const bool has_rx = ep->rx_cq != nullptr || ep->cntr_rx != nullptr;
  if ((sends && !has_tx) || (receives && !has_rx)) return -FI_ENOCQ;
  if (ep->info->ep_attr->type != FI_EP_MSG && ep->av == nullptr) return -FI_ENOAV;
  if (ep->eq == nullptr && ep->domain->eq != nullptr) BindEq(ep, ep->domain->eq);
  const int error = ep->kind->enable(ep);
  if (error == 0) ep->is_enabled = true;
  return error;
}

int Control(fid* fid, int command, void* arg) {
  Endpoint* ep = ToEndpoint(fid);
  switch (command) {
    case FI_ENABLE:
      return Enable(ep);
    case FI_GETOPSFLAG:
      if (arg == nullptr) return -FI_EINVAL;
      return GetOpFlags(ep->tx_op_flags, ep->rx_op_flags, static_cast<uint64_t*>(arg));
    case FI_SETOPSFLAG:
      if (arg == nullptr) return -FI_EINVAL;
      return SetOpFlags(*static_cast<const uint64_t*>(arg), &ep->tx_op_flags, &ep->rx_op_flags);
    case FI_ALIAS:
      return arg == nullptr ? -FI_EINVAL : OpenAlias(ep, static_cast<struct fi_alias*>(arg));
    default:
      return -FI_ENOSYS;
  }
}

int Close(fid* fid) {
  Endpoint* ep = ToEndpoint(fid);
  if (ep->users.load() != 0) return -FI_EBUSY;
  client::NoCancel no_cancel;
  if (ep->kind->await_sends != nullptr) ep->kind->await_sends(ep);
  // What is done already is told: the CQ may outlive its endpoint.
  if (ep->tx_hw != nullptr) Progress(ep->tx_hw);
  if (ep->rx_hw != nullptr && ep->rx_hw != ep->tx_hw) Progress(ep->rx_hw);
  Unbind(ep);
  fi_info* info = ep->info;
  Domain* domain = ep->domain;
  TransmitContext* transmits = ep->transmits;
  Eq* eq = ep->eq;
  ep->kind->destroy(ep);
  if (eq != nullptr) {
    ForgetEvents(eq, fid);
    eq->users.fetch_sub(1);
  }
  // Its pool has given back what it had of it.
  if (transmits != nullptr) transmits->users.fetch_sub(1);
  FreeInfo(info);
  domain->users.fetch_sub(1);
  return 0;
}

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = Close,
    .bind = Bind,
    .control = Control,
    .ops_open = kUnsupported,
    .tostr = nullptr,
    .ops_set = kUnsupported,
};

// --- options
// --------------------------------------------------------------------------------------

int CopyOption(size_t value, void* out, size_t* bytes) {
  if (*bytes < sizeof(value)) return -FI_ETOOSMALL;
  memcpy(out, &value, sizeof(value));
  *bytes = sizeof(value);
  return 0;
}

int GetOption(fid_t fid, int level, int name, void* out, size_t* bytes) {
  const Endpoint* ep = ToEndpoint(fid);
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  if (out == nullptr || bytes == nullptr) return -FI_EINVAL;
  switch (name) {
    case FI_OPT_MIN_MULTI_RECV:
      return CopyOption(ep->min_multi_recv_bytes, out, bytes);
    case FI_OPT_CM_DATA_SIZE:
      return ep->cm_data_bytes == 0 ? -FI_ENOPROTOOPT : CopyOption(ep->cm_data_bytes, out, bytes);
    default:
      return -FI_ENOPROTOOPT;
  }
}

int SetOption(fid_t fid, int level, int name, const void* value, size_t bytes) {
  Endpoint* ep = ToEndpoint(fid);
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (value == nullptr || bytes != sizeof(size_t)) return -FI_EINVAL;
  size_t wanted;
  memcpy(&wanted, value, sizeof(wanted));
  if (wanted > UINT32_MAX) return -FI_EINVAL;
  ep->min_multi_recv_bytes = wanted;
  if (ep->owns_receives) ep->receives->min_multi_recv_bytes = wanted;
  return 0;
}

ssize_t Cancel(fid_t fid, void* context) {
  Endpoint* ep = ToEndpoint(fid);
  if (ep->receives == nullptr || ep->receives->is_shared) return -FI_ENOENT;
  return CancelReceive(ep->receives, ep, context);
}

ssize_t TxSizeLeft(fid_ep* fid) {
  Endpoint* ep = ToEndpoint(fid);
  if (!ep->is_enabled) return -FI_EOPBADSTATE;
  Progress(ep->tx_hw);
  Guard guard(ep->lock);
  return static_cast<ssize_t>(ep->sends.size() - ep->sends.taken());
}

ssize_t RxSizeLeft(fid_ep* fid) {
  Endpoint* ep = ToEndpoint(fid);
  if (!ep->is_enabled || ep->receives == nullptr) return -FI_EOPBADSTATE;
  Progress(ep->rx_hw);
  Guard guard(ep->receives->lock);
  return static_cast<ssize_t>(ep->receives->operations.size() - ep->receives->operations.taken());
}

fi_ops_ep g_endpoint_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = Cancel,
    .getopt = GetOption,
    .setopt = SetOption,
    .tx_ctx = kUnsupported,
    .rx_ctx = kUnsupported,
    .rx_size_left = RxSizeLeft,
    .tx_size_left = TxSizeLeft,
};

}  // namespace

int OpenEndpoint(Domain* domain, const fi_info* info, const EndpointKind* kind, Endpoint* made,
                 void* context) {
  // What a message of FI_MULTI_RECV may leave at least, unless the program says otherwise.
  constexpr size_t kMinMultiRecvBytes = 64;
  const bool is_whole = info->ep_attr != nullptr && info->tx_attr != nullptr &&
                        info->rx_attr != nullptr && info->domain_attr != nullptr;
  if (!is_whole) return -FI_EINVAL;
  if (const char* wrong = CheckEndpoint(domain->api_version, *info, domain->limits);
      wrong != nullptr) {
    VERBENA_FI_WARN(FI_LOG_EP_CTRL, "no endpoint has the %s asked for", wrong);
    return -FI_EINVAL;
  }
  made->domain = domain;
  made->kind = kind;
  made->info = CopyInfo(info);
  if (made->info == nullptr) return -FI_ENOMEM;
  made->info->handle = nullptr;
  if (int error = Protect(made); error != 0) {
    FreeInfo(made->info);
    return error;
  }
  // What a capability implies that is not restricted, too.
  if (info->caps != 0) GrantCaps(info->ep_attr->type, info->caps, &made->info->caps);
  made->caps = made->info->caps;
  made->inject_bytes = info->tx_attr->inject_size;
  made->min_multi_recv_bytes = kMinMultiRecvBytes;
  made->tx_op_flags = info->tx_attr->op_flags;
  made->rx_op_flags = info->rx_attr->op_flags;
  if (domain->threading == FI_THREAD_DOMAIN || domain->threading == FI_THREAD_COMPLETION) {
    made->lock.Elide();
  }
  const bool has_messages = (made->caps & FI_MSG) != 0;
  const bool has_rma = (made->caps & FI_RMA) != 0;
  made->fid.fid.fclass = FI_CLASS_EP;
  made->fid.fid.context = context;
  made->fid.fid.ops = &g_fid_ops;
  made->fid.ops = &g_endpoint_ops;
  made->fid.msg = has_messages ? &message_ops : &no_messages;
  made->fid.rma = has_rma ? &rma_ops : &no_rma;
  made->fid.tagged = &no_tagged;
  made->fid.atomic = &no_atomics;
  made->fid.collective = nullptr;
  domain->users.fetch_add(1);
  return 0;
}

void ReportDisabled(Endpoint* ep, const Failure& failure) {
  if (ep->eq == nullptr) return;
  fi_eq_err_entry entry = {};
  entry.fid = &ep->fid.fid;
  entry.context = ep->fid.fid.context;
  entry.err = failure.error;
  entry.prov_errno = failure.provider;
  PostError(ep->eq, entry, nullptr, 0);
}

// --- queues
// ---------------------------------------------------------------------------------------

namespace {

// The CQ of the NIC where one direction completes, its own where it only counts.
int AcquireHwCq(Endpoint* ep, Cq* cq, bool is_unbounded, uint64_t entries, HwCq** out) {
  if (cq != nullptr) {
    *out = cq->hw;
  } else {
    constexpr uint32_t kEntriesToBegin = 64;
    const int error = OpenHwCq(ep->domain, kEntriesToBegin, /*with_channel=*/true, out);
    if (error != 0) return error;
  }
  const auto more = static_cast<int64_t>(entries);
  int error = is_unbounded ? ReserveForReceives(*out, more) : Reserve(*out, more);
  if (error == 0) {
    error = Join(*out, ep);
    if (error == 0) return 0;
    Reserve(*out, -static_cast<int64_t>(entries));
  }
  if (cq == nullptr) CloseHwCq(*out);
  *out = nullptr;
  return error;
}

void ReleaseHwCq(Endpoint* ep, const Cq* cq, uint64_t entries, HwCq** hw) {
  if (*hw == nullptr) return;
  Leave(*hw, ep);
  Reserve(*hw, -static_cast<int64_t>(entries));
  if (cq == nullptr) CloseHwCq(*hw);
  *hw = nullptr;
}

// Where what a counter counts completes.
HwCq* HwOf(const Endpoint& ep, const CounterPlace& place) {
  constexpr uint64_t kAtReceives = FI_RECV | FI_REMOTE_WRITE | FI_REMOTE_READ;
  return (place.flag & kAtReceives) != 0 ? ep.rx_hw : ep.tx_hw;
}

int WatchAll(Endpoint* ep) {
  for (const CounterPlace& place : kCounterPlaces) {
    if (ep->*place.member == nullptr) continue;
    int error = Watch(ep->*place.member, HwOf(*ep, place));
    if (error != 0) return error;
    if (ep->progress_fd >= 0) error = AddWakeFd(ep->*place.member, ep->progress_fd);
    if (error != 0) {
      Unwatch(ep->*place.member, HwOf(*ep, place));
      return error;
    }
    ep->watched_by |= place.flag;
  }
  return 0;
}

// What WatchAll has done, and no more: other endpoints may have the same counters and CQs.
void UnwatchAll(Endpoint* ep) {
  for (const CounterPlace& place : kCounterPlaces) {
    if ((ep->watched_by & place.flag) == 0) continue;
    if (ep->progress_fd >= 0) RemoveWakeFd(ep->*place.member, ep->progress_fd);
    Unwatch(ep->*place.member, HwOf(*ep, place));
  }
  ep->watched_by = 0;
}

int PrepareReceives(Endpoint* ep) {
  if (ep->receives != nullptr) return 0;  // a shared one
  auto* receives = new (std::nothrow) ReceiveContext();
  if (receives == nullptr) return -FI_ENOMEM;
  receives->domain = ep->domain;
  receives->pd = ep->pd;
  receives->whole_process_lkey = ep->whole_process_lkey;
  receives->min_multi_recv_bytes = ep->min_multi_recv_bytes;
  receives->op_flags = ep->rx_op_flags;
  const fi_rx_attr& attr = *ep->info->rx_attr;
  const int error = InitReceives(receives, ep, attr.size, static_cast<uint32_t>(attr.iov_limit),
                                 /*has_grhs=*/IsDatagram(ep));
  if (error != 0) {
    DeinitReceives(receives);
    delete receives;
    return error;
  }
  ep->receives = receives;
  ep->owns_receives = true;
  return 0;
}

}  // namespace

int PrepareQueues(Endpoint* ep, uint64_t send_entries, uint64_t receive_entries) {
  int error = ep->sends.size() != 0
                  ? 0
                  : ep->sends.Init(ep, nullptr, std::max<size_t>(ep->info->tx_attr->size, 1));
  if (error == 0) error = PrepareReceives(ep);
  if (error == 0)
    error = AcquireHwCq(ep, ep->tx_cq, /*is_unbounded=*/false, send_entries, &ep->tx_hw);
  if (error == 0) {
    ep->send_entries = send_entries;
    // Those of a shared context are reserved once in each CQ.
    if (ep->receives->is_shared) receive_entries = 0;
    // Each datagram takes a receive of its own.
    error = AcquireHwCq(ep, ep->rx_cq, !IsDatagram(ep), receive_entries, &ep->rx_hw);
    if (error == 0) ep->receive_entries = receive_entries;
    if (error == 0 && ep->receives->is_shared) {
      error = ReserveShared(ep->receives, ep->rx_hw);
      ep->has_shared_room = error == 0;
    }
  }
  if (error == 0) error = WatchAll(ep);
  if (error != 0) ReleaseQueues(ep);
  return error;
}

void ReleaseQueues(Endpoint* ep) {
  if (ep->receives != nullptr && ep->receives->is_shared) UnregisterReceiver(ep->receives, ep);
  UnwatchAll(ep);
  if (ep->owns_receives && ep->rx_hw != nullptr) ForgetReceives(ep->rx_hw, ep->receives);
  if (ep->has_shared_room) UnreserveShared(ep->receives, ep->rx_hw);
  ep->has_shared_room = false;
  ReleaseHwCq(ep, ep->tx_cq, ep->send_entries, &ep->tx_hw);
  ReleaseHwCq(ep, ep->rx_cq, ep->receive_entries, &ep->rx_hw);
  ep->send_entries = ep->receive_entries = 0;
  if (ep->owns_receives) {
    DeinitReceives(ep->receives);
    delete ep->receives;
    ep->receives = nullptr;
    ep->owns_receives = false;
  }
}

// --- completions
// ----------------------------------------------------------------------------------

// Data that came with a WRITE take no receive: their completions have the endpoint's own number.
uint64_t ReceiveIdOf(const Endpoint* ep) { return reinterpret_cast<uint64_t>(ep) | 1; }

void OnCompletion(HwCq* hw, const shm::Cqe& cqe) {
  if (IsReceiveId(cqe.wr_id)) {
    auto* target = reinterpret_cast<Endpoint*>(cqe.wr_id & ~uint64_t{1});
    return target->kind->on_receive(target, nullptr, cqe);
  }
  auto* operation = reinterpret_cast<Operation*>(cqe.wr_id);
  Endpoint* ep = operation->endpoint;
  if (cqe.is_send != 0) return ep->kind->on_send(ep, operation, cqe);
  if (ep == nullptr) ep = FindReceiver(operation->receives, ReceiverOf(cqe), hw);
  if (ep != nullptr) return ep->kind->on_receive(ep, operation, cqe);
  ForgetReceive(cqe);  // of an endpoint that was closed meanwhile
}

namespace {

Cntr* CounterOf(const Endpoint& ep, uint64_t flags) {
  if ((flags & FI_READ) != 0) return ep.cntr_read;
  if ((flags & FI_WRITE) != 0) return ep.cntr_write;
  return (flags & FI_RECV) != 0 ? ep.cntr_rx : ep.cntr_tx;
}

// What of an operation is needed once its pool has it back.
struct Ended {
  uint64_t flags;
  bool wants_completion, is_inject;
};

Ended GiveLocked(Endpoint* ep, Operation* operation) {
  const Ended ended = {operation->flags, operation->wants_completion, operation->is_inject};
  ep->sends.Give(operation);
  return ended;
}
Ended Give(Endpoint* ep, Operation* operation) {
  Guard guard(ep->lock);
  return GiveLocked(ep, operation);
}

// Of what was injected nobody has a context to be told of. A connection's end is told by the EQ; of
// endpoints without one, what was flushed with them was.
void TellFailedSend(Endpoint* ep, const Ended& ended, const Failure& failure) {
  CountError(CounterOf(*ep, ended.flags));
  const bool is_connected = ep->info->ep_attr->type == FI_EP_MSG;
  const bool is_known = ended.is_inject && (is_connected || failure.error == FI_ECANCELED);
  if (ep->tx_cq != nullptr && !is_known) Fail(ep->tx_cq, failure);
}

}  // namespace

void Finish(Endpoint* ep, Operation* operation, const Completion& completion) {
  const Ended ended = Give(ep, operation);
  Count(CounterOf(*ep, ended.flags));
  if (ep->tx_cq != nullptr && ended.wants_completion) Complete(ep->tx_cq, completion);
}

void FinishWithError(Endpoint* ep, Operation* operation, const Failure& failure) {
  TellFailedSend(ep, Give(ep, operation), failure);
}

void FinishSend(Endpoint* ep, Operation* operation, const shm::Cqe& cqe) {
  shm::Cqe told = {};
  {
    Guard guard(ep->lock);
    if (cqe.status != 0 && operation->failed_status == 0) {
      operation->failed_status = cqe.status;
      operation->failed_vendor = cqe.vendor_err;
    }
    if (--operation->parts != 0) return;
    told.status = operation->failed_status;
    told.vendor_err = operation->failed_vendor;
  }
  if (told.status != 0) return FinishWithError(ep, operation, FailureOf(*operation, told));
  Completion completion;
  completion.context = operation->context;
  completion.flags = operation->flags;
  Finish(ep, operation, completion);
}

void FlushSends(Endpoint* ep) {
  // What the NIC has completed is told so.
  if (ep->tx_hw != nullptr) TakeAll(ep->tx_hw);
  shm::Cqe flushed = {};
  flushed.status = static_cast<uint8_t>(WcStatus::kWrFlushErr);
  flushed.vendor_err = static_cast<uint32_t>(
      ep->domain->session->KnownDead() ? shm::VendorErr::kDeviceGone : shm::VendorErr::kFlushed);
  for (;;) {
    Failure failure;
    Ended ended;
    {
      Guard guard(ep->lock);
      Operation* operation = ep->sends.Oldest();
      if (operation == nullptr) return;
      failure = FailureOf(*operation, flushed);
      ended = GiveLocked(ep, operation);
    }
    TellFailedSend(ep, ended, failure);
  }
}

}  // namespace verbena::fi

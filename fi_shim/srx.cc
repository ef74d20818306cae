// Shared receive contexts: where several endpoints take their receives from.
#include <algorithm>
#include <cstring>
#include <new>

#include "fi_shim/endpoint.h"
#include "fi_shim/host.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

ReceiveContext* ToContext(fid* fid) { return reinterpret_cast<ReceiveContext*>(fid); }

int Close(fid* fid) {
  ReceiveContext* receives = ToContext(fid);
  if (receives->users.load() != 0) return -FI_EBUSY;
  DeinitReceives(receives);
  receives->domain->users.fetch_sub(1);
  delete receives;
  return 0;
}

// Its completions go to the CQs and counters of the endpoints.
int Bind(fid*, fid*, uint64_t) { return -FI_EINVAL; }

int Control(fid* fid, int command, void* arg) {
  ReceiveContext* receives = ToContext(fid);
  auto* flags = static_cast<uint64_t*>(arg);
  switch (command) {
    case FI_ENABLE:
      return 0;
    case FI_GETOPSFLAG:
      if (flags == nullptr || (*flags & FI_TRANSMIT) != 0) return -FI_EINVAL;
      *flags = receives->op_flags;
      return 0;
    case FI_SETOPSFLAG:
      if (flags == nullptr || (*flags & FI_RECV) == 0) return -FI_EINVAL;
      if ((*flags & ~(FI_RECV | FI_COMPLETION | FI_MULTI_RECV)) != 0) return -FI_EBADFLAGS;
      receives->op_flags = *flags & ~FI_RECV;
      return 0;
    default:
      return -FI_ENOSYS;
  }
}

int GetOption(fid_t fid, int level, int name, void* out, size_t* bytes) {
  const ReceiveContext* receives = ToContext(fid);
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (out == nullptr || bytes == nullptr) return -FI_EINVAL;
  if (*bytes < sizeof(size_t)) return -FI_ETOOSMALL;
  memcpy(out, &receives->min_multi_recv_bytes, sizeof(size_t));
  *bytes = sizeof(size_t);
  return 0;
}

int SetOption(fid_t fid, int level, int name, const void* value, size_t bytes) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (value == nullptr || bytes != sizeof(size_t)) return -FI_EINVAL;
  size_t wanted;
  memcpy(&wanted, value, sizeof(wanted));
  if (wanted > UINT32_MAX) return -FI_EINVAL;
  ToContext(fid)->min_multi_recv_bytes = wanted;
  return 0;
}

ssize_t Cancel(fid_t fid, void* context) { return CancelReceive(ToContext(fid), nullptr, context); }

ssize_t RxSizeLeft(fid_ep* fid) {
  ReceiveContext* receives = ToContext(&fid->fid);
  Guard guard(receives->lock);
  return static_cast<ssize_t>(receives->operations.size() - receives->operations.taken());
}

ssize_t Recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, void* context) {
  ReceiveContext* receives = ToContext(&fid->fid);
  const iovec iov = {buf, len};
  return PostReceive(receives, {&iov, &desc, 1, source, context, receives->op_flags});
}

ssize_t RecvV(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
              void* context) {
  ReceiveContext* receives = ToContext(&fid->fid);
  return PostReceive(receives, {iov, desc, count, source, context, receives->op_flags});
}

ssize_t RecvMsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) {
  if ((flags & ~kReceiveFlags) != 0) return -FI_EBADFLAGS;
  return PostReceive(ToContext(&fid->fid),
                     {msg->msg_iov, msg->desc, msg->iov_count, msg->addr, msg->context, flags});
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

fi_ops_ep g_endpoint_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = Cancel,
    .getopt = GetOption,
    .setopt = SetOption,
    .tx_ctx = kUnsupported,
    .rx_ctx = kUnsupported,
    .rx_size_left = RxSizeLeft,
    .tx_size_left = kUnsupported,
};

fi_ops_msg g_message_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = Recv,
    .recvv = RecvV,
    .recvmsg = RecvMsg,
    .send = kUnsupported,
    .sendv = kUnsupported,
    .sendmsg = kUnsupported,
    .inject = kUnsupported,
    .senddata = kUnsupported,
    .injectdata = kUnsupported,
};

}  // namespace

// A CQ that endpoints of one context share holds what waits in it once.
struct SharedRoom {
  HwCq* hw;
  uint32_t users;
  SharedRoom* next;
};

int ReserveShared(ReceiveContext* receives, HwCq* hw) {
  client::MutexGuard guard(receives->rooms_mutex);
  for (SharedRoom* room = receives->rooms; room != nullptr; room = room->next) {
    if (room->hw != hw) continue;
    ++room->users;
    return 0;
  }
  auto* room = new (std::nothrow) SharedRoom{hw, 1, receives->rooms};
  if (room == nullptr) return -FI_ENOMEM;
  const int error = ReserveForReceives(hw, static_cast<int64_t>(receives->operations.size()));
  if (error != 0) {
    delete room;
    return error;
  }
  receives->rooms = room;
  return 0;
}

void UnreserveShared(ReceiveContext* receives, HwCq* hw) {
  client::MutexGuard guard(receives->rooms_mutex);
  for (SharedRoom** link = &receives->rooms; *link != nullptr; link = &(*link)->next) {
    SharedRoom* room = *link;
    if (room->hw != hw) continue;
    if (--room->users != 0) return;
    *link = room->next;
    delete room;
    // Of the last endpoint's that would have been told of them here.
    ForgetReceives(hw, receives);
    Reserve(hw, -static_cast<int64_t>(receives->operations.size()));
    return;
  }
}

int OpenSharedReceives(Domain* domain, fi_rx_attr* attr, fid_ep** out, void* context) {
  constexpr size_t kDefaultSize = 1024;
  constexpr size_t kDefaultIovLimit = 4;
  constexpr size_t kMinMultiRecvBytes = 64;
  if (attr != nullptr) {
    if (const char* wrong = CheckSharedReceives(*attr, domain->limits); wrong != nullptr) {
      VERBENA_FI_WARN(FI_LOG_EP_CTRL, "no shared receive context has the %s asked for", wrong);
      return -FI_EINVAL;
    }
  }
  auto* receives = new (std::nothrow) ReceiveContext();
  if (receives == nullptr) return -FI_ENOMEM;
  receives->domain = domain;
  receives->pd = domain->pd;
  receives->whole_process_lkey = domain->whole_process_lkey;
  receives->is_shared = true;
  receives->min_multi_recv_bytes = kMinMultiRecvBytes;
  receives->op_flags = attr != nullptr ? attr->op_flags : 0;
  const size_t size = attr != nullptr && attr->size != 0 ? attr->size : kDefaultSize;
  const size_t iov_limit =
      attr != nullptr && attr->iov_limit != 0 ? attr->iov_limit : kDefaultIovLimit;
  const int error =
      InitReceives(receives, nullptr, size, static_cast<uint32_t>(iov_limit), /*has_grhs=*/false);
  if (error != 0) {
    DeinitReceives(receives);
    delete receives;
    return error;
  }
  domain->users.fetch_add(1);
  receives->fid.fid.fclass = FI_CLASS_SRX_CTX;
  receives->fid.fid.context = context;
  receives->fid.fid.ops = &g_fid_ops;
  receives->fid.ops = &g_endpoint_ops;
  receives->fid.msg = &g_message_ops;
  *out = &receives->fid;
  return 0;
}

}  // namespace verbena::fi

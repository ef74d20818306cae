// Aliases of endpoints, and the flags they are for.
#include <new>

#include "fi_shim/endpoint.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

EndpointAlias* ToAlias(fid* fid) { return reinterpret_cast<EndpointAlias*>(fid); }

int Close(fid* fid) {
  EndpointAlias* alias = ToAlias(fid);
  alias->endpoint->users.fetch_sub(1);
  delete alias;
  return 0;
}

int Control(fid* fid, int command, void* arg) {
  EndpointAlias* alias = ToAlias(fid);
  auto* flags = static_cast<uint64_t*>(arg);
  if (command != FI_GETOPSFLAG && command != FI_SETOPSFLAG) return -FI_ENOSYS;
  if (flags == nullptr) return -FI_EINVAL;
  return command == FI_GETOPSFLAG ? GetOpFlags(alias->tx_op_flags, alias->rx_op_flags, flags)
                                  : SetOpFlags(*flags, &alias->tx_op_flags, &alias->rx_op_flags);
}

ssize_t Cancel(fid_t fid, void* context) {
  return fi_cancel(&ToAlias(fid)->endpoint->fid.fid, context);
}
int GetOption(fid_t fid, int level, int name, void* out, size_t* bytes) {
  return fi_getopt(&ToAlias(fid)->endpoint->fid.fid, level, name, out, bytes);
}
int SetOption(fid_t fid, int level, int name, const void* value, size_t bytes) {
  return fi_setopt(&ToAlias(fid)->endpoint->fid.fid, level, name, value, bytes);
}
ssize_t RxSizeLeft(fid_ep* fid) {
  fid_ep* ep = &ToAlias(&fid->fid)->endpoint->fid;
  return ep->ops->rx_size_left(ep);
}
ssize_t TxSizeLeft(fid_ep* fid) {
  fid_ep* ep = &ToAlias(&fid->fid)->endpoint->fid;
  return ep->ops->tx_size_left(ep);
}

int GetName(fid_t fid, void* out, size_t* bytes) {
  return fi_getname(&ToAlias(fid)->endpoint->fid.fid, out, bytes);
}
int GetPeer(fid_ep* fid, void* out, size_t* bytes) {
  return fi_getpeer(&ToAlias(&fid->fid)->endpoint->fid, out, bytes);
}

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = Close,
    .bind = kUnsupported,
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
    .tx_size_left = TxSizeLeft,
};

fi_ops_cm g_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = kUnsupported,
    .getname = GetName,
    .getpeer = GetPeer,
    .connect = kUnsupported,
    .listen = kUnsupported,
    .accept = kUnsupported,
    .reject = kUnsupported,
    .shutdown = kUnsupported,
    .join = kUnsupported,
};

// nullptr: of neither direction, or of both.
const uint64_t* Choose(uint64_t direction, const uint64_t* tx, const uint64_t* rx) {
  direction &= FI_TRANSMIT | FI_RECV;
  if (direction == FI_TRANSMIT) return tx;
  return direction == FI_RECV ? rx : nullptr;
}

}  // namespace

int SetOpFlags(uint64_t wanted, uint64_t* tx_op_flags, uint64_t* rx_op_flags) {
  const uint64_t* flags = Choose(wanted, tx_op_flags, rx_op_flags);
  if (flags == nullptr) return -FI_EINVAL;
  wanted &= ~(FI_TRANSMIT | FI_RECV);
  const bool is_transmit = flags == tx_op_flags;
  const uint64_t known = is_transmit
                             ? FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE |
                                   FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE
                             : FI_COMPLETION | FI_MULTI_RECV;
  if ((wanted & ~known) != 0) return -FI_EBADFLAGS;
  *(is_transmit ? tx_op_flags : rx_op_flags) = wanted;
  return 0;
}

int GetOpFlags(uint64_t tx_op_flags, uint64_t rx_op_flags, uint64_t* flags) {
  const uint64_t* found = Choose(*flags, &tx_op_flags, &rx_op_flags);
  if (found == nullptr) return -FI_EINVAL;
  *flags = *found;
  return 0;
}

int OpenAlias(Endpoint* ep, struct fi_alias* request) {
  auto* alias = new (std::nothrow) EndpointAlias;
  if (alias == nullptr) return -FI_ENOMEM;
  alias->endpoint = ep;
  alias->tx_op_flags = ep->tx_op_flags;
  alias->rx_op_flags = ep->rx_op_flags;
  const int error = SetOpFlags(request->flags, &alias->tx_op_flags, &alias->rx_op_flags);
  if (error != 0) {
    delete alias;
    return error;
  }
  ep->users.fetch_add(1);
  alias->fid = ep->fid;
  alias->fid.fid.ops = &g_fid_ops;
  alias->fid.ops = &g_endpoint_ops;
  alias->fid.cm = &g_cm_ops;
  // What the endpoint does not have, the alias does not have.
  if (ep->fid.msg == &message_ops) alias->fid.msg = &alias_message_ops;
  if (ep->fid.rma == &rma_ops) alias->fid.rma = &alias_rma_ops;
  *request->fid = &alias->fid.fid;
  return 0;
}

}  // namespace verbena::fi

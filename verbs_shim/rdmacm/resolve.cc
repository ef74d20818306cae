// Addresses: bound and resolved, by socket address or by name.
#include <netdb.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

// What of getaddrinfo's codes an errno can say.
int ErrnoOfAddrinfo(int code) {
  switch (code) {
    case -1:
    case EAI_SYSTEM:
      return errno;
    case EAI_MEMORY:
      return ENOMEM;
    case EAI_AGAIN:
      return EAGAIN;
    default:
      return ENOENT;
  }
}

// Names are looked up at once; their event goes through the channel, as the others do.
// 0, or -1 and errno.
int ResolveByName(Id* id, const char* node, const char* service, const rdma_addrinfo* hints) {
  rdma_addrinfo* resolved = nullptr;
  if (int code = GetAddrinfo(node, service, hints, &resolved); code != 0) {
    return Fail(ErrnoOfAddrinfo(code));
  }
  {
    client::ScopedLock lock(&id->mutex);
    id->resolved_addrinfo = resolved;
  }
  shm::CmRequest request = NewRequest(shm::CmOp::kWriteEvent, id->handle);
  request.user.event = shm::kCmEventInternal;
  request.user.arg = static_cast<uint64_t>(kEventAddrinfoResolved);
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) {
    client::ScopedLock lock(&id->mutex);
    id->resolved_addrinfo = nullptr;
    rdma_freeaddrinfo(resolved);
    return Fail(error);
  }
  return AwaitCompletion(id);
}

int ResolveAddrinfo(Id* id, const char* node, const char* service, const rdma_addrinfo* hints) {
  const int flags = hints != nullptr ? hints->ai_flags : 0;
  if ((flags & kRaiSa) == 0) return ResolveByName(id, node, service, hints);
  if ((flags & kRaiDns) != 0 || node != nullptr) return Fail(ENOTSUP);
  if (service == nullptr) return Fail(EINVAL);
  return Fail(EOPNOTSUPP);  // a subnet manager's service records, which RoCE does not have
}

}  // namespace

// Errors: EADDRINUSE; EADDRNOTAVAIL: of no NIC; ENODEV; EINVAL: bound already, or a family that is
// not IP (AF_IB).  Source: rdma_bind_addr(3).
VERBENA_EXPORT int rdma_bind_addr(rdma_cm_id* base, sockaddr* address) {
  Id* id = ToId(base);
  shm::CmRequest request = NewRequest(shm::CmOp::kBind, id->handle);
  if (int error = ToCmAddress(address, &request.bind.address); error != 0) return Fail(error);
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) return Fail(error);
  return Result(QueryId(id, /*with_path=*/false));
}

// Then RDMA_CM_EVENT_ADDR_RESOLVED or ADDR_ERROR.
// Errors: EINVAL: not IP, or resolved already; those of binding to the source.
// Source: rdma_resolve_addr(3).
VERBENA_EXPORT int rdma_resolve_addr(rdma_cm_id* base, sockaddr* source, sockaddr* destination,
                                     int timeout_ms) {
  Id* id = ToId(base);
  shm::CmRequest request = NewRequest(shm::CmOp::kResolveAddr, id->handle);
  int error = ToCmAddress(destination, &request.resolve.destination);
  if (error == 0 && source != nullptr) error = ToCmAddress(source, &request.resolve.source);
  if (error != 0) return Fail(error);
  request.resolve.timeout_ms = static_cast<uint32_t>(timeout_ms);
  shm::CmReply reply;
  error = Ask(id, request, &reply);
  if (error != 0) return Fail(error);
  // Of an asynchronous identifier another thread may be writing the same there already.
  memcpy(&base->route.addr.dst_storage, destination, AddressBytes(destination));
  return AwaitCompletion(id);
}

// Then RDMA_CM_EVENT_ROUTE_RESOLVED or ROUTE_ERROR. Errors: EINVAL: no address was resolved.
// Source: rdma_resolve_route(3).
VERBENA_EXPORT int rdma_resolve_route(rdma_cm_id* base, int timeout_ms) {
  Id* id = ToId(base);
  const int error = Ask(id, shm::CmOp::kResolveRoute, static_cast<uint32_t>(timeout_ms));
  return error != 0 ? Fail(error) : AwaitCompletion(id);
}

// Then RDMA_CM_EVENT_ADDRINFO_RESOLVED. Errors: EBUSY: one is under way, or not yet queried;
// ENOENT: no such name; EAGAIN; ENOTSUP, EOPNOTSUPP: RAI_SA.
// Source: rdma_resolve_addrinfo(3).
VERBENA_EXPORT int rdma_resolve_addrinfo(rdma_cm_id* base, const char* node, const char* service,
                                         const rdma_addrinfo* hints) {
  if (base == nullptr) return Fail(EINVAL);
  Id* id = ToId(base);
  {
    client::ScopedLock lock(&id->mutex);
    if (id->is_resolving_addrinfo) return Fail(EBUSY);
    id->is_resolving_addrinfo = true;
  }
  const int result = ResolveAddrinfo(id, node, service, hints);
  if (result != 0) {
    client::ScopedLock lock(&id->mutex);
    id->is_resolving_addrinfo = false;
  }
  return result;
}

// The caller frees it by rdma_freeaddrinfo. Errors: ENOENT: nothing is resolved.
// Source: rdma_query_addrinfo(3).
VERBENA_EXPORT int rdma_query_addrinfo(rdma_cm_id* base, rdma_addrinfo** info) {
  if (base == nullptr || info == nullptr) return Fail(EINVAL);
  Id* id = ToId(base);
  client::ScopedLock lock(&id->mutex);
  if (!id->is_resolving_addrinfo || id->resolved_addrinfo == nullptr) return Fail(ENOENT);
  *info = id->resolved_addrinfo;
  id->resolved_addrinfo = nullptr;
  id->is_resolving_addrinfo = false;
  return 0;
}

}  // namespace verbena::rdmacm

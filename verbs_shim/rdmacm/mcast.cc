// Multicast groups: joined and left by socket address.
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

void Link(Id* id, Multicast* multicast) {
  client::ScopedLock lock(&id->mutex);
  multicast->next = id->multicasts;
  id->multicasts = multicast;
}

// Takes the membership of this address out of the list; nullptr: none.
Multicast* Unlink(Id* id, const sockaddr* address) {
  const socklen_t bytes = AddressBytes(address);
  client::ScopedLock lock(&id->mutex);
  for (Multicast** link = &id->multicasts; *link != nullptr; link = &(*link)->next) {
    if (memcmp(&(*link)->address, address, bytes) != 0) continue;
    Multicast* found = *link;
    *link = found->next;
    return found;
  }
  return nullptr;
}

void UnlinkThis(Id* id, const Multicast* multicast) {
  client::ScopedLock lock(&id->mutex);
  Multicast** link = &id->multicasts;
  while (*link != multicast) link = &(*link)->next;
  *link = multicast->next;
}

// 0, or -1 and errno.
int Join(rdma_cm_id* base, const sockaddr* address, uint16_t join_flags, void* context) {
  Id* id = ToId(base);
  shm::CmRequest request = NewRequest(shm::CmOp::kJoinMcast, id->handle);
  if (int error = ToCmAddress(address, &request.join.address); error != 0) return Fail(error);
  auto* multicast = static_cast<Multicast*>(calloc(1, sizeof(Multicast)));
  if (multicast == nullptr) return Fail(ENOMEM);
  multicast->id = id;
  multicast->context = context;
  multicast->join_flags = join_flags;
  memcpy(&multicast->address, address, AddressBytes(address));
  Link(id, multicast);
  request.join.cookie = reinterpret_cast<uintptr_t>(multicast);
  request.join.join_flags = join_flags;
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) {
    UnlinkThis(id, multicast);
    free(multicast);
    return Fail(error);
  }
  multicast->handle = reply.handle;
  return AwaitCompletion(id);
}

}  // namespace

// Then RDMA_CM_EVENT_MULTICAST_JOIN or MULTICAST_ERROR; a QP of the identifier is attached.
// Errors: EINVAL: no IP address, or the identifier has no NIC; EADDRNOTAVAIL; ENOMEM.
// Source: rdma_join_multicast(3).
VERBENA_EXPORT int rdma_join_multicast(rdma_cm_id* id, sockaddr* address, void* context) {
  return Join(id, address, RDMA_MC_JOIN_FLAG_FULLMEMBER, context);
}

// Errors: ENOTSUP: a field that is not known; EINVAL: without address or flags, or as above.
// Source: rdma_join_multicast_ex(3).
VERBENA_EXPORT int rdma_join_multicast_ex(rdma_cm_id* id, rdma_cm_join_mc_attr_ex* attr,
                                          void* context) {
  if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED) return Fail(ENOTSUP);
  constexpr uint32_t kBoth = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  if (attr->comp_mask != kBoth || attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) {
    return Fail(EINVAL);
  }
  return Join(id, attr->addr, static_cast<uint16_t>(attr->join_flags), context);
}

// Waits until each event of the membership is acknowledged. Errors: EINVAL; EADDRNOTAVAIL: not
// joined; EIO: it went with the daemon.  Source: rdma_leave_multicast(3).
VERBENA_EXPORT int rdma_leave_multicast(rdma_cm_id* base, sockaddr* address) {
  if (AddressBytes(address) == 0) return Fail(EINVAL);
  Id* id = ToId(base);
  Multicast* multicast = Unlink(id, address);
  if (multicast == nullptr) return Fail(EADDRNOTAVAIL);
  if (base->qp != nullptr && multicast->join_flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER) {
    ibv_detach_mcast(base->qp, &multicast->mgid, multicast->mlid);
  }
  shm::CmReply reply;
  const int error = Ask(id, NewRequest(shm::CmOp::kLeaveMcast, multicast->handle), &reply);
  // Also of a daemon that is gone; in a forked child who had the events may not be there any more.
  if (!id->session->IsForkedCopy()) {
    AwaitAcks(id, &multicast->events_acked, EventsTaken(multicast));
  }
  free(multicast);
  return Result(error);
}

}  // namespace verbena::rdmacm

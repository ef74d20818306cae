// Re-registration, and the region that is no memory.
#include <string.h>

#include <new>

#include "core/client/no_cancel.h"
#include "verbs_shim/memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

constexpr int kKnownChanges =
    IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

// What rdma-core refuses before it asks a driver; the region is as it was.
bool IsValid(const Mr& mr, int flags, ibv_pd* pd, const void* addr, size_t length, int wanted) {
  if (mr.kind != MrKind::kProcess || (flags & ~kKnownChanges) != 0) return false;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0 && (addr == nullptr || length == 0)) {
    return false;
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0 && (pd == nullptr || pd->context != mr.base.context)) {
    return false;
  }
  return wanted == 0 || (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
}

// 0 or errno. `registration`: of the new range.
int Change(Mr* mr, int flags, const ibv_pd* pd, void* addr, size_t length, uint32_t wanted,
           client::Registration* registration) {
  Context* context = ToContext(mr->base.context);
  shm::ReregMrRequest request = {};
  request.mr = mr->base.handle;
  request.changes = static_cast<uint32_t>(flags);
  request.region.access = wanted;
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) request.region.pd = pd->handle;
  int error = 0;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    request.region.addr = reinterpret_cast<uint64_t>(addr);
    request.region.length = length;
    error = client::PrepareRegion(context->session, client::Population::kNow, registration,
                                  &request.region);
  } else if ((wanted & ~mr->access & access::kLocalWrite) != 0) {
    error = client::PopulateForRegistration(mr->base.addr, mr->base.length, /*write=*/true);
  }
  shm::RegMrReply reply = {};
  if (error == 0) {
    error = client::ExecuteWithHelp(context->session, shm::CommandOp::kReregMr, &request,
                                    &request.region, &reply);
  }
  if (error != 0) return error;
  mr->base.lkey = reply.lkey;
  mr->base.rkey = reply.rkey;
  return 0;
}

}  // namespace

// Keys stay. When it returns, nothing of the old range, nor by old rights, is touched any more:
// work under way is done, or fails as if the region had been deregistered. The access given where
// it is not to change must be 0. Returns 0; IBV_REREG_MR_ERR_INPUT with errno EINVAL: no such
// change, or not of this region; IBV_REREG_MR_ERR_CMD with errno, as of ibv_reg_mr: the region is
// still what it was, here. The errors of fork do not occur.
VERBENA_EXPORT int ibv_rereg_mr(ibv_mr* base, int flags, ibv_pd* pd, void* addr, size_t length,
                                int wanted) {
  Mr* mr = ToMr(base);
  client::NoCancel no_cancel;
  if (!IsValid(*mr, flags, pd, addr, length, wanted)) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  auto* registration = moves ? new (std::nothrow) client::Registration() : nullptr;
  const bool changes_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  const uint32_t rights = changes_access ? static_cast<uint32_t>(wanted) : mr->access;
  int error = moves && registration == nullptr
                  ? ENOMEM
                  : Change(mr, flags, pd, addr, length, rights, registration);
  if (error != 0) {
    delete registration;
    Debug("re-registering %zu bytes at %p, changes 0x%x: %s", length, addr, flags, strerror(error));
    errno = error;
    return IBV_REREG_MR_ERR_CMD;
  }
  if (moves) {
    delete mr->registration;
    mr->registration = registration;
    base->addr = addr;
    base->length = length;
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    Use(pd);
    Unuse(base->pd);
    base->pd = pd;
  }
  mr->access = rights;
  return 0;
}

// Reads as zeroes, discards what is written; any address, for its lkey only. nullptr with errno:
// ENOMEM.
ibv_mr* AllocNullMr(ibv_pd* pd) {
  auto* mr = new (std::nothrow) Mr();
  if (mr == nullptr) return Fail<ibv_mr>(ENOMEM);
  shm::RegMrReply reply = {};
  int error = Execute(ToContext(pd->context), shm::CommandOp::kAllocNullMr,
                      shm::HandleRequest{pd->handle, 0}, &reply);
  if (error != 0) {
    delete mr;
    return Fail<ibv_mr>(error);
  }
  return Introduce(mr, MrKind::kNull, pd, SIZE_MAX, reply);
}

}  // namespace verbena::verbs

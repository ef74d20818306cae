// Memory regions.
#include "verbs_shim/memory.h"

#include <string.h>

#include <new>

#include "core/client/no_cancel.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace verbena::verbs {
ibv_mr* RegMr(ibv_pd* pd, void* addr, size_t length, uint64_t iova, uint32_t wanted) {
  Context* context = ToContext(pd->context);
  client::NoCancel no_cancel;
  auto* mr = new (std::nothrow) Mr();
  auto* registration = new (std::nothrow) client::Registration();
  if (mr == nullptr || registration == nullptr) {
    delete mr;
    delete registration;
    return Fail<ibv_mr>(ENOMEM);
  }
  shm::RegMrRequest request = {};
  request.pd = pd->handle;
  request.access = wanted;
  request.addr = reinterpret_cast<uint64_t>(addr);
  request.length = length;
  request.iova = iova;
  shm::RegMrReply reply = {};
  int error =
      client::PrepareRegion(context->session, client::Population::kNow, registration, &request);
  if (error == 0) {
    error = client::ExecuteWithHelp(context->session, shm::CommandOp::kRegMr, &request, &request,
                                    &reply);
  }
  if (error != 0) {
    delete mr;
    delete registration;
    Debug("registering %zu bytes at %p, access 0x%x: %s", length, addr, wanted, strerror(error));
    return Fail<ibv_mr>(error);
  }
  mr->base.addr = addr;
  mr->access = wanted;
  mr->registration = registration;
  return Introduce(mr, MrKind::kProcess, pd, length, reply);
}

// Errors: EFAULT: not mapped, or not writable though LOCAL_WRITE is asked; EINVAL: remote write or
// atomic without local write, an unknown right, no bytes, or the range wraps; EOPNOTSUPP: a right
// this device does not have; ENOMEM.
VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                        unsigned int wanted) {
  return RegMr(pd, addr, length, iova, wanted);
}
VERBENA_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int wanted) {
  return RegMr(pd, addr, length, reinterpret_cast<uint64_t>(addr), static_cast<uint32_t>(wanted));
}
VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                       int wanted) {
  return RegMr(pd, addr, length, iova, static_cast<uint32_t>(wanted));
}

// Errors: EBUSY while a memory window is bound to it.
VERBENA_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  int error = ExecuteDestroy(ToContext(mr->context), shm::CommandOp::kDeregMr, mr->handle);
  if (error != 0) return error;
  Unuse(mr->pd);
  if (ToMr(mr)->dmah != nullptr) ToMr(mr)->dmah->users.fetch_sub(1);
  delete ToMr(mr)->registration;
  delete ToMr(mr);
  return 0;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_reg_mr);
VERBENA_VERSION_1_1(ibv_dereg_mr);

// Protection domains, thread domains, and parent domains, which join them.
//
// The NIC knows protection domains only. A parent domain has the handle of its own, and so is one
// to every verb; what it adds stands here.
#include <new>

#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {

VERBENA_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* base) {
  auto* pd = new (std::nothrow) Pd();
  if (pd == nullptr) return Fail<ibv_pd>(ENOMEM);
  shm::HandleReply reply = {};
  int error = ExecuteEmpty(ToContext(base), shm::CommandOp::kAllocPd, &reply);
  if (error != 0) {
    delete pd;
    return Fail<ibv_pd>(error);
  }
  pd->base.context = base;
  pd->base.handle = reply.handle;
  return &pd->base;
}

// Also of a parent domain.  Errors: EBUSY while an object uses it.
VERBENA_EXPORT int ibv_dealloc_pd(ibv_pd* base) {
  Pd* pd = ToPd(base);
  if (pd->users.load() != 0) return EBUSY;
  if (pd->parent_of != nullptr) {
    ToPd(pd->parent_of)->users.fetch_sub(1);
    if (pd->td != nullptr) pd->td->users.fetch_sub(1);
  } else {
    int error = ExecuteDestroy(ToContext(base->context), shm::CommandOp::kDeallocPd, base->handle);
    if (error != 0) return error;
  }
  delete pd;
  return 0;
}

// nullptr with errno: EINVAL: an unknown bit in comp_mask; ENOMEM.
ibv_td* AllocTd(ibv_context* context, ibv_td_init_attr* attr) {
  if (attr->comp_mask != 0) return Fail<ibv_td>(EINVAL);
  auto* td = new (std::nothrow) Td();
  if (td == nullptr) return Fail<ibv_td>(ENOMEM);
  td->base.context = context;
  return &td->base;
}

// Errors: EBUSY while a parent domain has it.
int DeallocTd(ibv_td* td) {
  if (ToTd(td)->users.load() != 0) return EBUSY;
  delete ToTd(td);
  return 0;
}

// nullptr with errno: EINVAL: no PD, a PD or TD of another context, an unknown bit in comp_mask;
// EOPNOTSUPP: allocators; ENOMEM.
ibv_pd* AllocParentDomain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  constexpr uint32_t kKnownMask =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if ((attr->comp_mask & ~kKnownMask) != 0) return Fail<ibv_pd>(EINVAL);
  if (attr->pd == nullptr || attr->pd->context != context) return Fail<ibv_pd>(EINVAL);
  if (attr->td != nullptr && attr->td->context != context) return Fail<ibv_pd>(EINVAL);
  if ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0) {
    return Fail<ibv_pd>(EOPNOTSUPP);
  }
  auto* pd = new (std::nothrow) Pd();
  if (pd == nullptr) return Fail<ibv_pd>(ENOMEM);
  pd->base.context = context;
  pd->base.handle = attr->pd->handle;
  pd->parent_of = attr->pd;
  ToPd(attr->pd)->users.fetch_add(1);
  if (attr->td != nullptr) {
    pd->td = ToTd(attr->td);
    pd->td->users.fetch_add(1);
  }
  return &pd->base;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_alloc_pd);
VERBENA_VERSION_1_1(ibv_dealloc_pd);

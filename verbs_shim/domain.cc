// Protection domains, thread domains, and parent domains, which join them.
//
// The NIC knows protection domains only. A parent domain has the handle of its own, and so is one
// to every verb; what it adds stands here.
#include <string.h>
#include <unistd.h>

#include <new>

#include "core/client/registration.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"
#include "verbs_shim/verbena/verbenadv.h"

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
  client::Session* session = ToContext(context)->session;
  shm::AllocTdReply reply = {};
  int error = ExecuteEmpty(ToContext(context), shm::CommandOp::kAllocTd, &reply);
  if (error != 0) {
    delete td;
    return Fail<ibv_td>(error);
  }
  td->handle = reply.td;
  if (reply.place.bytes == 0) return &td->base;  // all pages are taken
  td->doorbells = static_cast<shm::ThreadDoorbellPage*>(session->MapPlace(reply.place));
  if (td->doorbells == nullptr) {
    ExecuteDestroy(ToContext(context), shm::CommandOp::kDeallocTd, td->handle);
    delete td;
    return Fail<ibv_td>(ENOMEM);
  }
  return &td->base;
}

// Errors: EBUSY while a parent domain has it.
int DeallocTd(ibv_td* td) {
  if (ToTd(td)->users.load() != 0) return EBUSY;
  int error = ExecuteDestroy(ToContext(td->context), shm::CommandOp::kDeallocTd, ToTd(td)->handle);
  if (error != 0) return error;
  delete ToTd(td);
  return 0;
}

// nullptr with errno: EINVAL: no PD, a PD or TD of another context, an unknown bit in comp_mask,
// allocators announced and not both there; ENOMEM.
ibv_pd* AllocParentDomain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  // The last permits memory that a confidential guest shares with its host, where a device needs
  // it. This one does not: all memory will do.
  constexpr uint32_t kKnownMask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                                  IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT |
                                  kParentDomainAllowCcUnprotectedAllocV64;
  if ((attr->comp_mask & ~kKnownMask) != 0) return Fail<ibv_pd>(EINVAL);
  if (attr->pd == nullptr || attr->pd->context != context) return Fail<ibv_pd>(EINVAL);
  if (attr->td != nullptr && attr->td->context != context) return Fail<ibv_pd>(EINVAL);
  const bool has_allocators = (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0;
  if (has_allocators && (attr->alloc == nullptr || attr->free == nullptr)) {
    return Fail<ibv_pd>(EINVAL);
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
  if (has_allocators) {
    pd->alloc = attr->alloc;
    pd->free = attr->free;
  }
  if ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) != 0) {
    pd->pd_context = attr->pd_context;
  }
  return &pd->base;
}

int AllocateEntries(ibv_pd* base, uint64_t bytes, uint32_t resource, EntryBuffer* out) {
  *out = {};
  Pd* pd = base != nullptr ? ToPd(base) : nullptr;
  if (pd == nullptr || pd->alloc == nullptr) return 0;
  if (int error = client::PrepareEntryBackend(ToContext(base->context)->session); error != 0) {
    return error;
  }
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t size = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  const uint64_t type = uint64_t{RDMA_DRIVER_RXE} << 32 | resource;
  void* memory = pd->alloc(base, pd->pd_context, size, page_bytes, type);
  if (memory == IBV_ALLOCATOR_USE_DEFAULT) return 0;
  if (memory == nullptr) return ENOMEM;
  *out = {base, memory, type};
  if (reinterpret_cast<uintptr_t>(memory) % page_bytes != 0) {
    FreeEntries(out);
    return EINVAL;
  }
  // The callback has to do it, by the man page; an entry that looks written would be taken for one.
  memset(memory, 0, size);
  return 0;
}

void FreeEntries(EntryBuffer* entries) {
  if (entries->memory == nullptr) return;
  const EntryBuffer freed = *entries;
  *entries = {};
  const Pd* pd = ToPd(freed.pd);
  pd->free(freed.pd, pd->pd_context, freed.memory, freed.type);
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_alloc_pd);
VERBENA_VERSION_1_1(ibv_dealloc_pd);

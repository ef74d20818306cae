// What verbs that make or change regions have in common.
#pragma once

#include "core/client/registration.h"
#include "verbs_shim/objects.h"

namespace verbena::verbs {

// nullptr with errno, as ibv_reg_mr_iova2 gives it.
ibv_mr* RegMr(ibv_pd* pd, void* addr, size_t length, uint64_t iova, uint32_t wanted);

// What every verb that makes a region does at its end: `mr` is one of `pd` from now on.
inline ibv_mr* Introduce(Mr* mr, MrKind kind, ibv_pd* pd, size_t length,
                         const shm::RegMrReply& reply) {
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.length = length;
  mr->base.handle = reply.mr;
  mr->base.lkey = reply.lkey;
  mr->base.rkey = reply.rkey;
  mr->kind = kind;
  Use(pd);
  return &mr->base;
}

}  // namespace verbena::verbs

// Objects of other processes: a context by a duplicate of its cmd_fd, and what is in it by handle.
//
// An imported context is a session of this process's own in the context of the exporter's. PDs, MRs
// and device memory have one set of handles in it, so that what another process made is used,
// exported and destroyed as what this one did.
#include <new>

#include "core/client/no_cancel.h"
#include "verbs_shim/memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {

// The context owns `cmd_fd` from then on, and closes it with ibv_close_device. nullptr with errno:
// EINVAL: not the cmd_fd of a context; ENODEV: that context, or its daemon, is gone; ENOMEM.
VERBENA_EXPORT ibv_context* ibv_import_device(int cmd_fd) {
  client::NoCancel no_cancel;
  client::Session* session = nullptr;
  int error = client::Session::Import(cmd_fd, &session);
  if (error != 0) {
    Debug("importing a device by fd %d: errno %d", cmd_fd, error);
    return Fail<ibv_context>(error);
  }
  Device* device = DeviceOf(session->welcome().nic);
  if (device != nullptr) return OpenContext(device, session);
  session->Close();
  return Fail<ibv_context>(ENOMEM);
}

// nullptr with errno: EINVAL: there is none of that handle; ENOMEM.
VERBENA_EXPORT ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  auto* pd = new (std::nothrow) Pd();
  if (pd == nullptr) return Fail<ibv_pd>(ENOMEM);
  int error = ExecuteHandle(ToContext(context), shm::CommandOp::kImportPd, handle);
  if (error != 0) {
    delete pd;
    return Fail<ibv_pd>(error);
  }
  pd->base.context = context;
  pd->base.handle = handle;
  return &pd->base;
}
VERBENA_EXPORT void ibv_unimport_pd(ibv_pd* pd) { delete ToPd(pd); }

// nullptr with errno: EINVAL: there is none of that handle in the PD; ENOMEM.
VERBENA_EXPORT ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) {
  auto* mr = new (std::nothrow) Mr();
  if (mr == nullptr) return Fail<ibv_mr>(ENOMEM);
  shm::ImportMrReply reply = {};
  int error = Execute(ToContext(pd->context), shm::CommandOp::kImportMr,
                      shm::ImportMrRequest{pd->handle, handle}, &reply);
  if (error != 0) {
    delete mr;
    return Fail<ibv_mr>(error);
  }
  return Introduce(mr, MrKind::kImported, pd, reply.length,
                   shm::RegMrReply{handle, reply.lkey, reply.rkey, 0});
}
VERBENA_EXPORT void ibv_unimport_mr(ibv_mr* mr) {
  Unuse(mr->pd);
  delete ToMr(mr);
}

// nullptr with errno: EINVAL: there is none of that handle; ENOMEM.
VERBENA_EXPORT ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  client::NoCancel no_cancel;
  shm::DmReply reply = {};
  int error =
      Execute(ToContext(context), shm::CommandOp::kImportDm, shm::HandleRequest{handle, 0}, &reply);
  return error == 0 ? MapDm(context, reply) : Fail<ibv_dm>(error);
}
VERBENA_EXPORT void ibv_unimport_dm(ibv_dm* dm) { UnmapDm(ToDm(dm)); }

}  // namespace verbena::verbs

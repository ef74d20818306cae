// How the NIC is to reach memory of this process: what VERBENA_DMA asks for, and the helper where
// the NIC can't do it alone.
#pragma once

#include "verbs_shim/objects.h"

namespace verbena::verbs {

enum class Backend {
  kDefault,  // nothing is asked for: process, or assisted where that can't be
  kAuto,     // the same, but mapped where that is safe
  kProcess,
  kMapped,
  kAssisted,
};

// EINVAL: VERBENA_DMA names none.
int WantedBackend(Backend* out);

// Before a region is registered by `backend`; says in the request if it is to be by the helper.
// Errors: EOPNOTSUPP: the backend can't be had here; EMFILE; ENOMEM; EIO.
int PrepareBackend(Context* context, Backend backend, shm::RegMrRequest* request);

// Before entries of a queue are made in memory of the program. Errors: as above.
int PrepareEntryBackend(Context* context);

// The NIC may not touch the region, though it could when the device was opened: whether it is to
// be tried with the helper.
bool TurnToHelper(Context* context, shm::RegMrRequest* request);

// A command that makes memory reachable; `region` is the part of `request` that says which.
template <typename Request>
int ExecuteWithHelp(Context* context, shm::CommandOp op, Request* request,
                    shm::RegMrRequest* region, shm::RegMrReply* reply) {
  int error = Execute(context, op, *request, reply);
  if (error == EPERM && TurnToHelper(context, region))
    error = Execute(context, op, *request, reply);
  return error == EPERM ? EOPNOTSUPP : error;
}

}  // namespace verbena::verbs

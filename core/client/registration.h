// What every library does before it registers memory: the same for verbs and for libfabric. How the
// NIC is to reach memory of this process (what VERBENA_DMA asks for, and the helper where the NIC
// can't do it alone), and the region made present.
#pragma once

#include <errno.h>

#include <cstdint>

#include "core/client/payload.h"
#include "core/client/session.h"
#include "core/shm/command.h"

namespace verbena::client {

enum class Backend {
  kDefault,  // nothing is asked for: process, or assisted where that can't be
  kAuto,     // the same, but mapped where that is safe
  kProcess,
  kMapped,
  kAssisted,
};

// EINVAL: VERBENA_DMA names none.
int WantedBackend(Backend* out);

enum class Population {
  kNow,    // every page is made present, or the registration fails
  kLater,  // what is not there when the NIC comes to it fails then
};

// Judges the rights, and says in the request how its range is reached, what of it the NIC can map.
// `registration` stands for the range from then on. 0 or errno, as ibv_reg_mr gives it.
int PrepareRegion(Session* session, Population population, Registration* registration,
                  shm::RegMrRequest* request);

// The same for a registration of all this process's memory (kRegMrWholeProcess). Nothing of it is
// mapped, so VERBENA_DMA=mapped is EOPNOTSUPP.
int PrepareWholeProcess(Session* session, shm::RegMrRequest* request);

// Before entries of a queue are made in memory of the program. Errors: EOPNOTSUPP: the backend
// can't be had here; EMFILE; ENOMEM; EIO.
int PrepareEntryBackend(Session* session);

// The NIC may not touch the region, though it could when the device was opened: whether it is to
// be tried with the helper.
bool TurnToHelper(Session* session, shm::RegMrRequest* request);

// A command that makes memory reachable; `region` is the part of `request` that says which.
template <typename Request, typename Reply>
int ExecuteWithHelp(Session* session, shm::CommandOp op, Request* request,
                    shm::RegMrRequest* region, Reply* reply) {
  int error = session->Execute(op, request, sizeof(*request), reply, sizeof(*reply));
  if (error == EPERM && TurnToHelper(session, region)) {
    error = session->Execute(op, request, sizeof(*request), reply, sizeof(*reply));
  }
  return error == EPERM ? EOPNOTSUPP : error;
}

}  // namespace verbena::client

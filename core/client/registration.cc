#include "core/client/registration.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/types.h"
#include "core/shm/attach.h"

namespace verbena::client {
namespace {

bool CanBeReached(const Session* session) {
  return (session->welcome().dma_backends & shm::kDmaProcess) != 0;
}

bool IsChosenHere(Backend backend) {
  return backend == Backend::kDefault || backend == Backend::kAuto;
}

// Says in the request if it is to be by the helper.
// Errors: EOPNOTSUPP: the backend can't be had here; EMFILE; ENOMEM; EIO.
int PrepareBackend(Session* session, Backend backend, shm::RegMrRequest* request) {
  if (backend == Backend::kProcess) return CanBeReached(session) ? 0 : EOPNOTSUPP;
  if (backend == Backend::kMapped) {
    request->flags |= shm::kRegMrMapped;
    const uint32_t backends = session->welcome().dma_backends;
    return (backends & shm::kDmaMapped) != 0 ? 0 : EOPNOTSUPP;
  }
  if (backend != Backend::kAssisted && CanBeReached(session)) return 0;
  const int error = session->OpenAssist(backend == Backend::kAssisted);
  if (error == 0) request->flags |= shm::kRegMrAssisted;
  // Without one all of it may be mapped, or the NIC says that it can't.
  return backend == Backend::kAssisted ? error : 0;
}

// What makes pinning pointless is found before it; the NIC judges the rest.
// Spec: ib_check_mr_access of the kernel; ibv_reg_mr(3).
int CheckAccess(uint32_t wanted) {
  constexpr uint32_t kNeedLocalWrite = access::kRemoteWrite | access::kRemoteAtomic;
  if ((wanted & kNeedLocalWrite) != 0 && (wanted & access::kLocalWrite) == 0) return EINVAL;
  return (wanted & access::kOnDemand) != 0 ? EOPNOTSUPP : 0;
}

}  // namespace

int WantedBackend(Backend* out) {
  static constexpr struct {
    const char* name;
    Backend backend;
  } kNames[] = {
      {"", Backend::kDefault},          {"auto", Backend::kAuto},
      {"process", Backend::kProcess},   {"mapped", Backend::kMapped},
      {"assisted", Backend::kAssisted},
  };
  const char* wanted = secure_getenv("VERBENA_DMA");
  if (wanted == nullptr) wanted = "";
  for (const auto& known : kNames) {
    if (strcmp(wanted, known.name) != 0) continue;
    *out = known.backend;
    return 0;
  }
  return EINVAL;
}

namespace {

// Memory that the program moves by itself nobody else may touch.
int BackendOf(const Session* session, Backend* out) {
  const int error = WantedBackend(out);
  if (error == 0 && session->IsMovedByProgram()) *out = Backend::kAssisted;
  return error;
}

}  // namespace

int PrepareRegion(Session* session, Population population, Registration* registration,
                  shm::RegMrRequest* request) {
  int error = CheckAccess(request->access);
  if (error != 0) return error;
  if (request->length == 0 || request->addr + request->length < request->addr) return EINVAL;
  // One that can't be had fails the registration, so that nobody measures or tests another one
  // unknowingly. Who asks for nothing gets no mapped memory: docs/known-limits.md says what
  // programs may notice of it.
  Backend backend;
  error = BackendOf(session, &backend);
  if (error == 0) error = PrepareBackend(session, backend, request);
  if (error != 0) return error;
  int sharing_error = 0;
  if (backend == Backend::kMapped || backend == Backend::kAuto) {
    sharing_error = ShareForRegistration(
        session, backend == Backend::kMapped ? Sharing::kAll : Sharing::kWhereSafe, registration,
        request);
  }
  if (population == Population::kLater) return sharing_error;
  const bool write = (request->access & access::kLocalWrite) != 0;
  error = PopulateForRegistration(reinterpret_cast<void*>(request->addr), request->length, write);
  return error == 0 ? sharing_error : error;  // memory that is not there is what to say first
}

int PrepareWholeProcess(Session* session, shm::RegMrRequest* request) {
  Backend backend;
  int error = BackendOf(session, &backend);
  if (error == 0 && backend == Backend::kMapped) error = EOPNOTSUPP;
  return error == 0 ? PrepareBackend(session, backend, request) : error;
}

int PrepareEntryBackend(Session* session) {
  Backend backend;
  if (int error = WantedBackend(&backend); error != 0) return error;
  if (backend == Backend::kAssisted) return session->OpenAssist(/*for_entries=*/true);
  if (IsChosenHere(backend) && !CanBeReached(session)) {
    return session->OpenAssist(/*for_entries=*/false);
  }
  return 0;
}

bool TurnToHelper(Session* session, shm::RegMrRequest* request) {
  Backend backend;
  if (WantedBackend(&backend) != 0 || !IsChosenHere(backend)) return false;
  if ((request->flags & shm::kRegMrAssisted) != 0) return false;
  if (session->OpenAssist(/*for_entries=*/true) != 0) return false;
  request->flags |= shm::kRegMrAssisted;
  return true;
}

}  // namespace verbena::client

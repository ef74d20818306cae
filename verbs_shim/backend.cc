#include "verbs_shim/backend.h"

#include <stdlib.h>
#include <string.h>

namespace verbena::verbs {
namespace {

bool CanBeReached(const Context* context) {
  return (context->session->welcome().dma_backends & shm::kDmaProcess) != 0;
}

bool IsChosenHere(Backend backend) {
  return backend == Backend::kDefault || backend == Backend::kAuto;
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

int PrepareBackend(Context* context, Backend backend, shm::RegMrRequest* request) {
  if (backend == Backend::kProcess) return CanBeReached(context) ? 0 : EOPNOTSUPP;
  if (backend == Backend::kMapped) {
    request->flags |= shm::kRegMrMapped;
    const uint32_t backends = context->session->welcome().dma_backends;
    return (backends & shm::kDmaMapped) != 0 ? 0 : EOPNOTSUPP;
  }
  if (backend != Backend::kAssisted && CanBeReached(context)) return 0;
  const int error = context->session->OpenAssist(backend == Backend::kAssisted);
  if (error == 0) request->flags |= shm::kRegMrAssisted;
  // Without one all of it may be mapped, or the NIC says that it can't.
  return backend == Backend::kAssisted ? error : 0;
}

int PrepareEntryBackend(Context* context) {
  Backend backend;
  if (int error = WantedBackend(&backend); error != 0) return error;
  if (backend == Backend::kAssisted) return context->session->OpenAssist(/*for_entries=*/true);
  if (IsChosenHere(backend) && !CanBeReached(context)) {
    return context->session->OpenAssist(/*for_entries=*/false);
  }
  return 0;
}

bool TurnToHelper(Context* context, shm::RegMrRequest* request) {
  Backend backend;
  if (WantedBackend(&backend) != 0 || !IsChosenHere(backend)) return false;
  if ((request->flags & shm::kRegMrAssisted) != 0) return false;
  if (context->session->OpenAssist(/*for_entries=*/true) != 0) return false;
  request->flags |= shm::kRegMrAssisted;
  return true;
}

}  // namespace verbena::verbs

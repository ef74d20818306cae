// What a region is bound to: counters of what peers do with it, and the endpoint that leads to it.
#include "core/client/no_cancel.h"
#include "core/shm/rdm.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/mr.h"
#include "fi_shim/protection.h"

namespace verbena::fi {
namespace {

// Tells the NIC which counters are bound; a region that it does not know yet is told of later.
int TellCounters(Mr* mr) {
  Mr::State& state = *mr->state;
  if (state.handle == 0) return 0;
  shm::BindMrCounterRequest request = {};
  request.mr = state.handle;
  int error = CounterOf(state.read_counter, &request.read);
  if (error == 0) error = CounterOf(state.write_counter, &request.write);
  if (error != 0) return error;
  return -mr->domain->session->Execute(shm::CommandOp::kBindMrCounter, &request, sizeof(request),
                                       nullptr, 0);
}

int BindCounter(Mr* mr, Cntr* cntr, uint64_t flags) {
  Mr::State& state = *mr->state;
  constexpr uint64_t kKnown = FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (flags == 0 || (flags & ~kKnown) != 0) return -FI_EBADFLAGS;
  if (cntr->domain != mr->domain) return -FI_EINVAL;
  if ((mr->domain->caps & FI_RMA_EVENT) == 0) return -FI_ENOSYS;
  Cntr* const read = state.read_counter;
  Cntr* const write = state.write_counter;
  if ((flags & FI_REMOTE_READ) != 0 && read != nullptr) return -FI_EBUSY;
  if ((flags & FI_REMOTE_WRITE) != 0 && write != nullptr) return -FI_EBUSY;
  if ((flags & FI_REMOTE_READ) != 0) state.read_counter = cntr;
  if ((flags & FI_REMOTE_WRITE) != 0) state.write_counter = cntr;
  const int error = TellCounters(mr);
  if (error != 0) {
    state.read_counter = read;
    state.write_counter = write;
    return error;
  }
  if (state.read_counter != read) cntr->users.fetch_add(1);
  if (state.write_counter != write) cntr->users.fetch_add(1);
  return 0;
}

int BindEndpoint(Mr* mr, Endpoint* ep, uint64_t flags) {
  Mr::State& state = *mr->state;
  if (flags != 0) return -FI_EBADFLAGS;
  if (ep->domain != mr->domain) return -FI_EINVAL;
  // Without the mode bit regions are of the domain, and so of each of its endpoints.
  if ((mr->domain->mr_mode & FI_MR_ENDPOINT) == 0) return 0;
  if (state.endpoint != nullptr) return -FI_EBUSY;
  state.endpoint = ep;
  return 0;
}

}  // namespace

// Errors: -FI_EOPBADSTATE: it has been enabled; -FI_EBUSY: bound to one already; -FI_EBADFLAGS;
// -FI_EINVAL: of another domain, or nothing to bind to; -FI_ENOSYS: no FI_RMA_EVENT.
int BindMr(fid* fid, struct fid* to, uint64_t flags) {
  Mr* mr = reinterpret_cast<Mr*>(fid);
  if (to == nullptr) return -FI_EINVAL;
  client::NoCancel no_cancel;
  client::MutexGuard guard(mr->domain->keys_mutex);
  if (mr->state->begins_disabled && mr->state->is_enabled) return -FI_EOPBADSTATE;
  switch (to->fclass) {
    case FI_CLASS_CNTR:
      return BindCounter(mr, reinterpret_cast<Cntr*>(to), flags);
    case FI_CLASS_EP:
      return BindEndpoint(mr, reinterpret_cast<Endpoint*>(to), flags);
    default:
      return -FI_EINVAL;
  }
}

// Of a region that was never disabled it changes nothing. Errors: -FI_EOPBADSTATE: with
// FI_MR_ENDPOINT, it is not bound to an endpoint, or registration has not completed; those of
// registration, which with FI_MR_ENDPOINT comes about here.
int EnableMr(Mr* mr) {
  Mr::State& state = *mr->state;
  Domain* domain = mr->domain;
  client::MutexGuard guard(domain->keys_mutex);
  if (state.is_pending) return -FI_EOPBADSTATE;
  if (!state.begins_disabled || state.is_enabled) return 0;
  if ((domain->mr_mode & FI_MR_ENDPOINT) != 0) {
    if (state.endpoint == nullptr) return -FI_EOPBADSTATE;
    state.is_enabled = true;
    int error = Register(mr, state.endpoint->pd);
    if (error == 0) {
      error = TellCounters(mr);
      if (error != 0) Deregister(mr);
    }
    state.is_enabled = error == 0;
    return error;
  }
  const shm::HandleRequest request = {state.handle, 0};
  const int error =
      -domain->session->Execute(shm::CommandOp::kEnableMr, &request, sizeof(request), nullptr, 0);
  if (error == 0) state.is_enabled = true;
  return error;
}

void ForgetEndpoint(Endpoint* ep) {
  client::MutexGuard guard(ep->domain->keys_mutex);
  for (Mr* mr = ep->domain->mrs; mr != nullptr; mr = mr->state->next) {
    if (mr->state->endpoint != ep) continue;
    Deregister(mr);
    mr->state->endpoint = nullptr;
  }
}

void UnbindCounters(Mr* mr) {
  Mr::State& state = *mr->state;
  if (state.read_counter != nullptr) state.read_counter->users.fetch_sub(1);
  if (state.write_counter != nullptr) state.write_counter->users.fetch_sub(1);
  state.read_counter = state.write_counter = nullptr;
}

}  // namespace verbena::fi

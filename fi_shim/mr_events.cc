// Registration that goes on when the call has returned (fi_domain_bind with FI_REG_MR): who reads
// the EQ, or waits for it, carries it out and finds its event.
#include <sys/eventfd.h>
#include <unistd.h>

#include <new>

#include "core/client/no_cancel.h"
#include "fi_shim/mr.h"

namespace verbena::fi {

struct PendingMrs {
  Domain* domain = nullptr;
  Eq* eq = nullptr;
  int fd = -1;                                        // readable while there are any
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the list, and each registration
  Mr* first = nullptr;
  Mr** last = &first;
};

namespace {

void Report(PendingMrs* pending, Mr* mr, int error) {
  if (error == 0) {
    const fi_eq_entry entry = {&mr->fid.fid, mr->fid.fid.context, 0};
    return Post(pending->eq, FI_MR_COMPLETE, &entry, sizeof(entry));
  }
  fi_eq_err_entry entry = {};
  entry.fid = &mr->fid.fid;
  entry.context = mr->fid.fid.context;
  entry.err = -error;
  PostError(pending->eq, entry, nullptr, 0);
}

void TakeAll(void* source) {
  auto* pending = static_cast<PendingMrs*>(source);
  client::NoCancel no_cancel;
  client::MutexGuard guard(pending->mutex);
  uint64_t count;
  // Of an eventfd that does not block; with nothing in it there is nothing to take either.
  if (read(pending->fd, &count, sizeof(count)) != sizeof(count)) return;
  while (pending->first != nullptr) {
    Mr* mr = pending->first;
    pending->first = mr->state->next_pending;
    if (pending->first == nullptr) pending->last = &pending->first;
    mr->state->is_pending = false;
    // With FI_MR_ENDPOINT it is enabling that needs the NIC.
    const bool is_of_endpoint = (mr->domain->mr_mode & FI_MR_ENDPOINT) != 0;
    Report(pending, mr, is_of_endpoint ? 0 : Register(mr, PdOf(mr)));
  }
}

}  // namespace

void RegisterLater(Mr* mr) {
  PendingMrs* pending = mr->domain->pending_mrs;
  client::MutexGuard guard(pending->mutex);
  mr->state->is_pending = true;
  mr->state->next_pending = nullptr;
  *pending->last = mr;
  pending->last = &mr->state->next_pending;
  const uint64_t one = 1;
  // Blocks nobody: the count is taken whole.
  (void)!write(pending->fd, &one, sizeof(one));
}

void ForgetPending(Mr* mr) {
  PendingMrs* pending = mr->domain->pending_mrs;
  if (pending == nullptr) return;
  client::MutexGuard guard(pending->mutex);
  ForgetEvents(pending->eq, &mr->fid.fid);
  if (!mr->state->is_pending) return;
  Mr** link = &pending->first;
  while (*link != mr) link = &(*link)->state->next_pending;
  *link = mr->state->next_pending;
  if (*link == nullptr) pending->last = link;
  mr->state->is_pending = false;
}

int StartReportingMrs(Domain* domain, Eq* eq) {
  auto* pending = new (std::nothrow) PendingMrs();
  if (pending == nullptr) return -FI_ENOMEM;
  pending->domain = domain;
  pending->eq = eq;
  pending->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int error = pending->fd >= 0 ? AddSource(eq, pending->fd, TakeAll, pending) : -errno;
  if (error != 0) {
    if (pending->fd >= 0) close(pending->fd);
    delete pending;
    return error;
  }
  domain->pending_mrs = pending;
  domain->reports_mr_by_eq = true;
  return 0;
}

void StopReportingMrs(Domain* domain) {
  PendingMrs* pending = domain->pending_mrs;
  if (pending == nullptr) return;
  RemoveSource(pending->eq, pending->fd);
  close(pending->fd);
  delete pending;
  domain->pending_mrs = nullptr;
  domain->reports_mr_by_eq = false;
}

}  // namespace verbena::fi

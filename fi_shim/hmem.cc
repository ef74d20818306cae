#include "fi_shim/hmem.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include <new>

#include "core/client/assist_mover.h"
#include "core/client/no_cancel.h"
#include "fi_shim/protection.h"

namespace verbena::fi {
namespace {

struct Kind {
  fi_hmem_iface iface = FI_HMEM_SYSTEM;
  uint64_t device = 0;
  bool operator==(const Kind&) const = default;
};

Kind KindOf(HmemOverride* over, uint64_t addr) {
  client::MutexGuard guard(over->mutex);
  for (const DeviceRange* range = over->ranges; range != nullptr; range = range->next) {
    if (addr >= range->addr && addr - range->addr < range->length) {
      return {range->iface, range->device};
    }
  }
  return {};
}

size_t ToIov(const shm::AssistPiece* pieces, uint32_t count, iovec* iov) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    iov[i] = {reinterpret_cast<void*>(pieces[i].addr), pieces[i].bytes};
    bytes += pieces[i].bytes;
  }
  return bytes;
}

// Calls `move` for each run of pieces of one kind of memory. All bytes, or a negative errno.
template <typename Move>
int64_t ForEachRun(HmemOverride* over, const shm::AssistPiece* pieces, uint32_t count, Move move) {
  iovec iov[shm::kAssistPiecesMax];
  int64_t moved = 0;
  for (uint32_t begin = 0; begin < count;) {
    const Kind kind = KindOf(over, pieces[begin].addr);
    uint32_t end = begin + 1;
    while (end < count && KindOf(over, pieces[end].addr) == kind) ++end;
    const size_t bytes = ToIov(pieces + begin, end - begin, iov);
    const ssize_t n = move(kind, iov, end - begin, moved, bytes);
    if (n < 0) return n;
    moved += n;
    if (static_cast<size_t>(n) != bytes) return moved;
    begin = end;
  }
  return moved;
}

int64_t Gather(void* context, void* to, const shm::AssistPiece* from, uint32_t count) {
  auto* over = static_cast<HmemOverride*>(context);
  return ForEachRun(over, from, count,
                    [&](const Kind& kind, const iovec* iov, size_t iovs, int64_t at, size_t bytes) {
                      return over->ops.copy_from_hmem_iov(static_cast<char*>(to) + at, bytes,
                                                          kind.iface, kind.device, iov, iovs, 0);
                    });
}

int64_t Scatter(void* context, const shm::AssistPiece* to, uint32_t count, const void* from,
                uint64_t) {
  auto* over = static_cast<HmemOverride*>(context);
  return ForEachRun(over, to, count,
                    [&](const Kind& kind, const iovec* iov, size_t iovs, int64_t at, size_t bytes) {
                      return over->ops.copy_to_hmem_iov(kind.iface, kind.device, iov, iovs, 0,
                                                        static_cast<const char*>(from) + at, bytes);
                    });
}

}  // namespace

int SetDomainOps(Domain* domain, const char* name, uint64_t flags, void* ops, void*) {
  if (name == nullptr || strcmp(name, FI_SET_OPS_HMEM_OVERRIDE) != 0) return -FI_ENOSYS;
  if (flags != 0 || ops == nullptr) return -FI_EINVAL;
  const auto& wanted = *static_cast<const fi_hmem_override_ops*>(ops);
  if (wanted.size < sizeof(wanted) || wanted.copy_from_hmem_iov == nullptr ||
      wanted.copy_to_hmem_iov == nullptr) {
    return -FI_EINVAL;
  }
  client::NoCancel no_cancel;
  if (domain->hmem != nullptr || domain->users.load() != 0) return -FI_EBUSY;
  auto* over = new (std::nothrow) HmemOverride();
  if (over == nullptr) return -FI_ENOMEM;
  over->ops = wanted;
  int error = -domain->session->MoveBy({over, Gather, Scatter});
  if (error != 0) {
    delete over;
    return error;
  }
  domain->hmem = over;
  // What the NIC has of the domain so far it would reach by itself.
  shm::Handle pd = 0, whole_process_mr = 0;
  uint32_t lkey = 0;
  error = MakeProtection(domain, &pd, &whole_process_mr, &lkey);
  if (error != 0) return error;
  UnmakeProtection(domain, domain->pd, domain->whole_process_mr);
  domain->pd = pd;
  domain->whole_process_mr = whole_process_mr;
  domain->whole_process_lkey = lkey;
  return 0;
}

void EndOverride(Domain* domain) {
  HmemOverride* over = domain->hmem;
  if (over == nullptr) return;
  while (over->ranges != nullptr) {
    DeviceRange* range = over->ranges;
    over->ranges = range->next;
    delete range;
  }
  delete over;
  domain->hmem = nullptr;
}

int AddDeviceRange(Domain* domain, uint64_t addr, uint64_t length, const fi_mr_attr& attr,
                   DeviceRange** out) {
  *out = nullptr;
  if (domain->hmem == nullptr || attr.iface == FI_HMEM_SYSTEM) return 0;
  auto* range = new (std::nothrow) DeviceRange();
  if (range == nullptr) return -FI_ENOMEM;
  range->addr = addr;
  range->length = length;
  range->iface = attr.iface;
  range->device = attr.device.reserved;
  client::MutexGuard guard(domain->hmem->mutex);
  range->next = domain->hmem->ranges;
  domain->hmem->ranges = range;
  *out = range;
  return 0;
}

void RemoveDeviceRange(Domain* domain, DeviceRange* range) {
  if (range == nullptr) return;
  client::MutexGuard guard(domain->hmem->mutex);
  DeviceRange** link = &domain->hmem->ranges;
  while (*link != range) link = &(*link)->next;
  *link = range->next;
  delete range;
}

bool CopyFromProgram(const Domain* domain, void* to, const void* from, size_t bytes) {
  HmemOverride* over = domain->hmem;
  if (over == nullptr) {
    memcpy(to, from, bytes);
    return true;
  }
  const Kind kind = KindOf(over, reinterpret_cast<uint64_t>(from));
  const iovec iov = {const_cast<void*>(from), bytes};
  const ssize_t n = over->ops.copy_from_hmem_iov(to, bytes, kind.iface, kind.device, &iov, 1, 0);
  return n >= 0 && static_cast<size_t>(n) == bytes;
}

}  // namespace verbena::fi

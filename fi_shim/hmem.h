// FI_SET_OPS_HMEM_OVERRIDE: the program's functions move all bytes of its memory. They are called
// on a thread of this library (core/client/assist_mover.h), where the NIC moves them, and in the
// program's own calls, where these copy (fi_inject and small messages).
#pragma once

#include <pthread.h>

#include "core/shm/assist.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// Memory that is not the system's, as fi_mr_regattr was told.
struct DeviceRange {
  DeviceRange* next = nullptr;
  uint64_t addr = 0, length = 0;
  fi_hmem_iface iface = FI_HMEM_SYSTEM;
  uint64_t device = 0;
};

struct HmemOverride {
  fi_hmem_override_ops ops = {};
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the list; never held in a call
  DeviceRange* ranges = nullptr;
};

// fi_set_ops of a domain. Errors: -FI_ENOSYS: no such override; -FI_EINVAL: a function is missing;
// -FI_EBUSY: objects of the domain exist, or it has one already; -FI_EOPNOTSUPP; -FI_ENOMEM;
// -FI_EIO.
int SetDomainOps(Domain* domain, const char* name, uint64_t flags, void* ops, void* context);
void EndOverride(Domain* domain);  // when the domain is closed, after its session
// `out`: nullptr where it is the system's memory, or nobody asks. -FI_ENOMEM.
int AddDeviceRange(Domain* domain, uint64_t addr, uint64_t length, const fi_mr_attr& attr,
                   DeviceRange** out);
// That one of several of the same bytes, if any.
void RemoveDeviceRange(Domain* domain, DeviceRange* range);

// Copies out of the program's memory into ours; false: its function failed.
bool CopyFromProgram(const Domain* domain, void* to, const void* from, size_t bytes);

}  // namespace verbena::fi

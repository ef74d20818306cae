// Locks of objects, which a domain's threading model may make superfluous.
#pragma once

#include <rdma/fabric.h>

#include "core/client/sync.h"

namespace verbena::fi {

using Lock = client::SpinLock;
using Guard = client::SpinGuard;

// FI_THREAD_DOMAIN: one thread at a time in all of the domain. FI_THREAD_COMPLETION: in all that
// shares a completion structure, and so in what is guarded by locks of CQs, counters and endpoints.
// FI_THREAD_FID and FI_THREAD_ENDPOINT let one thread read the CQ in which another's operations
// complete: every lock that those two would both take is needed. Those that only threads with the
// same object would take are not.
constexpr bool IsAlone(fi_threading threading) {
  return threading == FI_THREAD_DOMAIN || threading == FI_THREAD_COMPLETION;
}
constexpr bool IsObjectAlone(fi_threading threading) {
  return IsAlone(threading) || threading == FI_THREAD_FID || threading == FI_THREAD_ENDPOINT;
}
// Of a CQ, counter or endpoint, before anybody else knows of it.
inline void ElideIfAlone(Lock& lock, fi_threading threading) {
  if (IsAlone(threading)) lock.Elide();
}

}  // namespace verbena::fi

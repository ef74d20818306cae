// Locks of objects, which a domain's threading model may make superfluous.
#pragma once

#include "core/client/sync.h"

namespace verbena::fi {

using Lock = client::SpinLock;
using Guard = client::SpinGuard;

}  // namespace verbena::fi

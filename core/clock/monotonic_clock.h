// The clock of those who drive protocol code, and of ports: never read by protocol code itself.
#pragma once

#include <time.h>

#include "core/base/instant.h"

namespace verbena {

// CLOCK_MONOTONIC.
inline Instant ReadMonotonicClock() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {t.tv_sec * 1'000'000'000ll + t.tv_nsec};
}

}  // namespace verbena

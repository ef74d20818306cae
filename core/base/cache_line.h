// How long a cache line is.
#pragma once

#include <cstdint>

namespace verbena {

// Of every host that Verbena runs on; the layout of shared memory is built on it.
inline constexpr uint32_t kCacheLineBytes = 64;

}  // namespace verbena

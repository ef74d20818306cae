// What a process is like, as far as it decides whether its memory may be converted.
#pragma once

#include <cstdint>

namespace verbena::client {

bool IsSingleThreaded();
// Other allocators give memory back by MADV_DONTNEED and take it for zeroed: not so of shared
// pages.
bool HasMallocOfLibc();
// The kernel may hold its pages and write to them whatever is mapped (io_uring's fixed buffers).
bool HasPinnedPages();
// Locked in memory, which a new mapping would not be.
bool HasLockedPages();

struct Range {
  uintptr_t begin = 0, end = 0;
};

// Pages to which a forked child writes before it runs its first handler: the kernel sets its
// thread's id there, libc resets its locks; and those of this library, whose handler that is.
struct ForkCode {
  Range ranges[12];
  uint32_t count = 0;
};
// Takes the loader's lock: not while a lock is held that is taken within dlopen(3), too.
void FindForkCode(ForkCode* out);

}  // namespace verbena::client

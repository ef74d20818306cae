// What a process is like, as far as it decides whether its memory may be converted.
#pragma once

namespace verbena::client {

bool IsSingleThreaded();
// Its allocator gives memory back by MADV_DONTNEED and takes it for zeroed: not so of shared pages.
bool HasZeroingAllocator();
// The kernel may hold its pages and write to them whatever is mapped (io_uring's fixed buffers).
bool HasPinnedPages();
// Locked in memory, which a new mapping would not be.
bool HasLockedPages();

}  // namespace verbena::client

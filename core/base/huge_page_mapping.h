// Where memory has to be mapped to be on huge pages: page tables can name such a page only at an
// address that is a multiple of its size.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace verbena {

inline constexpr uint64_t kHugePageBytes = 2 << 20;

// Maps `bytes` of private memory at an address for a huge page. As mmap: MAP_FAILED and errno if it
// fails. munmap ends it.
inline void* MapAtHugePage(uint64_t bytes, int protection) {
  constexpr uint64_t kSmallPageBytes = 4096;
  bytes = (bytes + kSmallPageBytes - 1) & ~(kSmallPageBytes - 1);
  // More address space than needed has such an address in it; the rest goes back.
  void* area = mmap(nullptr, bytes + kHugePageBytes, protection,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<uintptr_t>(area);
  const uintptr_t at = (begin + kHugePageBytes - 1) & ~uintptr_t{kHugePageBytes - 1};
  const uintptr_t end = at + bytes;
  if (at != begin) munmap(area, at - begin);
  if (end != begin + bytes + kHugePageBytes) {
    munmap(reinterpret_cast<void*>(end), begin + bytes + kHugePageBytes - end);
  }
  return reinterpret_cast<void*>(at);
}

// Maps `bytes` of the file `fd`, from its beginning on, to read and write; of a file that has room
// for a huge page at an address for it. As above.
inline void* MapForHugePages(uint64_t bytes, int fd) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  void* at = bytes < kHugePageBytes ? MAP_FAILED : MapAtHugePage(bytes, PROT_NONE);
  if (at == MAP_FAILED) return mmap(nullptr, bytes, kProtection, MAP_SHARED, fd, 0);
  void* mapped = mmap(at, bytes, kProtection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) munmap(at, bytes);
  return mapped;
}

}  // namespace verbena

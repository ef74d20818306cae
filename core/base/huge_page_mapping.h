// Where shared memory has to be mapped to be on huge pages: page tables can name such a page only
// at an address that is a multiple of its size.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace verbena {

inline constexpr uint64_t kHugePageBytes = 2 << 20;

// Maps `bytes` of the file `fd`, from its beginning on, to read and write; of a file that has room
// for a huge page at an address for it. As mmap: MAP_FAILED and errno if it fails. munmap ends it.
inline void* MapForHugePages(uint64_t bytes, int fd) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  if (bytes < kHugePageBytes) return mmap(nullptr, bytes, kProtection, MAP_SHARED, fd, 0);
  // More address space than needed has such an address in it; the rest goes back.
  const uint64_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return mmap(nullptr, bytes, kProtection, MAP_SHARED, fd, 0);
  const auto begin = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t at = (begin + kHugePageBytes - 1) & ~uintptr_t{kHugePageBytes - 1};
  constexpr uintptr_t kSmallPageBytes = 4096;
  const uintptr_t end = (at + bytes + kSmallPageBytes - 1) & ~(kSmallPageBytes - 1);
  void* mapped =
      mmap(reinterpret_cast<void*>(at), bytes, kProtection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    munmap(reserved, reserved_bytes);
    return MAP_FAILED;
  }
  if (at != begin) munmap(reserved, at - begin);
  if (end != begin + reserved_bytes) {
    munmap(reinterpret_cast<void*>(end), begin + reserved_bytes - end);
  }
  return mapped;
}

}  // namespace verbena

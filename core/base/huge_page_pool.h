// Memory for what the NIC has many of and touches in no order, on huge pages: 10 000 QPs on small
// ones need more translations than a CPU keeps, and each costs as much as the data.
//
// Thread: any. Under a sanitizer it is the heap, which sees uses of freed memory.
#pragma once

#include <cstddef>

namespace verbena {

// Aligned to a cache line. Throws std::bad_alloc.
void* AllocateOnHugePages(size_t bytes);
void FreeOnHugePages(void* memory, size_t bytes) noexcept;

// A base for classes whose objects are to be there.
struct OnHugePages {
  static void* operator new(size_t bytes) { return AllocateOnHugePages(bytes); }
  static void operator delete(void* memory, size_t bytes) noexcept {
    FreeOnHugePages(memory, bytes);
  }
};

}  // namespace verbena

// What the static C++ runtime asks of a glibc newer than the oldest this library must load on
// (2.31): found here instead, hidden, so that no such version is named in the library.
//
// The unwinder and the runtime's initialisation are the users. A shim throws nothing over its edge,
// but the runtime it links holds the code.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

#define VERBENA_HIDDEN extern "C" __attribute__((visibility("hidden"), used))

// glibc 2.32: lets shared_ptr skip atomics. "No" is always right.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

// glibc 2.34 moved these from libpthread to libc, under a new version.
VERBENA_HIDDEN int pthread_once(pthread_once_t* control, void (*routine)()) {
  constexpr int kNew = PTHREAD_ONCE_INIT, kRunning = 1, kDone = 2;
  std::atomic_ref<int> state(*control);
  int expected = kNew;
  if (state.compare_exchange_strong(expected, kRunning, std::memory_order_acquire)) {
    routine();
    state.store(kDone, std::memory_order_release);
    return 0;
  }
  while (state.load(std::memory_order_acquire) != kDone) sched_yield();
  return 0;
}

// The runtime asks only whether the function exists, to learn whether threads do.
VERBENA_HIDDEN int __pthread_key_create(pthread_key_t*, void (*)(void*)) { return EAGAIN; }

#ifdef DLFO_STRUCT_HAS_EH_DBASE

namespace {

struct Search {
  uintptr_t pc;
  dl_find_object* result;
};

// Looks whether the object holds the address, and where its unwind table is.
int Visit(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  const ElfW(Phdr)* text = nullptr;
  const ElfW(Phdr)* eh_frame = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) eh_frame = &header;
    if (header.p_type == PT_LOAD && search->pc - start < header.p_memsz) text = &header;
  }
  if (text == nullptr || eh_frame == nullptr) return 0;
  auto at = [info](const ElfW(Phdr) & header, uintptr_t offset) {
    return reinterpret_cast<void*>(info->dlpi_addr + header.p_vaddr + offset);
  };
  *search->result = {};
  search->result->dlfo_map_start = at(*text, 0);
  search->result->dlfo_map_end = at(*text, text->p_memsz);
  search->result->dlfo_eh_frame = at(*eh_frame, 0);
  return 1;
}

}  // namespace

// glibc 2.35.
VERBENA_HIDDEN int _dl_find_object(void* pc, dl_find_object* result) {
  Search search = {reinterpret_cast<uintptr_t>(pc), result};
  return dl_iterate_phdr(Visit, &search) == 1 ? 0 : -1;
}

#endif  // DLFO_STRUCT_HAS_EH_DBASE

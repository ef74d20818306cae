// Touching mapped memory whose pages can't be had (the host is out of memory, or over its limit) is
// a SIGBUS; here it is an error of the copy.
#pragma once

#include <setjmp.h>

#include <cstdint>
#include <utility>

namespace verbena::softnic {

namespace internal {

struct BusErrorTrap {
  sigjmp_buf where;
  volatile uintptr_t address = 0;
};
extern thread_local BusErrorTrap* bus_error_trap;

}  // namespace internal

// Once in a process, before the first Guarded. SIGBUS elsewhere ends the process as before.
void CatchBusErrors();

// Runs `copy`, which must own nothing. False: it was stopped at `*address`.
template <typename Copy>
bool Guarded(uintptr_t* address, Copy&& copy) {
  internal::BusErrorTrap trap;
  if (sigsetjmp(trap.where, 0) != 0) {
    internal::bus_error_trap = nullptr;
    *address = trap.address;
    return false;
  }
  internal::bus_error_trap = &trap;
  std::forward<Copy>(copy)();
  internal::bus_error_trap = nullptr;
  return true;
}

}  // namespace verbena::softnic

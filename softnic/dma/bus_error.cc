#include "softnic/dma/bus_error.h"

#include <signal.h>

namespace verbena::softnic {

thread_local internal::BusErrorTrap* internal::bus_error_trap = nullptr;

namespace {

void OnBusError(int, siginfo_t* info, void*) {
  internal::BusErrorTrap* trap = internal::bus_error_trap;
  if (trap == nullptr) {
    // Not ours: the access happens again, and ends the process.
    signal(SIGBUS, SIG_DFL);
    return;
  }
  trap->address = reinterpret_cast<uintptr_t>(info->si_addr);
  siglongjmp(trap->where, 1);
}

}  // namespace

void CatchBusErrors() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  // Not blocked inside its handler: the jump out of it restores no mask.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace verbena::softnic

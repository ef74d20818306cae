#include "softnic/engine/run_delay.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

namespace verbena::softnic {

RunDelay::~RunDelay() {
  if (fd_ >= 0) close(fd_);
}

void RunDelay::OpenOfThisThread() {
  if (fd_ >= 0) close(fd_);
  fd_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

// Its second number. Spec: the kernel's Documentation/scheduler/sched-stats.rst.
bool RunDelay::Read(Duration* out) const {
  char text[96];
  const ssize_t bytes = fd_ < 0 ? -1 : pread(fd_, text, sizeof(text) - 1, 0);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  long long on_cpu_ns, waited_ns;
  if (sscanf(text, "%lld %lld", &on_cpu_ns, &waited_ns) != 2) return false;
  out->ns = waited_ns;
  return true;
}

}  // namespace verbena::softnic

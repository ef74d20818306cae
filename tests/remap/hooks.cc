// The calls into libc at which a step may happen (none that allocators make within themselves), and
// those that end a process or a registration's copying. Each goes on to whoever else has it: libc,
// or an allocator preloaded after us.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "tests/remap/agent.h"
#include "tests/remap/world.h"

#define REMAP_EXPORT extern "C" __attribute__((visibility("default")))

namespace verbena::remap {
namespace {

template <typename Function>
Function* Next(Function** cached, const char* name) {
  if (*cached == nullptr) *cached = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  return *cached;
}

}  // namespace
}  // namespace verbena::remap

using verbena::remap::how;
using verbena::remap::How;
using verbena::remap::OnCall;

// RESULT NAME(PARAMETERS), called on with ARGUMENTS; a step may happen when it is done.
#define HOOK(RESULT, NAME, PARAMETERS, ARGUMENTS)                       \
  REMAP_EXPORT RESULT NAME PARAMETERS {                                 \
    static RESULT(*next) PARAMETERS = nullptr;                          \
    const RESULT result = verbena::remap::Next(&next, #NAME) ARGUMENTS; \
    OnCall(__builtin_return_address(0));                                \
    return result;                                                      \
  }

HOOK(ssize_t, read, (int fd, void* to, size_t bytes), (fd, to, bytes))
HOOK(ssize_t, recv, (int fd, void* to, size_t bytes, int flags), (fd, to, bytes, flags))
HOOK(ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
HOOK(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
HOOK(ssize_t, send, (int fd, const void* from, size_t bytes, int flags), (fd, from, bytes, flags))
HOOK(int, poll, (pollfd * fds, nfds_t count, int limit_ms), (fds, count, limit_ms))
HOOK(int, select, (int count, fd_set* in, fd_set* out, fd_set* other, timeval* limit),
     (count, in, out, other, limit))
HOOK(int, epoll_wait, (int fd, epoll_event* events, int max, int limit_ms),
     (fd, events, max, limit_ms))
HOOK(int, gettimeofday, (timeval * time, void* zone), (time, zone))
HOOK(off_t, lseek, (int fd, off_t offset, int from), (fd, offset, from))
HOOK(pid_t, waitpid, (pid_t pid, int* status, int options), (pid, status, options))
HOOK(int, close, (int fd), (fd))

REMAP_EXPORT void free(void* block) {
  static void (*next)(void*) = nullptr;
  verbena::remap::Next(&next, "free")(block);
  OnCall(__builtin_return_address(0));
}

// Its handlers hold locks of the library's.
REMAP_EXPORT pid_t fork() {
  static pid_t (*next)() = nullptr;
  const bool was_inside = verbena::remap::EnterFork();
  const pid_t result = verbena::remap::Next(&next, "fork")();
  verbena::remap::LeaveFork(was_inside);
  OnCall(__builtin_return_address(0));
  return result;
}

REMAP_EXPORT void _exit(int code) {
  verbena::remap::Report();
  for (;;) syscall(SYS_exit_group, code);
}

// Registration looks at what is where, copies and maps anew (core/client/payload.cc): from here to
// its end nobody else may do anything. The agent ends it (Register).
REMAP_EXPORT int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  if (how == How::kParking && verbena::remap::IsRegistering() &&
      strcmp(path, "/proc/self/maps") == 0 && !verbena::remap::IsWorldStopped() &&
      !verbena::remap::StopWorld()) {
    errno = EMFILE;
    return -1;
  }
  static int (*next)(const char*, int, ...) = nullptr;
  return verbena::remap::Next(&next, "open")(path, flags, mode);
}

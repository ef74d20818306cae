// Sockets over RDMA: exported, so that programs load, and not supported yet. Each fails with
// ENOSYS.
#include <rdma/rsocket.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

int NotSupported() { return Fail(ENOSYS); }

}  // namespace

VERBENA_EXPORT int rsocket(int, int, int) { return NotSupported(); }
VERBENA_EXPORT int rbind(int, const sockaddr*, socklen_t) { return NotSupported(); }
VERBENA_EXPORT int rlisten(int, int) { return NotSupported(); }
VERBENA_EXPORT int raccept(int, sockaddr*, socklen_t*) { return NotSupported(); }
VERBENA_EXPORT int rconnect(int, const sockaddr*, socklen_t) { return NotSupported(); }
VERBENA_EXPORT int rshutdown(int, int) { return NotSupported(); }
VERBENA_EXPORT int rclose(int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rrecv(int, void*, size_t, int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rrecvfrom(int, void*, size_t, int, sockaddr*, socklen_t*) {
  return NotSupported();
}
VERBENA_EXPORT ssize_t rrecvmsg(int, msghdr*, int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rsend(int, const void*, size_t, int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rsendto(int, const void*, size_t, int, const sockaddr*, socklen_t) {
  return NotSupported();
}
VERBENA_EXPORT ssize_t rsendmsg(int, const msghdr*, int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rread(int, void*, size_t) { return NotSupported(); }
VERBENA_EXPORT ssize_t rreadv(int, const iovec*, int) { return NotSupported(); }
VERBENA_EXPORT ssize_t rwrite(int, const void*, size_t) { return NotSupported(); }
VERBENA_EXPORT ssize_t rwritev(int, const iovec*, int) { return NotSupported(); }
VERBENA_EXPORT int rpoll(pollfd*, nfds_t, int) { return NotSupported(); }
VERBENA_EXPORT int rselect(int, fd_set*, fd_set*, fd_set*, timeval*) { return NotSupported(); }
VERBENA_EXPORT int rgetpeername(int, sockaddr*, socklen_t*) { return NotSupported(); }
VERBENA_EXPORT int rgetsockname(int, sockaddr*, socklen_t*) { return NotSupported(); }
VERBENA_EXPORT int rsetsockopt(int, int, int, const void*, socklen_t) { return NotSupported(); }
VERBENA_EXPORT int rgetsockopt(int, int, int, void*, socklen_t*) { return NotSupported(); }
VERBENA_EXPORT int rfcntl(int, int, ...) { return NotSupported(); }
VERBENA_EXPORT off_t riomap(int, void*, size_t, int, int, off_t) { return NotSupported(); }
VERBENA_EXPORT int riounmap(int, void*, size_t) { return NotSupported(); }
VERBENA_EXPORT size_t riowrite(int, const void*, size_t, off_t, int) {
  return static_cast<size_t>(NotSupported());
}

}  // namespace verbena::rdmacm

// The program's memory at addresses that may be wrong, as a kernel reaches it.
//
// Errors: EFAULT.
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace verbena::ucm {

// `call`: SYS_process_vm_readv or _writev. Where a sandbox refuses it, addresses are believed.
inline int CopyUserMemory(long call, void* own, uint64_t address, size_t bytes) {
  const iovec local = {own, bytes};
  const iovec remote = {reinterpret_cast<void*>(address), bytes};
  const int saved_errno = errno;
  const long moved = syscall(call, getpid(), &local, 1UL, &remote, 1UL, 0UL);
  const bool is_refused = moved < 0 && errno != EFAULT;
  errno = saved_errno;
  if (is_refused) {
    if (call == SYS_process_vm_readv) {
      memcpy(own, remote.iov_base, bytes);
    } else {
      memcpy(remote.iov_base, own, bytes);
    }
    return 0;
  }
  return moved == static_cast<long>(bytes) ? 0 : EFAULT;
}

inline int ReadUserMemory(void* to, uint64_t address, size_t bytes) {
  return CopyUserMemory(SYS_process_vm_readv, to, address, bytes);
}

inline int WriteUserMemory(uint64_t address, const void* from, size_t bytes) {
  return CopyUserMemory(SYS_process_vm_writev, const_cast<void*>(from), address, bytes);
}

}  // namespace verbena::ucm

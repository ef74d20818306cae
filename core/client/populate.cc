// Making a region's pages present at registration, and refusing what the NIC could not reach.
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "core/client/maps_reader.h"
#include "core/client/session.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older libc headers lack them
#define MADV_POPULATE_WRITE 23
#endif

namespace verbena::client {
namespace {

constexpr size_t kTouchBatch = 64;      // pages one process_vm_readv touches
constexpr int kPopulateAttempts = 100;  // EAGAIN means the mapping changed below us

// Whether mappings with the rights cover all of [begin, end).
bool IsMapped(uintptr_t begin, uintptr_t end, bool write) {
  MapsReader maps;
  if (!maps.IsOpen()) return true;  // no /proc: the reads below still find holes
  Mapping mapping;
  while (begin < end && maps.Next(&mapping)) {
    if (mapping.end <= begin) continue;
    if (mapping.begin > begin || !mapping.is_readable || (write && !mapping.is_writable)) {
      return false;
    }
    begin = mapping.end;
  }
  return begin >= end;
}

// Reads one byte of each page by a system call, so that a bad one (a hole, a page beyond a file's
// end) is an error and not a signal.
bool TouchPages(uintptr_t begin, uintptr_t end, size_t page_bytes) {
  iovec remote[kTouchBatch];
  uint8_t sink[kTouchBatch];
  while (begin < end) {
    size_t count = 0;
    for (; count < kTouchBatch && begin < end; ++count, begin += page_bytes) {
      remote[count] = {reinterpret_cast<void*>(begin), 1};
    }
    iovec local = {sink, count};
    ssize_t n = process_vm_readv(getpid(), &local, 1, remote, count, 0);
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) return true;  // forbidden here: rights decide
    if (n != static_cast<ssize_t>(count)) return false;
  }
  return true;
}

}  // namespace

int internal::PopulateBySteps(void* begin, size_t bytes, size_t page_bytes, bool write) {
  auto first = reinterpret_cast<uintptr_t>(begin);
  uintptr_t end = first + bytes;
  return IsMapped(first, end, write) && TouchPages(first, end, page_bytes) ? 0 : EFAULT;
}

int PopulateForRegistration(void* addr, size_t length, bool write) {
  if (length == 0) return 0;
  auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(addr);
  uintptr_t end;
  if (__builtin_add_overflow(begin, length, &end) ||
      __builtin_add_overflow(end, page_bytes - 1, &end)) {
    return EINVAL;
  }
  begin &= ~(page_bytes - 1);
  end &= ~(page_bytes - 1);

  int saved = errno;
  int error = EAGAIN;
  for (int i = 0; i < kPopulateAttempts && (error == EAGAIN || error == EINTR); ++i) {
    bool done = madvise(reinterpret_cast<void*>(begin), end - begin,
                        write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
    error = done ? 0 : errno;
  }
  switch (error) {
    case 0:
      break;
    case ENOMEM:
      // The kernel says so of holes too; hardware says EFAULT for those.
      if (!IsMapped(begin, end, write)) error = EFAULT;
      break;
    case EINVAL:  // before Linux 5.14; or rights are missing; or a device's memory
    case EPERM:   // a seccomp filter that does not know the advice
    case ENOSYS:
      error =
          internal::PopulateBySteps(reinterpret_cast<void*>(begin), end - begin, page_bytes, write);
      break;
    default:  // EFAULT: beyond a file's end; EHWPOISON
      error = EFAULT;
      break;
  }
  errno = saved;
  return error;
}

}  // namespace verbena::client

// libverbena-ucm.so: libc's functions that open /dev/infiniband/rdma_cm and use what that gives,
// for a librdmacm that is the distribution's own. Everything else goes to libc as it came.
//
// Loaded by LD_PRELOAD; the functions have no version, as those of verbs_shim/paths.
#include <fcntl.h>
#include <linux/stat.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>

#include "verbs_shim/paths/libc_next.h"
#include "verbs_shim/ucm/files.h"

namespace verbena::ucm {
namespace {

constexpr char kPath[] = "/dev/infiniband/rdma_cm";

bool IsOurPath(const char* path) {
  return path != nullptr && path[0] == '/' && path[1] == 'd' && strcmp(path, kPath) == 0;
}

bool IsOurFd(int fd) {
  Channel channel;
  return MayBeOurs(fd) && FindChannel(fd, &channel);
}

bool IsFdItself(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && path != nullptr && *path == '\0';
}

template <typename T>
int ShowDevice(int result, T* out) {
  if (result != 0) return result;
  out->st_mode = (out->st_mode & ~static_cast<mode_t>(S_IFMT)) | S_IFCHR;
  out->st_rdev = DeviceNumber();
  return 0;
}

int ShowDeviceX(int result, struct statx* out) {
  if (result != 0) return result;
  const dev_t number = DeviceNumber();
  out->stx_mode = static_cast<uint16_t>((out->stx_mode & ~S_IFMT) | S_IFCHR);
  out->stx_rdev_major = major(number);
  out->stx_rdev_minor = minor(number);
  return 0;
}

}  // namespace
}  // namespace verbena::ucm

using verbena::paths::NeedsMode;
using verbena::paths::Next;
using verbena::paths::NotInLibc;
using verbena::ucm::Channel;
using verbena::ucm::FindChannel;
using verbena::ucm::ForgetFd;
using verbena::ucm::IsFdItself;
using verbena::ucm::IsOurFd;
using verbena::ucm::IsOurPath;
using verbena::ucm::MayBeOurs;
using verbena::ucm::NoteDuplicate;
using verbena::ucm::OpenFile;
using verbena::ucm::ShowDevice;
using verbena::ucm::ShowDeviceX;
using verbena::ucm::WriteFile;

#define NEXT(name)                  \
  auto* next = g_next_##name.Get(); \
  if (next == nullptr) return NotInLibc<int>()

// clang-format off
#define FRONT_OPEN(name)                                                                           \
  extern "C" __attribute__((visibility("default"))) int Front_##name(const char*, int, ...)        \
      __asm__(#name);                                                                              \
  VERBENA_NEXT static constinit Next<int(const char*, int, ...)> g_next_##name(#name);             \
  int Front_##name(const char* path, int flags, ...) {                                             \
    if (IsOurPath(path)) return OpenFile(flags);                                                   \
    unsigned mode = 0;                                                                             \
    if (NeedsMode(flags)) {                                                                        \
      va_list list;                                                                                \
      va_start(list, flags);                                                                       \
      mode = va_arg(list, unsigned);                                                               \
      va_end(list);                                                                                \
    }                                                                                              \
    NEXT(name);                                                                                    \
    return next(path, flags, mode);                                                                \
  }
#define FRONT_OPENAT(name)                                                                         \
  extern "C" __attribute__((visibility("default"))) int Front_##name(int, const char*, int, ...)   \
      __asm__(#name);                                                                              \
  VERBENA_NEXT static constinit Next<int(int, const char*, int, ...)> g_next_##name(#name);        \
  int Front_##name(int directory_fd, const char* path, int flags, ...) {                           \
    if (IsOurPath(path)) return OpenFile(flags);                                                   \
    unsigned mode = 0;                                                                             \
    if (NeedsMode(flags)) {                                                                        \
      va_list list;                                                                                \
      va_start(list, flags);                                                                       \
      mode = va_arg(list, unsigned);                                                               \
      va_end(list);                                                                                \
    }                                                                                              \
    NEXT(name);                                                                                    \
    return next(directory_fd, path, flags, mode);                                                  \
  }
// What _FORTIFY_SOURCE makes of them.
#define FRONT_OPEN_2(name)                                                                         \
  DECLARE(int, name, const char* path, int flags) {                                                \
    if (IsOurPath(path)) return OpenFile(flags);                                                   \
    NEXT(name);                                                                                    \
    return next(path, flags);                                                                      \
  }
#define FRONT_OPENAT_2(name)                                                                       \
  DECLARE(int, name, int directory_fd, const char* path, int flags) {                              \
    if (IsOurPath(path)) return OpenFile(flags);                                                   \
    NEXT(name);                                                                                    \
    return next(directory_fd, path, flags);                                                        \
  }
#define FRONT_FSTAT(name, type)                                                                    \
  DECLARE(int, name, int fd, struct type* out) {                                                   \
    NEXT(name);                                                                                    \
    const int result = next(fd, out);                                                              \
    return IsOurFd(fd) ? ShowDevice(result, out) : result;                                         \
  }
// What programs built with a glibc before 2.33 call.
#define FRONT_FXSTAT(name, type)                                                                   \
  DECLARE(int, name, int version, int fd, struct type* out) {                                      \
    NEXT(name);                                                                                    \
    const int result = next(version, fd, out);                                                     \
    return IsOurFd(fd) ? ShowDevice(result, out) : result;                                         \
  }
#define FRONT_FSTATAT(name, type)                                                                  \
  DECLARE(int, name, int fd, const char* path, struct type* out, int flags) {                      \
    NEXT(name);                                                                                    \
    const int result = next(fd, path, out, flags);                                                 \
    return IsFdItself(path, flags) && IsOurFd(fd) ? ShowDevice(result, out) : result;              \
  }
#define FRONT_FCNTL(name)                                                                          \
  extern "C" __attribute__((visibility("default"))) int Front_##name(int, int, ...)                \
      __asm__(#name);                                                                              \
  VERBENA_NEXT static constinit Next<int(int, int, ...)> g_next_##name(#name);                     \
  int Front_##name(int fd, int operation, ...) {                                                   \
    va_list list;                                                                                  \
    va_start(list, operation);                                                                     \
    void* argument = va_arg(list, void*);                                                          \
    va_end(list);                                                                                  \
    NEXT(name);                                                                                    \
    const bool is_copied =                                                                         \
        (operation == F_DUPFD || operation == F_DUPFD_CLOEXEC) && IsOurFd(fd);                     \
    const int result = next(fd, operation, argument);                                              \
    if (is_copied && result >= 0) NoteDuplicate(fd, result);                                       \
    return result;                                                                                 \
  }
// clang-format on

FRONT_OPEN(open)
FRONT_OPEN(open64)
FRONT_OPENAT(openat)
FRONT_OPENAT(openat64)
FRONT_OPEN_2(__open_2)
FRONT_OPEN_2(__open64_2)
FRONT_OPENAT_2(__openat_2)
FRONT_OPENAT_2(__openat64_2)

FRONT_FSTAT(fstat, stat)
FRONT_FSTAT(fstat64, stat64)
FRONT_FXSTAT(__fxstat, stat)
FRONT_FXSTAT(__fxstat64, stat64)
FRONT_FSTATAT(fstatat, stat)
FRONT_FSTATAT(fstatat64, stat64)

DECLARE(int, statx, int fd, const char* path, int flags, unsigned mask, struct statx* out) {
  NEXT(statx);
  const int result = next(fd, path, flags, mask, out);
  return IsFdItself(path, flags) && IsOurFd(fd) ? ShowDeviceX(result, out) : result;
}

DECLARE(ssize_t, write, int fd, const void* data, size_t bytes) {
  Channel channel;
  if (__builtin_expect(MayBeOurs(fd), 0) && FindChannel(fd, &channel)) {
    return WriteFile(channel, fd, data, bytes);
  }
  NEXT(write);
  return next(fd, data, bytes);
}

// The fd first: its number may be another's as soon as it is closed.
DECLARE(int, close, int fd) {
  if (__builtin_expect(MayBeOurs(fd), 0)) ForgetFd(fd);
  NEXT(close);
  return next(fd);
}

FRONT_FCNTL(fcntl)
FRONT_FCNTL(fcntl64)

DECLARE(int, dup, int fd) {
  NEXT(dup);
  const bool is_copied = IsOurFd(fd);
  const int result = next(fd);
  if (is_copied && result >= 0) NoteDuplicate(fd, result);
  return result;
}

DECLARE(int, dup2, int fd, int copy) {
  NEXT(dup2);
  const bool is_copied = fd != copy && IsOurFd(fd);
  if (fd != copy && MayBeOurs(copy)) ForgetFd(copy);
  const int result = next(fd, copy);
  if (is_copied && result >= 0) NoteDuplicate(fd, result);
  return result;
}

DECLARE(int, dup3, int fd, int copy, int flags) {
  NEXT(dup3);
  const bool is_copied = IsOurFd(fd);
  if (fd != copy && MayBeOurs(copy)) ForgetFd(copy);
  const int result = next(fd, copy, flags);
  if (is_copied && result >= 0) NoteDuplicate(fd, result);
  return result;
}

// libverbena-paths.so: libc's functions that take a path, for programs that look for RDMA devices
// at /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband/uverbsN instead of
// asking libibverbs for their paths. Every other path goes to libc as it came.
//
// Loaded by LD_PRELOAD: plugins (of UCX, of an MPI) find libc's functions before those of a library
// that they need themselves. The functions have no version here, and so serve each that is asked
// for.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

#include "verbs_shim/paths/instance_paths.h"
#include "verbs_shim/paths/libc_next.h"

namespace verbena::paths {
namespace {

// Not inlined: the other paths should not pay for its stack.
template <typename Call>
__attribute__((noinline)) auto CallWithTarget(int directory_fd, const char* path, Call call) {
  Target target(directory_fd, path);
  return call(target.directory_fd(), target.path());
}

template <typename Call>
inline auto CallAt(int directory_fd, const char* path, Call call) {
  if (__builtin_expect(!MayBeOurs(path), 1)) return call(directory_fd, path);
  return CallWithTarget(directory_fd, path, call);
}

template <typename Call>
inline auto CallWith(const char* path, Call call) {
  return CallAt(AT_FDCWD, path, [call](int, const char* to) { return call(to); });
}

}  // namespace
}  // namespace verbena::paths

using verbena::paths::CallAt;
using verbena::paths::CallWith;
using verbena::paths::NeedsMode;
using verbena::paths::Next;
using verbena::paths::NotInLibc;

// `path` leads; the arguments behind it.
#define CALL(type, name, ...)                                                                   \
  {                                                                                             \
    auto* next = g_next_##name.Get();                                                           \
    if (next == nullptr) return NotInLibc<type>();                                              \
    return CallWith(path, [=](const char* to) { return next(to __VA_OPT__(, ) __VA_ARGS__); }); \
  }

// `directory_fd` and `path` lead.
#define CALL_AT(type, name, ...)                                                      \
  {                                                                                   \
    auto* next = g_next_##name.Get();                                                 \
    if (next == nullptr) return NotInLibc<type>();                                    \
    return CallAt(directory_fd, path,                                                 \
                  [=](int fd, const char* to) { return next(fd, to, __VA_ARGS__); }); \
  }

#define FRONT_OPEN(name)                                 \
  DECLARE(int, name, const char* path, int flags, ...) { \
    unsigned mode = 0;                                   \
    if (NeedsMode(flags)) {                              \
      va_list list;                                      \
      va_start(list, flags);                             \
      mode = va_arg(list, unsigned);                     \
      va_end(list);                                      \
    }                                                    \
    CALL(int, name, flags, mode)                         \
  }
#define FRONT_OPENAT(name)                                                 \
  DECLARE(int, name, int directory_fd, const char* path, int flags, ...) { \
    unsigned mode = 0;                                                     \
    if (NeedsMode(flags)) {                                                \
      va_list list;                                                        \
      va_start(list, flags);                                               \
      mode = va_arg(list, unsigned);                                       \
      va_end(list);                                                        \
    }                                                                      \
    CALL_AT(int, name, flags, mode)                                        \
  }
#define FRONT_STAT(name) DECLARE(int, name, const char* path, void* out) CALL(int, name, out)
#define FRONT_FSTATAT(name)                                                    \
  DECLARE(int, name, int directory_fd, const char* path, void* out, int flags) \
  CALL_AT(int, name, out, flags)

FRONT_OPEN(open)
FRONT_OPEN(open64)
FRONT_OPENAT(openat)
FRONT_OPENAT(openat64)

// What _FORTIFY_SOURCE makes of those above.
DECLARE(int, __open_2, const char* path, int flags)
CALL(int, __open_2, flags)
DECLARE(int, __open64_2, const char* path, int flags) CALL(int, __open64_2, flags)
    DECLARE(int, __openat_2, int directory_fd, const char* path,
            int flags) CALL_AT(int, __openat_2,
                               flags) DECLARE(int, __openat64_2, int directory_fd, const char* path,
                                              int flags) CALL_AT(int, __openat64_2, flags)

        DECLARE(void*, fopen, const char* path, const char* mode) CALL(void*, fopen, mode)
            DECLARE(void*, fopen64, const char* path, const char* mode) CALL(void*, fopen64, mode)

                FRONT_STAT(stat) FRONT_STAT(stat64) FRONT_STAT(lstat) FRONT_STAT(lstat64)
                    FRONT_FSTATAT(fstatat) FRONT_FSTATAT(fstatat64)
                        DECLARE(int, statx, int directory_fd, const char* path, int flags,
                                unsigned mask, void* out) CALL_AT(int, statx, flags, mask, out)

// What programs built with a glibc before 2.33 call. Their first argument is a version.
#define FRONT_XSTAT(name)                                                          \
  DECLARE(int, name, int version, const char* path, void* out) {                   \
    auto* next = g_next_##name.Get();                                              \
    if (next == nullptr) return NotInLibc<int>();                                  \
    return CallWith(path, [=](const char* to) { return next(version, to, out); }); \
  }
#define FRONT_FXSTATAT(name)                                                                  \
  DECLARE(int, name, int version, int directory_fd, const char* path, void* out, int flags) { \
    auto* next = g_next_##name.Get();                                                         \
    if (next == nullptr) return NotInLibc<int>();                                             \
    return CallAt(directory_fd, path,                                                         \
                  [=](int fd, const char* to) { return next(version, fd, to, out, flags); }); \
  }
                            FRONT_XSTAT(__xstat) FRONT_XSTAT(__xstat64) FRONT_XSTAT(__lxstat)
                                FRONT_XSTAT(__lxstat64) FRONT_FXSTATAT(__fxstatat)
                                    FRONT_FXSTATAT(__fxstatat64)

                                        DECLARE(int, access, const char* path,
                                                int mode) CALL(int, access, mode)
                                            DECLARE(int, eaccess, const char* path,
                                                    int mode) CALL(int, eaccess, mode)
                                                DECLARE(int, euidaccess, const char* path,
                                                        int mode) CALL(int, euidaccess, mode)
                                                    DECLARE(int, faccessat, int directory_fd,
                                                            const char* path, int mode, int flags)
                                                        CALL_AT(int, faccessat, mode, flags)

    // `ls -l` asks for access control lists.
    DECLARE(ssize_t, getxattr, const char* path, const char* name, void* out,
            size_t bytes) CALL(ssize_t, getxattr, name, out, bytes)
        DECLARE(ssize_t, lgetxattr, const char* path, const char* name, void* out,
                size_t bytes) CALL(ssize_t, lgetxattr, name, out,
                                   bytes) DECLARE(ssize_t, listxattr, const char* path, char* out,
                                                  size_t bytes) CALL(ssize_t, listxattr, out, bytes)
            DECLARE(ssize_t, llistxattr, const char* path, char* out,
                    size_t bytes) CALL(ssize_t, llistxattr, out, bytes)

                DECLARE(void*, opendir, const char* path) CALL(void*, opendir)
                    DECLARE(int, scandir, const char* path, void* list, void* filter,
                            void* compare) CALL(int, scandir, list, filter, compare)
                        DECLARE(int, scandir64, const char* path, void* list, void* filter,
                                void* compare) CALL(int, scandir64, list, filter, compare)
                            DECLARE(int, scandirat, int directory_fd, const char* path, void* list,
                                    void* filter,
                                    void* compare) CALL_AT(int, scandirat, list, filter, compare)
                                DECLARE(int, scandirat64, int directory_fd,
                                        const char* path, void* list, void* filter,
                                        void* compare) CALL_AT(int, scandirat64, list, filter,
                                                               compare)

                                    DECLARE(ssize_t, readlink, const char* path, char* out,
                                            size_t bytes) CALL(ssize_t, readlink, out, bytes)
                                        DECLARE(ssize_t, readlinkat, int directory_fd,
                                                const char* path, char* out, size_t bytes)
                                            CALL_AT(ssize_t, readlinkat, out,
                                                    bytes) DECLARE(ssize_t, __readlink_chk,
                                                                   const char* path,
                                                                   char* out, size_t bytes,
                                                                   size_t room)
                                                CALL(ssize_t, __readlink_chk, out, bytes,
                                                     room) DECLARE(ssize_t, __readlinkat_chk,
                                                                   int directory_fd,
                                                                   const char* path, char* out,
                                                                   size_t bytes, size_t room)
                                                    CALL_AT(ssize_t, __readlinkat_chk, out, bytes,
                                                            room) DECLARE(char*, realpath,
                                                                          const char* path,
                                                                          char* out)
                                                        CALL(char*, realpath,
                                                             out) DECLARE(char*, __realpath_chk,
                                                                          const char* path,
                                                                          char* out, size_t room)
                                                            CALL(char*, __realpath_chk, out, room)
                                                                DECLARE(char*,
                                                                        canonicalize_file_name,
                                                                        const char* path)
                                                                    CALL(char*,
                                                                         canonicalize_file_name)

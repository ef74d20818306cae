#include "verbs_shim/paths/instance_paths.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace verbena::paths {
namespace {

// The system call itself: libc's functions of the family are those we stand in front of.
bool Stat(int directory_fd, const char* path, int flags, struct statx* out) {
  return syscall(SYS_statx, directory_fd, path, flags,
                 STATX_TYPE | STATX_MODE | STATX_UID | STATX_INO, out) == 0;
}

bool Exists(const char* path) {
  struct statx info;
  return Stat(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &info);
}

// As the client library judges it (core/client/instance.cc).
bool IsOwnDirectory(const char* path) {
  struct statx info;
  return Stat(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &info) && (info.stx_mode & S_IFMT) == S_IFDIR &&
         info.stx_uid == geteuid() && (info.stx_mode & 022) == 0;
}

bool IsRoot(int directory_fd) {
  struct statx given, root;
  return Stat(directory_fd, "", AT_EMPTY_PATH, &given) && Stat(AT_FDCWD, "/", 0, &root) &&
         given.stx_ino == root.stx_ino && given.stx_dev_major == root.stx_dev_major &&
         given.stx_dev_minor == root.stx_dev_minor;
}

bool IsEndOfName(char c) { return c == '/' || c == '\0'; }

// Of a path that may be ours, without its first slash.
bool IsOurs(const char* path) {
  if (*path == 's') {
    const char* rest = path + strlen("sys/class/infiniband");
    if (StartsWith(rest, "_verbs")) rest += strlen("_verbs");
    return IsEndOfName(*rest);
  }
  const char* digit = path + strlen("dev/infiniband/uverbs");
  if (*digit == '\0') return false;
  while (*digit >= '0' && *digit <= '9') ++digit;
  return *digit == '\0';
}

}  // namespace

bool Target::Append(const char* text) {
  const size_t bytes = strlen(text);
  if (bytes >= sizeof(buffer_) - length_) return false;
  memcpy(buffer_ + length_, text, bytes + 1);
  length_ += bytes;
  return true;
}

bool Target::AppendNumber(unsigned long long number) {
  char digits[24];
  char* first = digits + sizeof(digits);
  *--first = '\0';
  do {
    *--first = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return Append(first);
}

// Leaves the tree's path in the buffer. The places are those where the client library looks for its
// instance, in its order; an instance that runs has a tree.
bool Target::FindTree() {
  const char* chosen = secure_getenv("VERBENA_INSTANCE");
  if (chosen != nullptr && *chosen != '\0') {
    return Append(chosen) && IsOwnDirectory(buffer_) && Append("/paths") && Exists(buffer_);
  }
  struct statx namespace_info;
  unsigned long long inode = 0;
  if (Stat(AT_FDCWD, "/proc/self/ns/net", 0, &namespace_info)) inode = namespace_info.stx_ino;
  for (const char* base :
       {"/run/user/", "/tmp/verbena-", "/var/tmp/verbena-", "/dev/shm/verbena-"}) {
    length_ = 0;
    if (!Append(base) || !AppendNumber(geteuid())) continue;
    if (base[1] == 'r' && (!IsOwnDirectory(buffer_) || !Append("/verbena"))) continue;
    if (IsOwnDirectory(buffer_) && Append("/net-") && AppendNumber(inode) &&
        IsOwnDirectory(buffer_) && Append("/paths") && Exists(buffer_)) {
      return true;
    }
  }
  return false;
}

Target::Target(int directory_fd, const char* path) : directory_fd_(directory_fd), path_(path) {
  const int saved_errno = errno;
  const bool is_absolute = *path == '/';
  const char* below_root = is_absolute ? path + 1 : path;
  if (IsOurs(below_root) && (is_absolute || (directory_fd != AT_FDCWD && IsRoot(directory_fd))) &&
      FindTree() && Append("/") && Append(below_root)) {
    directory_fd_ = AT_FDCWD;
    // A character device that may be read and written, which is all that programs ask of it.
    path_ = *below_root == 'd' && Exists(buffer_) ? "/dev/null" : buffer_;
  }
  errno = saved_errno;
}

}  // namespace verbena::paths

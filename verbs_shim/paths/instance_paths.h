// Which paths are answered by the instance's tree, and where that tree is.
//
// Nothing here allocates, locks, or changes errno: open, stat and access may be called anywhere, in
// signal handlers and in forked children.
#pragma once

#include <stddef.h>

namespace verbena::paths {

// Whether a path may be one of those that the instance answers. Decided by its first bytes for
// nearly all others.
inline bool StartsWith(const char* text, const char* start) {
  for (; *start != '\0'; ++text, ++start) {
    if (*text != *start) return false;
  }
  return true;
}

inline bool MayBeOurs(const char* path) {
  if (path == nullptr) return false;
  if (*path == '/') ++path;  // without: of a directory fd, which may be that of the root
  if (path[0] == 's') return StartsWith(path, "sys/class/infiniband");
  return path[0] == 'd' && StartsWith(path, "dev/infiniband/uverbs");
}

// Where a path leads. The strings are the given one, or live as long as this object.
class Target {
 public:
  Target(int directory_fd, const char* path);
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  int directory_fd() const { return directory_fd_; }
  const char* path() const { return path_; }

 private:
  bool Append(const char* text);
  bool AppendNumber(unsigned long long number);
  bool FindTree();

  int directory_fd_;
  const char* path_;
  // An instance's directory holds a socket, whose path has at most 107 bytes.
  char buffer_[512];
  size_t length_ = 0;
};

}  // namespace verbena::paths

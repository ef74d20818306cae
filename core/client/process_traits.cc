#include "core/client/process_traits.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// Exported by the allocators concerned: jemalloc, tcmalloc, mimalloc.
extern "C" {
__attribute__((weak)) int mallctl(const char*, void*, size_t*, void*, size_t);
__attribute__((weak)) int je_mallctl(const char*, void*, size_t*, void*, size_t);
__attribute__((weak)) const char* tc_version(int*, int*, const char**);
__attribute__((weak)) int mi_version(void);
}

namespace verbena::client {
namespace {

// As getdents64(2) has it; libc's readdir allocates.
struct DirectoryEntry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

bool IsIoUring(int directory, const char* name) {
  char target[64];
  ssize_t n = readlinkat(directory, name, target, sizeof(target) - 1);
  if (n < 0) return false;
  target[n] = '\0';
  return std::strcmp(target, "anon_inode:[io_uring]") == 0;
}

}  // namespace

bool IsSingleThreaded() {
  // A directory's links: itself, its name, and one for each directory in it.
  struct statx status;
  return statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &status) == 0 && status.stx_nlink == 3;
}

bool HasZeroingAllocator() {
  return mallctl != nullptr || je_mallctl != nullptr || tc_version != nullptr ||
         mi_version != nullptr;
}

bool HasPinnedPages() {
  int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return true;
  alignas(DirectoryEntry) char buffer[2048];
  bool found = false;
  for (;;) {
    long n = syscall(SYS_getdents64, directory, buffer, sizeof(buffer));
    if (n <= 0) {
      found = found || n < 0;
      break;
    }
    for (long at = 0; at < n && !found;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      found = IsIoUring(directory, entry->name);
      at += entry->length;
    }
    if (found) break;
  }
  close(directory);
  return found;
}

bool HasLockedPages() {
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[4096];
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return true;
  text[n] = '\0';
  const char* line = std::strstr(text, "\nVmLck:");
  if (line == nullptr) return true;
  for (line += 7; *line == ' ' || *line == '\t';) ++line;
  return *line != '0';
}

}  // namespace verbena::client

#include "core/base/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace verbena {

int ReadFile(const std::string& path, size_t bytes_max, std::string* out) {
  out->clear();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = 0;
  for (char piece[4096];;) {
    const ssize_t bytes = read(fd, piece, sizeof(piece));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) error = errno;
    if (bytes <= 0) break;
    out->append(piece, static_cast<size_t>(bytes));
    if (out->size() <= bytes_max) continue;
    error = EFBIG;
    break;
  }
  close(fd);
  return error;
}

}  // namespace verbena

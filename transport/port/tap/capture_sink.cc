#include "transport/port/tap/capture_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace verbena::transport::tap {

FdSink::FdSink(int fd) : fd_(fd) {
  struct stat status;
  is_regular_ = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

FdSink::~FdSink() { Close(); }

void FdSink::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int64_t FdSink::Write(const std::byte* bytes, uint32_t length) {
  uint32_t done = 0;
  while (done < length) {
    uint32_t chunk = length - done;
    if (!is_regular_) {
      // The descriptor may be shared with others, so it isn't made non-blocking: a pipe that poll
      // calls writable takes PIPE_BUF bytes without blocking (we are its only writer).
      pollfd poll_fd = {fd_, POLLOUT, 0};
      const int ready = poll(&poll_fd, 1, 0);
      if (ready == 0 || (ready < 0 && errno == EINTR)) return done;
      if ((poll_fd.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        return (poll_fd.revents & POLLNVAL) != 0 ? -EBADF : -EPIPE;
      }
      chunk = std::min<uint32_t>(chunk, PIPE_BUF);
    }
    const ssize_t count = write(fd_, bytes + done, chunk);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return done;
    // An error after a part was taken comes again with the next call.
    if (count < 0) return done != 0 ? static_cast<int64_t>(done) : -errno;
    done += static_cast<uint32_t>(count);
    written_ += static_cast<uint64_t>(count);
  }
  return done;
}

bool FdSink::Unwrite(uint32_t length) {
  if (!is_regular_ || length > written_) return false;
  const off_t end = lseek(fd_, 0, SEEK_CUR);
  // What can't be cut off stays: readers of pcapng stop before half a block.
  if (end < static_cast<off_t>(length) || ftruncate(fd_, end - length) != 0) return false;
  written_ -= length;
  lseek(fd_, end - length, SEEK_SET);
  return true;
}

}  // namespace verbena::transport::tap

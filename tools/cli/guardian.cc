#include "tools/cli/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tools/cli/paths.h"
#include "tools/cli/session.h"

namespace verbena::cli {
namespace {

// Leaves the terminal, the working directory and every fd but `keep` behind: a caller that waits
// for the end of our output must not wait for this process. Returns the kept fds' new numbers.
std::vector<int> Detach(const std::vector<int>& keep) {
  ::setsid();
  if (::chdir("/") != 0) ::_exit(1);
  const int base = 3 + static_cast<int>(keep.size());
  std::vector<int> moved;
  for (const int fd : keep) moved.push_back(fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, base));
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null_fd, fd);
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved[i] >= 0) moved[i] = ::dup2(moved[i], 3 + static_cast<int>(i));
  }
  ::syscall(SYS_close_range, static_cast<unsigned>(base), ~0u, 0u);
  return moved;
}

// True for a byte, false for the end of the file.
bool ReadByte(int fd) {
  char byte;
  ssize_t got;
  do {
    got = ::read(fd, &byte, 1);
  } while (got < 0 && errno == EINTR);
  return got == 1;
}

void WriteByte(int fd) {
  const char byte = 'D';
  ssize_t put;
  do {
    put = ::write(fd, &byte, 1);
  } while (put < 0 && errno == EINTR);
}

}  // namespace

Guardian::Guardian(const std::string& directory, int daemon_pidfd) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = ::fork();
  if (pid_ == 0) {
    const std::vector<int> fds = Detach({ends[0], daemon_pidfd});
    if (!ReadByte(fds[0])) {
      if (fds[1] >= 0) WaitForEnd(fds[1], -1);
      RemoveInstanceDirectory(directory);
    }
    ::_exit(0);
  }
  ::close(ends[0]);
  pipe_write_ = ends[1];
}

Guardian::~Guardian() {
  if (pipe_write_ < 0) return;
  if (pid_ > 0) WriteByte(pipe_write_);
  ::close(pipe_write_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

bool StartHolder(int held_fd) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid > 0;
  const std::vector<int> fds = Detach({held_fd});
  pollfd waited = {.fd = fds[0], .events = POLLRDHUP, .revents = 0};
  while (::poll(&waited, 1, -1) < 0 && errno == EINTR) {
  }
  ::_exit(0);
}

}  // namespace verbena::cli

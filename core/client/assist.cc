#include "core/client/assist.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "core/client/assist_helper.h"
#include "core/client/waiting.h"

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000  // Linux 5.2; older libc headers lack it
#endif
#ifndef P_PIDFD
#define P_PIDFD static_cast<idtype_t>(3)  // Linux 5.4
#endif

namespace verbena::client {

using internal::HelperBlock;

struct Helper {
  void* area = MAP_FAILED;
  void* stack = MAP_FAILED;
  size_t stack_bytes = 0;
  int pidfd = -1;
  pid_t pid = 0;
};

namespace {

constexpr size_t kStackBytes = 16 * 1024;
constexpr int64_t kStartTimeoutMs = 5'000;  // on a machine with too much to do
constexpr int kStartLookMs = 20;
constexpr int kEndTimeoutMs = 1'000;  // a kill; longer only where the kernel lets nothing go

struct Fds {
  int area = -1, socket = -1, host = -1;
  ~Fds() {
    for (int fd : {area, socket, host}) {
      if (fd >= 0) close(fd);
    }
  }
};

size_t RoundUpTo(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A guard page, the stack, and its block on top. Not for forked children.
HelperBlock* MapMemory(Helper* helper, int area_fd) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  helper->stack_bytes = RoundUpTo(kStackBytes, page) + 2 * page;
  helper->area =
      mmap(nullptr, shm::kAssistStagingOffset, PROT_READ | PROT_WRITE, MAP_SHARED, area_fd, 0);
  helper->stack = mmap(nullptr, helper->stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (helper->area == MAP_FAILED || helper->stack == MAP_FAILED ||
      mprotect(helper->stack, page, PROT_NONE) != 0 ||
      madvise(helper->area, shm::kAssistStagingOffset, MADV_DONTFORK) != 0 ||
      madvise(helper->stack, helper->stack_bytes, MADV_DONTFORK) != 0) {
    return nullptr;
  }
  return new (static_cast<char*>(helper->stack) + helper->stack_bytes - page) HelperBlock();
}

void UnmapMemory(Helper* helper) {
  if (helper->area != MAP_FAILED) munmap(helper->area, shm::kAssistStagingOffset);
  if (helper->stack != MAP_FAILED) munmap(helper->stack, helper->stack_bytes);
}

// Signals of the host interrupt the wait, and do not end it.
bool HasEnded(const Helper& helper, int wait_ms) {
  return AwaitInput(helper.pidfd, MonotonicMs() + wait_ms);
}

// 0 or errno. From its first instruction on it takes no signals.
int Clone(Helper* helper, HelperBlock* block) {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);  // of this thread alone, on Linux
  // No exit signal: nobody is told of its end, and wait() leaves it alone. Debuggers and tracers
  // of the host do not follow it.
  int pidfd = -1;
  const pid_t pid =
      clone(internal::HelperMain, block, CLONE_VM | CLONE_PIDFD | CLONE_UNTRACED, block, &pidfd);
  const int error = pid < 0 ? errno : 0;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  helper->pid = pid;
  helper->pidfd = pidfd;
  return error;
}

// Whether it works, after all.
int AwaitStart(const Helper& helper, HelperBlock* block) {
  const int64_t deadline_ms = MonotonicMs() + kStartTimeoutMs;
  for (;;) {
    const uint32_t state = block->state.load(std::memory_order_acquire);  // pairs with Tell
    if (state == internal::kHelperWorks) return 0;
    if (state == internal::kHelperFailed) return block->error != 0 ? block->error : EIO;
    if (HasEnded(helper, 0)) return ESRCH;
    if (MonotonicMs() > deadline_ms) return ETIMEDOUT;
    FutexWait(block->state, internal::kHelperStarts, kStartLookMs, /*shared=*/false);
  }
}

int Start(Fds* fds, Helper* helper) {
  HelperBlock* block = MapMemory(helper, fds->area);
  if (block == nullptr) return ENOMEM;
  // Where it is refused the socket alone tells the helper of our end, by way of the daemon.
  fds->host = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  block->area = static_cast<shm::AssistArea*>(helper->area);
  block->area_fd = fds->area;
  block->socket_fd = fds->socket;
  block->host_pidfd = fds->host;
  const int error = Clone(helper, block);
  if (error != 0) return error == ENOMEM || error == EMFILE ? error : EOPNOTSUPP;
  return AwaitStart(*helper, block) == 0 ? 0 : EOPNOTSUPP;
}

}  // namespace

int StartHelper(int area_fd, int socket_fd, Helper** out) {
  *out = nullptr;
  Fds fds;
  fds.area = area_fd;
  fds.socket = socket_fd;
  if (!internal::kHelperIsPossible) return EOPNOTSUPP;
  auto* helper = new (std::nothrow) Helper();
  if (helper == nullptr) return ENOMEM;
  const int saved = errno;
  const int error = Start(&fds, helper);
  if (error == 0) {
    *out = helper;
  } else {
    StopHelper(helper);
  }
  errno = saved;
  return error;
}

// The pidfd names it even if the host has reaped it by a wait for all there is.
void StopHelper(Helper* helper) {
  const int saved = errno;
  bool is_gone = helper->pidfd < 0;
  if (!is_gone) {
    syscall(SYS_pidfd_send_signal, helper->pidfd, SIGKILL, nullptr, 0);
    is_gone = HasEnded(*helper, kEndTimeoutMs);
    siginfo_t info;
    waitid(P_PIDFD, static_cast<id_t>(helper->pidfd), &info, WEXITED | WNOHANG | __WALL);
    close(helper->pidfd);
  }
  if (is_gone) UnmapMemory(helper);  // else what it runs on must stay
  delete helper;
  errno = saved;
}

void ForgetHelper(Helper* helper) {
  const int saved = errno;
  if (helper->pidfd >= 0) close(helper->pidfd);
  delete helper;
  errno = saved;
}

pid_t HelperPid(const Helper* helper) { return helper->pid; }

namespace {

// In a real attempt the daemon makes the file: here a limit of this process would be its death.
class FileSizeAllowed {
 public:
  explicit FileSizeAllowed(uint64_t bytes) {
    if (getrlimit(RLIMIT_FSIZE, &before_) != 0 || before_.rlim_max < bytes) return;
    rlimit wide = before_;
    wide.rlim_cur = wide.rlim_max;
    is_allowed_ = setrlimit(RLIMIT_FSIZE, &wide) == 0;
  }
  ~FileSizeAllowed() {
    if (is_allowed_) setrlimit(RLIMIT_FSIZE, &before_);
  }
  FileSizeAllowed(const FileSizeAllowed&) = delete;
  bool is_allowed() const { return is_allowed_; }

 private:
  rlimit before_{};
  bool is_allowed_ = false;
};

}  // namespace

int TryHelper() {
  const FileSizeAllowed size(shm::kAssistFileBytes);
  if (!size.is_allowed()) return EFBIG;
  int ends[2];
  const int area_fd = memfd_create("verbena-assist", MFD_CLOEXEC);
  if (area_fd < 0) return errno;
  if (ftruncate(area_fd, shm::kAssistFileBytes) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    const int error = errno;
    close(area_fd);
    return error;
  }
  Helper* helper = nullptr;
  const int error = StartHelper(area_fd, ends[1], &helper);
  if (error == 0) StopHelper(helper);
  close(ends[0]);
  return error;
}

}  // namespace verbena::client

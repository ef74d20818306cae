#include "core/client/daemon_start.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "core/client/waiting.h"

// The child shares our memory until it has run exec: nothing of a sanitizer's may run in it.
#define VERBENA_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

// libc's clone by its other name: ThreadSanitizer takes clone() for a fork and, since the memory is
// shared, would mark this very process as a forked child.
extern "C" int __clone(int (*function)(void*), void* stack_top, int flags, void* argument, ...);

namespace verbena::client {
namespace {

constexpr int64_t kReadyTimeoutMs = 10'000;
constexpr off_t kMaxLogBytes = 1 << 20;
constexpr int kReadyFd = 3;                // the daemon's: just above its stdio
constexpr int kFirstSpareFd = 10;          // above all fds that the child puts in place
constexpr size_t kStackBytes = 64 * 1024;  // of each of the two processes between us and exec
constexpr int kLastSignal = 64;
constexpr unsigned kCloseAll = ~0u;

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { Reset(); }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// Everything the children need, made before they exist: they may not allocate.
struct Launch {
  const char* path;
  char* const* argv;
  char* const* environment;
  int ready_fd;
  int log_fd;
  int null_fd;
  char* daemon_stack_top;
  cpu_set_t all_cpus;
  volatile pid_t daemon_pid;
  volatile int error;  // errno of the step that failed, 0 if exec succeeded
};

// _exit without the sanitizers' last reports, which would be about the host's memory.
[[noreturn]] VERBENA_IN_CHILD void Leave(int status) {
  for (;;) syscall(SYS_exit_group, status);
}

// Closes every fd from `first` up where close_range is missing or forbidden.
VERBENA_IN_CHILD void CloseFdsFrom(int first) {
  if (syscall(SYS_close_range, static_cast<unsigned>(first), kCloseAll, 0u) == 0) return;
  rlimit limit;
  int end = 65'536;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < 1u << 20) {
    end = static_cast<int>(limit.rlim_max);
  }
  for (int fd = first; fd < end; ++fd) syscall(SYS_close, fd);
}

// Undoes what the host chose for itself and a daemon shared by others must not inherit: CPU
// pinning, real-time policy, and soft limits that would kill it (ulimit -t, -f).
VERBENA_IN_CHILD void ResetScheduling(const Launch& launch) {
  sched_setaffinity(0, sizeof(launch.all_cpus), &launch.all_cpus);
  sched_param normal = {};
  sched_setscheduler(0, SCHED_OTHER, &normal);
  for (int resource :
       {static_cast<int>(RLIMIT_CPU), static_cast<int>(RLIMIT_FSIZE), static_cast<int>(RLIMIT_AS),
        static_cast<int>(RLIMIT_DATA), static_cast<int>(RLIMIT_NOFILE)}) {
    rlimit limit;
    auto kind = static_cast<__rlimit_resource>(resource);
    if (getrlimit(kind, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(kind, &limit);
  }
}

// Signals as a new process has them: none handled or ignored, none blocked.
VERBENA_IN_CHILD void ResetSignals() {
  uint64_t standard[4] = {};  // the kernel's sigaction: handler, flags, restorer, mask
  for (int number = 1; number <= kLastSignal; ++number) {
    syscall(SYS_rt_sigaction, number, standard, nullptr, sizeof(uint64_t));
  }
  uint64_t none = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof(none));
}

// A copy of `fd` above all that the daemon is given.
VERBENA_IN_CHILD int Spare(int fd) {
  return static_cast<int>(syscall(SYS_fcntl, fd, F_DUPFD, kFirstSpareFd));
}

VERBENA_IN_CHILD bool Place(int from, int to) { return syscall(SYS_dup2, from, to) == to; }

// Fds and signals by system calls alone: what wraps libc's functions (sanitizers, libraries of the
// host) keeps books in the memory we share with the host, and would take ours for the host's.
VERBENA_IN_CHILD int DaemonMain(void* argument) {
  auto* launch = static_cast<Launch*>(argument);
  // Sources above all targets first, so that no dup2 overwrites one that is still needed.
  int ready = Spare(launch->ready_fd);
  int log = Spare(launch->log_fd);
  int null = Spare(launch->null_fd);
  if (ready < 0 || log < 0 || null < 0 || !Place(null, 0) || !Place(log, 1) || !Place(log, 2) ||
      !Place(ready, kReadyFd) || chdir("/") != 0) {
    launch->error = errno;
    Leave(127);
  }
  CloseFdsFrom(kReadyFd + 1);
  umask(077);
  ResetScheduling(*launch);
  ResetSignals();
  execve(launch->path, launch->argv, launch->environment);
  launch->error = errno;
  Leave(127);
}

// Between us and the daemon, so that the daemon's parent is init.
VERBENA_IN_CHILD int IntermediateMain(void* argument) {
  auto* launch = static_cast<Launch*>(argument);
  setsid();
  pid_t pid = __clone(DaemonMain, launch->daemon_stack_top, CLONE_VM | CLONE_VFORK, launch);
  if (pid < 0) launch->error = errno;
  launch->daemon_pid = pid;
  Leave(0);
}

// Runs `launch` up to exec. The daemon's pid, or -1 and errno.
// clone(CLONE_VM | CLONE_VFORK) as posix_spawn does: no copy of a large host, none of its atfork
// handlers. Without an exit signal the intermediate raises no SIGCHLD, and wait calls of the host's
// other threads do not see it.
pid_t RunLaunch(Launch* launch) {
  void* stacks = mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) return -1;
  char* intermediate_stack_top = static_cast<char*>(stacks) + kStackBytes;
  launch->daemon_stack_top = intermediate_stack_top + kStackBytes;

  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);  // no handler of the host's may run in the child
  pid_t pid = __clone(IntermediateMain, intermediate_stack_top, CLONE_VM | CLONE_VFORK, launch);
  int error = pid < 0 ? errno : launch->error;
  if (pid > 0) {
    while (waitpid(pid, nullptr, __WCLONE) < 0 && errno == EINTR) {
    }
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  munmap(stacks, 2 * kStackBytes);
  errno = error;
  return error == 0 ? launch->daemon_pid : -1;
}

bool StartsWith(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// The environment without what would load the host's libraries into the daemon, ours included.
std::vector<char*> DaemonEnvironment() {
  std::vector<char*> kept;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (StartsWith(*entry, "LD_PRELOAD=") || StartsWith(*entry, "LD_LIBRARY_PATH=") ||
        StartsWith(*entry, "LD_AUDIT=")) {
      continue;
    }
    kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

std::vector<std::string> DaemonArguments(const std::string& path, const StartOptions& options) {
  std::vector<std::string> arguments = {
      path,
      "--directory=" + options.directory,
      "--nics=" + std::to_string(options.nics),
      "--idle-exit-s=" + std::to_string(options.idle_exit_s),
      "--ready-fd=" + std::to_string(kReadyFd),
  };
  arguments.insert(arguments.end(), options.extra_args.begin(), options.extra_args.end());
  return arguments;
}

int OpenLog(const std::string& path) {
  int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
  if (fd >= 0 && lseek(fd, 0, SEEK_END) > kMaxLogBytes && ftruncate(fd, 0) != 0) {
    // A log that can't be shortened still takes what follows.
  }
  return fd;
}

// Waits for "R", or "E<text>". 0, or errno and `why`.
int AwaitReady(int ready_fd, std::string* why) {
  int64_t deadline_ms = MonotonicMs() + kReadyTimeoutMs;
  std::string said;
  for (;;) {
    if (!AwaitInput(ready_fd, deadline_ms)) {
      *why = "it was not ready after " + std::to_string(kReadyTimeoutMs / 1000) + " s";
      return ETIMEDOUT;
    }
    char buffer[512];
    ssize_t n = read(ready_fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) said.append(buffer, static_cast<size_t>(n));
    if (!said.empty() && said[0] == 'R') return 0;
    if (n > 0) continue;
    while (!said.empty() && said.back() == '\n') said.pop_back();
    *why = said.size() > 1 ? said.substr(1) : "it ended before it was ready";
    return ECHILD;
  }
}

// Path of the file that holds this code: the shim, or a program with the client linked in.
std::string OwnPath() {
  // From the kernel, absolute: what the loader was given may be relative to a directory long left.
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return {};
  auto self = reinterpret_cast<uintptr_t>(&OwnPath);
  std::string path;
  char* line = nullptr;
  size_t capacity = 0;
  while (getline(&line, &capacity, maps) > 0) {
    unsigned long begin, end;
    int name_at = 0;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &name_at) < 2) continue;
    if (self < begin || self >= end || line[name_at] != '/') continue;
    path = line + name_at;
    while (!path.empty() && path.back() == '\n') path.pop_back();
    break;
  }
  free(line);
  fclose(maps);
  return path;
}

std::string Resolve(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) return {};
  return access(resolved, X_OK) == 0 ? std::string(resolved) : std::string();
}

int Fail(std::string* error, const std::string& text, int code) {
  if (error != nullptr) *error = text;
  return code;
}

}  // namespace

std::string ErrorText(int code) {
  char buffer[128];
  return strerror_r(code, buffer, sizeof(buffer));  // the GNU one: returns the text
}

std::string DaemonPath() {
  std::string found;
  const char* chosen = secure_getenv("VERBENA_DAEMON");
  if (chosen != nullptr && chosen[0] != '\0') {
    found = Resolve(chosen);
  } else {
    std::string own = OwnPath();
    std::string folder = own.substr(0, own.rfind('/') + 1);
    // The last: from lib/libfabric, where the provider is.
    for (const char* place : {"../bin/verbenad", "verbenad", "../../bin/verbenad"}) {
      if (!folder.empty() && found.empty()) found = Resolve(folder + place);
    }
  }
  if (found.empty()) errno = ENOENT;
  return found;
}

int StartDaemon(const StartOptions& options, std::string* error) {
  std::string path = DaemonPath();
  if (path.empty()) {
    return Fail(error,
                "no verbenad beside this library (../bin/verbenad); VERBENA_DAEMON names one",
                ENOENT);
  }
  std::string log_path = options.directory + "/log";
  OwnedFd log(OpenLog(log_path));
  if (log.get() < 0) {
    int code = errno;
    return Fail(error, "cannot write " + log_path + ": " + ErrorText(code), code);
  }
  OwnedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  int pipe_fds[2];
  if (null.get() < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) {
    int code = errno;
    return Fail(error, "cannot start " + path + ": " + ErrorText(code), code);
  }
  OwnedFd ready_read(pipe_fds[0]), ready_write(pipe_fds[1]);

  std::vector<std::string> arguments = DaemonArguments(path, options);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<char*> environment = DaemonEnvironment();
  Launch launch = {};
  launch.path = path.c_str();
  launch.argv = argv.data();
  launch.environment = environment.data();
  launch.ready_fd = ready_write.get();
  launch.log_fd = log.get();
  launch.null_fd = null.get();
  std::memset(&launch.all_cpus, 0xff, sizeof(launch.all_cpus));
  pid_t pid = RunLaunch(&launch);
  if (pid < 0) {
    int code = errno;
    return Fail(error, "cannot start " + path + ": " + ErrorText(code), code);
  }
  ready_write.Reset();
  std::string why;
  int code = AwaitReady(ready_read.get(), &why);
  // Its pid is still its own: its end of the pipe is open.
  if (code == ETIMEDOUT) kill(pid, SIGKILL);
  if (code != 0) Fail(error, path + " did not start: " + why + "; its log: " + log_path, code);
  return code;
}

}  // namespace verbena::client

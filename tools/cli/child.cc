#include "tools/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli/exit_codes.h"

namespace verbena::cli {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t WaitedSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int signal : kForwarded) ::sigaddset(&set, signal);
  return set;
}

[[noreturn]] void ExecuteChild(const ChildSpec& spec, const sigset_t& mask, int error_fd) {
  for (const auto& [name, value] : spec.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& word : spec.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(spec.path.c_str(), argv.data());
  if (errno == ENOEXEC) {
    // A script without #! line: shells run it themselves, and so does execvp.
    std::vector<char*> shell = {const_cast<char*>("/bin/sh"), const_cast<char*>(spec.path.c_str())};
    shell.insert(shell.end(), argv.begin() + 1, argv.end());
    ::execv("/bin/sh", shell.data());
  }
  const int error = errno;
  if (::write(error_fd, &error, sizeof error) < 0) ::_exit(kExitNotExecutable);
  ::_exit(kExitNotExecutable);
}

// Waits for the child's end and passes signals on to it. Returns the wait status.
int WaitAndForward(pid_t child, const sigset_t& waited) {
  while (true) {
    siginfo_t info;
    const int signal = ::sigwaitinfo(&waited, &info);
    if (signal == SIGCHLD) {
      int status;
      if (::waitpid(child, &status, WNOHANG) == child) return status;
    } else if (signal > 0 && info.si_code <= 0) {
      // si_code <= 0: sent by a process. The kernel's own (Ctrl-C) went to the whole foreground
      // group; passing it on would deliver it twice.
      ::kill(child, signal);
    }
  }
}

}  // namespace

int RunChild(const ChildSpec& spec, std::string* error) {
  const sigset_t waited = WaitedSignals();
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, &waited, &mask);
  // An inherited "ignore" of SIGCHLD would take the exit status away.
  ::signal(SIGCHLD, SIG_DFL);
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) {
    *error = std::string("cannot make a pipe: ") + strerror(errno) + ".";
    return kExitNotExecutable;
  }
  const pid_t child = ::fork();
  if (child == 0) ExecuteChild(spec, mask, pipe_ends[1]);
  ::close(pipe_ends[1]);
  int exec_error = child < 0 ? errno : 0;
  if (child > 0 && ::read(pipe_ends[0], &exec_error, sizeof exec_error) < 0) exec_error = errno;
  ::close(pipe_ends[0]);
  int status = 0;
  if (child > 0) {
    if (exec_error == 0) {
      status = WaitAndForward(child, waited);
    } else {
      ::waitpid(child, &status, 0);
    }
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (exec_error != 0) {
    *error = "cannot run " + spec.path + ": " + strerror(exec_error) + ".";
    return exec_error == ENOENT ? kExitNotFound : kExitNotExecutable;
  }
  return WIFSIGNALED(status) ? kExitSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace verbena::cli

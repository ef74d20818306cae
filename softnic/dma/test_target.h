// A child process whose memory tests copy to and from, at addresses the parent knows: the block is
// mapped before the fork, private, so both have it at the same place with contents of their own.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace verbena::softnic {

class TestTarget {
 public:
  // The child runs `in_child` once and `on_signal` for each SIGUSR1.
  explicit TestTarget(uint64_t bytes, std::function<void(std::byte*)> in_child = nullptr,
                      std::function<void()> on_signal = nullptr)
      : bytes_(bytes) {
    void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) Die("mmap");
    block_ = static_cast<std::byte*>(block);
    int ready[2];
    if (pipe(ready) != 0) Die("pipe");
    pid_ = fork();
    if (pid_ < 0) Die("fork");
    if (pid_ == 0) {
      // A test that aborts leaves nobody behind who holds its output open.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // Waited for and not handled: sanitizers defer handlers in a process that only pauses.
      sigset_t usr1;
      sigemptyset(&usr1);
      sigaddset(&usr1, SIGUSR1);
      sigprocmask(SIG_BLOCK, &usr1, nullptr);
      if (in_child) in_child(block_);
      (void)!write(ready[1], "r", 1);
      for (int signal = 0;;) {
        if (sigwait(&usr1, &signal) == 0 && on_signal) on_signal();
      }
    }
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) != 1) Die("child");
    close(ready[0]);
  }
  ~TestTarget() {
    Kill();
    munmap(block_, bytes_);
  }
  TestTarget(const TestTarget&) = delete;

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  uint64_t addr() const { return reinterpret_cast<uint64_t>(block_); }

 private:
  [[noreturn]] static void Die(const char* what) {
    std::perror(what);
    std::abort();
  }
  std::byte* block_ = nullptr;
  uint64_t bytes_;
  pid_t pid_ = 0;
};

}  // namespace verbena::softnic

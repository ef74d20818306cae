// Small processes that outlive the CLI: one cleans up after a killed `run --private`, one keeps an
// instance alive for `up`.
#pragma once

#include <string>

namespace verbena::cli {

// Watches over a private instance. When `run` is killed before it could clean up, the guardian
// waits for the daemon's idle exit and then removes the instance's directory.
class Guardian {
 public:
  // `daemon_pidfd` may be -1. A failure to fork is not fatal: later runs remove what was left.
  Guardian(const std::string& directory, int daemon_pidfd);
  // Nothing is left to do for it: tells it so and reaps it.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

 private:
  int pipe_write_ = -1;
  int pid_ = -1;
};

// Starts a process that keeps the connection `held_fd` open until the daemon closes it. False with
// errno when it cannot be started.
bool StartHolder(int held_fd);

}  // namespace verbena::cli

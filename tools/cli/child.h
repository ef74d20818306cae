// Starting CMD and being it, as far as its caller can tell: signals in, exit code out.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace verbena::cli {

struct ChildSpec {
  std::string path;                                              // the file to execute
  std::vector<std::string> argv;                                 // argv[0] as the user wrote it
  std::vector<std::pair<std::string, std::string>> environment;  // set on top of ours
};

// Runs the child to its end. Meanwhile SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 that a
// process sent us are passed on; those from the terminal reached the child already.
// Returns its exit code, 128+N when signal N ended it, 126/127 with `error` when it cannot start.
int RunChild(const ChildSpec& spec, std::string* error);

}  // namespace verbena::cli

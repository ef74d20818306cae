// For tests that change interfaces: a process of its own in a network namespace of its own.
#pragma once

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace verbena::transport {

inline constexpr int kNotAllowed = 77;

// Runs `body`, which returns 0 if all is well. kNotAllowed: this system has no namespaces for us.
inline int RunInNamespace(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    // Root needs no user namespace, others may be allowed one.
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      _exit(kNotAllowed);
    }
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ip and tc of iproute2, in the namespace. False: it failed, or is not there.
inline bool Run(const std::string& command) {
  return system((command + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace verbena::transport

#define REQUIRE(condition)                                          \
  if (!(condition)) {                                               \
    fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
    return 1;                                                       \
  }

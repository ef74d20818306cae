#include "tools/cli/child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace verbena::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

ChildSpec Shell(const std::string& script) { return {"/bin/sh", {"sh", "-c", script}, {}}; }

int RunToEnd(const ChildSpec& spec) {
  std::string error;
  const int code = RunChild(spec, &error);
  EXPECT_THAT(error, IsEmpty());
  return code;
}

TEST(ChildTest, ExitCodeIsTheChilds) {
  EXPECT_EQ(RunToEnd(Shell("exit 0")), 0);
  EXPECT_EQ(RunToEnd(Shell("exit 37")), 37);
}

TEST(ChildTest, SignalBecomes128PlusN) {
  EXPECT_EQ(RunToEnd(Shell("kill -KILL $$")), 128 + SIGKILL);
  EXPECT_EQ(RunToEnd(Shell("kill -SEGV $$")), 128 + SIGSEGV);
}

TEST(ChildTest, EnvironmentIsSetOnTop) {
  ChildSpec spec = Shell("test \"$VERBENA_CHILD_TEST\" = 'a b'");
  spec.environment.emplace_back("VERBENA_CHILD_TEST", "a b");
  EXPECT_EQ(RunToEnd(spec), 0);
}

TEST(ChildTest, MissingAndBrokenProgramsAreTold) {
  std::string error;
  EXPECT_EQ(RunChild({"/nonexistent/program", {"program"}, {}}, &error), 127);
  EXPECT_THAT(error, HasSubstr("/nonexistent/program"));
  error.clear();
  EXPECT_EQ(RunChild({"/", {"/"}, {}}, &error), 126);
  EXPECT_THAT(error, HasSubstr("Permission denied"));
}

TEST(ChildTest, SignalFromAProcessIsPassedOn) {
  // The child signals its parent, which is us, and waits until the signal comes back.
  for (const char* name : {"TERM", "INT", "HUP", "USR1", "QUIT"}) {
    const std::string script = std::string("trap 'exit 9' ") + name + "; kill -" + name +
                               " $PPID; while :; do sleep 1 & wait $!; done";
    EXPECT_EQ(RunToEnd(Shell(script)), 9) << name;
  }
}

TEST(ChildTest, ChildStartsWithTheCallersSignalMask) {
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(
      RunToEnd(Shell("test \"$(grep SigBlk /proc/self/status | cut -f2)\" = 0000000000000000")), 0);
  sigset_t after;
  ::sigprocmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGTERM, SIGCHLD, SIGINT}) {
    EXPECT_EQ(::sigismember(&after, signal), ::sigismember(&mask, signal));
  }
}

}  // namespace
}  // namespace verbena::cli

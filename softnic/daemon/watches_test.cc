// A kernel that gives the daemon no more epoll watches (fs.epoll.max_user_watches), which other
// programs of its user can bring about: who can't be watched is refused, and all else goes on.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include <deque>
#include <string>

#include "softnic/daemon/cm_test_client.h"

namespace verbena::softnic {
namespace {

constexpr uint32_t LowHalfOfArgument(uint32_t number) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + number * sizeof(uint64_t));
}

// From now on, for this process and those it starts, no fd from `first` on can be watched.
bool RefuseWatchesFrom(uint32_t first) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LowHalfOfArgument(1)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LowHalfOfArgument(2)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// How many fds a daemon has that nobody uses.
uint32_t FdsOfAnIdleDaemon() {
  TestDaemon daemon;
  return static_cast<uint32_t>(daemon.IdleFdCount());
}

// Runs `body` in a process of its own, whose daemons can watch about `more` fds beyond those they
// begin with.
template <typename Body>
void WithWatches(uint32_t more, Body body) {
  const uint32_t first = FdsOfAnIdleDaemon() + more;
  const pid_t pid = fork();
  if (pid == 0) {
    if (!RefuseWatchesFrom(first)) _exit(2);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0) << "with " << more << " watches";
}

bool Answers(const TestDaemon& daemon) { return !daemon.Ask("{\"op\":\"status\"}").empty(); }

// Of what a client needs watched each round refuses another part.
TEST(Watches, WhoeverCannotBeWatchedIsRefused) {
  constexpr uint32_t kRounds = 12;
  for (uint32_t more = 0; more < kRounds; ++more) {
    WithWatches(more, [] {
      TestDaemon daemon;
      ASSERT_EQ(daemon.said(), "R");
      std::deque<TestClient> clients;
      std::deque<CmTestClient> cm_clients;
      for (int i = 0; i < 3; ++i) {
        TestClient& client = clients.emplace_back();
        const bool is_attached = client.Attach(daemon.directory());
        // Closed at once, or told why not.
        const int error = client.welcome().error;
        EXPECT_TRUE(is_attached || error == 0 || error == ENOSPC) << strerror(error);
        const int cm_error = cm_clients.emplace_back().Open(daemon.directory());
        EXPECT_TRUE(cm_error <= 0 || cm_error == ENOSPC) << strerror(cm_error);
        Answers(daemon);
      }
    });
  }
}

TEST(Watches, OthersAreServedMeanwhileAndAfterwards) {
  WithWatches(2, [] {
    TestDaemon daemon;
    ASSERT_TRUE(Answers(daemon));
    // Connections that say nothing, until there is no watch for one more.
    std::deque<int> silent;
    while (silent.size() < 16 && Answers(daemon)) silent.push_back(ConnectTo(daemon.directory()));
    EXPECT_LT(silent.size(), 16u);
    for (int fd : silent) close(fd);
    EXPECT_TRUE(Eventually([&] { return Answers(daemon); }));
    EXPECT_GE(daemon.StatusNumber("refused_connections"), 1);
  });
}

}  // namespace
}  // namespace verbena::softnic

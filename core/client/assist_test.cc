// The helper, with the test as its NIC.
#include "core/client/assist.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/shm/assist.h"

namespace verbena::client {
namespace {

using shm::AssistKind;
using shm::AssistPiece;

constexpr auto kDeadline = std::chrono::seconds(20);
constexpr int kDeadlineMs = 20'000;

template <typename Condition>
bool Eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

// Gone, or a zombie that somebody else has yet to reap.
bool HasEnded(pid_t pid) {
  const int fd = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[512] = {};
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  const char* name_end = n <= 0 ? nullptr : strrchr(text, ')');
  return name_end == nullptr || name_end[2] == 'Z' || name_end[2] == 'X';
}

class Nic {
 public:
  Nic() {
    file_ = memfd_create("assist-test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file_, shm::kAssistFileBytes), 0);
    void* base = mmap(nullptr, shm::kAssistFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    EXPECT_NE(base, MAP_FAILED);
    area_ = new (base) shm::AssistArea();
    staging_ = static_cast<char*>(base) + shm::kAssistStagingOffset;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
  }
  ~Nic() {
    CloseSocket();
    munmap(area_, shm::kAssistFileBytes);
  }
  // Once; the fds are the helper's then.
  int Start(Helper** helper) { return StartHelper(file_, ends_[1], helper); }
  // This process leaves the helper to another.
  void CloseHelperEnds() {
    close(file_);
    close(ends_[1]);
  }
  void CloseSocket() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  int64_t Ask(AssistKind kind, const std::vector<AssistPiece>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) area_->pieces[i] = pieces[i];
    area_->kind = static_cast<uint32_t>(kind);
    area_->piece_count = static_cast<uint32_t>(pieces.size());
    const uint32_t number = area_->requested.load() + 1;
    area_->nic_waits.store(1);
    area_->requested.store(number);
    if (area_->helper_sleeps.load() != 0) {
      EXPECT_EQ(send(ends_[0], "", 1, MSG_NOSIGNAL), 1);
    }
    pollfd event = {ends_[0], POLLIN, 0};
    while (area_->answered.load() != number) {
      if (poll(&event, 1, kDeadlineMs) != 1) return -ETIMEDOUT;
      char bells[16];
      if (recv(ends_[0], bells, sizeof(bells), 0) <= 0) return -EPIPE;
    }
    return area_->result;
  }
  char* staging() { return staging_; }
  shm::AssistArea* area() { return area_; }
  // Whether the helper's end is closed.
  bool IsLeft() {
    pollfd event = {ends_[0], POLLIN, 0};
    for (char bell;;) {
      if (poll(&event, 1, kDeadlineMs) != 1) return false;
      const ssize_t n = recv(ends_[0], &bell, 1, 0);
      if (n <= 0) return true;
    }
  }

 private:
  int file_ = -1;
  int ends_[2] = {-1, -1};
  shm::AssistArea* area_ = nullptr;
  char* staging_ = nullptr;
};

AssistPiece Piece(const void* p, size_t bytes) { return {reinterpret_cast<uint64_t>(p), bytes}; }

class AssistTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(nic_.Start(&helper_), 0); }
  void TearDown() override {
    if (helper_ != nullptr) StopHelper(helper_);
  }
  Nic nic_;
  Helper* helper_ = nullptr;
};

TEST_F(AssistTest, MovesBytesBothWays) {
  char parts[3][8] = {"abc", "defg", ""};
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(parts[0], 3), Piece(parts[1], 4)}), 7);
  EXPECT_EQ(std::string(nic_.staging(), 7), "abcdefg");
  memcpy(nic_.staging(), "12345", 5);
  EXPECT_EQ(nic_.Ask(AssistKind::kScatter, {Piece(parts[2], 2), Piece(parts[0], 3)}), 5);
  EXPECT_EQ(std::string(parts[2]), "12");
  EXPECT_EQ(std::string(parts[0], 3), "345");
}

TEST_F(AssistTest, ManyRequestsInARowAreEachAnsweredOnce) {
  uint32_t value = 0;
  for (uint32_t i = 1; i <= 20'000; ++i) {
    memcpy(nic_.staging(), &i, sizeof(i));
    ASSERT_EQ(nic_.Ask(AssistKind::kScatter, {Piece(&value, sizeof(value))}), 4) << i;
    ASSERT_EQ(value, i);
    if (i % 1000 == 0) poll(nullptr, 0, 2);  // so that it sleeps now and then
  }
}

TEST_F(AssistTest, BadAddressesAreErrors) {
  auto* pages = static_cast<char*>(
      mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_READ), 0);
  ASSERT_EQ(munmap(pages + 2 * 4096, 4096), 0);
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(pages + 2 * 4096, 8)}), -EFAULT);
  EXPECT_EQ(nic_.Ask(AssistKind::kScatter, {Piece(pages + 4096, 8)}), -EFAULT) << "read-only";
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(pages + 2 * 4096 - 8, 16)}), 8);
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(nullptr, 8)}), -EFAULT);
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {{~0ull - 7, 64}}), -EFAULT);
  nic_.area()->piece_count = 0;
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(pages, 8)}), 8) << "it goes on";
  munmap(pages, 2 * 4096);
}

TEST_F(AssistTest, IsNoThreadAndNoChildOfTheProgram) {
  size_t tasks = 0;
  DIR* directory = opendir("/proc/self/task");
  while (const dirent* entry = readdir(directory)) tasks += entry->d_name[0] != '.';
  closedir(directory);
#if !defined(__SANITIZE_THREAD__)  // has a thread of its own
  EXPECT_EQ(tasks, 1u);
#endif
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_NE(getpgid(HelperPid(helper_)), getpgrp());
  EXPECT_NE(getsid(HelperPid(helper_)), getsid(0));
}

TEST_F(AssistTest, HoldsNoFdsOfTheProgram) {
  const std::string fds = "/proc/" + std::to_string(HelperPid(helper_)) + "/fd";
  size_t count = 0;
  DIR* directory = opendir(fds.c_str());
  ASSERT_NE(directory, nullptr);
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  EXPECT_EQ(count, 3u) << "file, socket, the program's pidfd";
}

TEST_F(AssistTest, EndsWithItsSocketAndLeavesNothing) {
  const pid_t pid = HelperPid(helper_);
  nic_.CloseSocket();
  EXPECT_TRUE(Eventually([&] { return HasEnded(pid); }));
  StopHelper(std::exchange(helper_, nullptr));
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH) << "not even a zombie";
}

TEST_F(AssistTest, StoppingReapsIt) {
  const pid_t pid = HelperPid(helper_);
  StopHelper(std::exchange(helper_, nullptr));
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_TRUE(nic_.IsLeft());
}

std::atomic<uint32_t> alarms{0};

// poll() is interrupted by them whatever SA_RESTART says.
TEST(Assist, StoppingReapsItAmidSignals) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) { alarms.fetch_add(1); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often = {{0, 50}, {0, 50}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  for (int i = 0; i < 200; ++i) {
    Nic nic;
    Helper* helper = nullptr;
    EXPECT_EQ(nic.Start(&helper), 0);
    if (helper != nullptr) StopHelper(helper);
  }
  const itimerval never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_GT(alarms.load(), 0u);
  int zombies = 0;
  while (waitpid(-1, nullptr, __WALL | WNOHANG) > 0) ++zombies;
  EXPECT_EQ(zombies, 0);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(AssistTest, TakesNoSignals) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGUSR1, SIGCHLD, SIGALRM}) {
    kill(HelperPid(helper_), signal);
  }
  uint64_t word = 7;
  EXPECT_EQ(nic_.Ask(AssistKind::kGather, {Piece(&word, 8)}), 8);
}

TEST(Assist, OutlivesTheThreadThatMadeIt) {
  Nic nic;
  Helper* helper = nullptr;
  std::thread maker([&] { ASSERT_EQ(nic.Start(&helper), 0); });
  maker.join();
  std::vector<std::thread> others;  // on the memory of the first one's stack, likely
  std::atomic<int> sum{0};
  for (int i = 0; i < 4; ++i) others.emplace_back([&sum] { sum += 1; });
  for (std::thread& other : others) other.join();
  uint64_t word = 0;
  for (uint64_t i = 1; i < 1000; ++i) {
    memcpy(nic.staging(), &i, sizeof(i));
    ASSERT_EQ(nic.Ask(AssistKind::kScatter, {Piece(&word, 8)}), 8);
    ASSERT_EQ(word, i);
  }
  StopHelper(helper);
}

// Runs `host` in a child that then waits to be killed; `word` is at the same address there.
class HostProcess {
 public:
  explicit HostProcess(Nic* nic) {
    word_ = static_cast<uint64_t*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      *word_ = 0x1234;
      Helper* helper = nullptr;
      nic->CloseSocket();
      pid_t pid = nic->Start(&helper) == 0 ? HelperPid(helper) : -1;
      (void)!write(ready[1], &pid, sizeof(pid));
      close(ready[0]);
      for (;;) pause();
    }
    nic->CloseHelperEnds();
    close(ready[1]);
    EXPECT_EQ(read(ready[0], &helper_pid_, sizeof(helper_pid_)),
              static_cast<ssize_t>(sizeof(helper_pid_)));
    EXPECT_GT(helper_pid_, 0);
    // The helper has no copy of the pipe's other end, or this would wait for it.
    end_ = ready[0];
  }
  ~HostProcess() {
    Kill();
    close(end_);
    munmap(word_, 4096);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Stop() {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  AssistPiece word() const { return Piece(word_, sizeof(*word_)); }
  pid_t helper_pid() const { return helper_pid_; }
  bool PipeIsLeft() {
    pollfd event = {end_, POLLIN, 0};
    char byte;
    return poll(&event, 1, kDeadlineMs) == 1 && read(end_, &byte, 1) == 0;
  }

 private:
  uint64_t* word_;
  pid_t pid_ = 0;
  pid_t helper_pid_ = 0;
  int end_ = -1;
};

TEST(Assist, StoppedProgramIsStillReadAndWritten) {
  Nic nic;
  HostProcess host(&nic);
  host.Stop();
  uint64_t value = 0;
  ASSERT_EQ(nic.Ask(AssistKind::kGather, {host.word()}), 8);
  memcpy(&value, nic.staging(), sizeof(value));
  EXPECT_EQ(value, 0x1234u);
  value = 0x5678;
  memcpy(nic.staging(), &value, sizeof(value));
  ASSERT_EQ(nic.Ask(AssistKind::kScatter, {host.word()}), 8);
  memset(nic.staging(), 0, sizeof(value));
  ASSERT_EQ(nic.Ask(AssistKind::kGather, {host.word()}), 8);
  memcpy(&value, nic.staging(), sizeof(value));
  EXPECT_EQ(value, 0x5678u);
}

TEST(Assist, EndsWithAKilledProgram) {
  Nic nic;
  HostProcess host(&nic);
  host.Kill();
  EXPECT_TRUE(host.PipeIsLeft());
  EXPECT_TRUE(nic.IsLeft()) << "though the NIC's end is open";
  EXPECT_TRUE(Eventually([&] { return HasEnded(host.helper_pid()); }));
}

TEST(Assist, EndsWithTheNicOfAProgramThatIsStopped) {
  Nic nic;
  HostProcess host(&nic);
  host.Stop();
  nic.CloseSocket();
  EXPECT_TRUE(Eventually([&] { return HasEnded(host.helper_pid()); }));
}

TEST_F(AssistTest, ForkedChildHasNone) {
  uint64_t word = 1;
  const pid_t child = fork();
  if (child == 0) {
    char text[4096 * 16] = {};
    const int fd = open("/proc/self/maps", O_RDONLY);
    size_t got = 0;
    for (ssize_t n; (n = read(fd, text + got, sizeof(text) - 1 - got)) > 0;) {
      got += static_cast<size_t>(n);
    }
    const bool has_area = strstr(text, "assist-test") != nullptr;
    word = 2;
    ForgetHelper(helper_);
    // The NIC's mapping of the test is one, the helper's is none.
    const char* first = strstr(text, "assist-test");
    _exit(has_area && strstr(first + 1, "assist-test") == nullptr ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(nic_.Ask(AssistKind::kGather, {Piece(&word, 8)}), 8);
  uint64_t seen;
  memcpy(&seen, nic_.staging(), sizeof(seen));
  EXPECT_EQ(seen, 1u) << "the parent's memory, not the child's";
}

// Runs in a child, whose limits are its own.
int StartUnderFileLimit(rlim_t soft, rlim_t hard) {
  Nic nic;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {soft, hard};
    Helper* helper = nullptr;
    int error = setrlimit(RLIMIT_FSIZE, &limit) == 0 ? nic.Start(&helper) : 99;
    char page[4096] = {'x'};
    if (error == 0 && nic.Ask(AssistKind::kGather, {Piece(page, sizeof(page))}) != 4096) error = 98;
    if (helper != nullptr) StopHelper(helper);
    _exit(error);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Assist, LimitsOfFileSizesAreNoSignals) {
  EXPECT_EQ(StartUnderFileLimit(0, RLIM_INFINITY), 0) << "it is the program's own limit";
  EXPECT_EQ(StartUnderFileLimit(0, 4096), EOPNOTSUPP);
}

TEST(Assist, CanBeTried) { EXPECT_EQ(TryHelper(), 0); }

}  // namespace
}  // namespace verbena::client

#include "core/client/instance.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace verbena::client {
namespace {

namespace fs = std::filesystem;

constexpr char kPrintDaemonPath[] = "--print-daemon-path";
constexpr uid_t kStranger = 61'234;  // a user that no machine has

std::string OwnProgram() { return fs::read_symlink("/proc/self/exe"); }

// Runs `body` in a forked child; it returns 0, or the number of what failed.
template <typename Body>
int InChild(Body body) {
  pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

class InstanceTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/instance_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    options_.directory = name;
    options_.nics = 2;
    setenv("VERBENA_DAEMON", (fs::current_path() / "core/client/fake_verbenad").c_str(), 1);
    unsetenv("VERBENA_INSTANCE");
    unsetenv("VERBENA_AUTOSTART");
  }
  void TearDown() override {
    KillDaemons();
    fs::remove_all(options_.directory);
  }
  std::vector<pid_t> Starts() {
    std::ifstream file(options_.directory + "/starts");
    std::vector<pid_t> pids;
    for (pid_t pid; file >> pid;) pids.push_back(pid);
    return pids;
  }
  // Kills what this test started; returns when the kernel has closed their sockets.
  void KillDaemons() {
    for (pid_t pid : Starts()) {
      // Not one that has ended and whose number is another's now.
      std::error_code missing;
      fs::path program = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", missing);
      if (missing || program.filename() != "fake_verbenad") continue;
      int fd = ConnectInstance(options_.directory);
      kill(pid, SIGKILL);
      if (fd < 0) continue;
      pollfd entry = {fd, POLLRDHUP, 0};
      poll(&entry, 1, -1);
      close(fd);
    }
  }
  std::map<std::string, std::string> Report() {
    std::ifstream file(options_.directory + "/report");
    std::map<std::string, std::string> report;
    for (std::string line; std::getline(file, line);) {
      size_t equals = line.find('=');
      report[line.substr(0, equals)] = line.substr(equals + 1);
    }
    return report;
  }

  StartOptions options_;
  std::string error_;
};

TEST_F(InstanceTest, StartsListsAndJoins) {
  EXPECT_EQ(ConnectInstance(options_.directory), -1);
  EXPECT_EQ(errno, ENOENT);
  int fd = ConnectOrStart(options_, &error_);
  ASSERT_GE(fd, 0) << error_;
  EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  std::vector<shm::NicInfo> nics;
  EXPECT_EQ(ListNics(fd, &nics), 0);
  ASSERT_EQ(nics.size(), 2u);
  EXPECT_STREQ(nics[1].name, "verbena1");
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "closed";
  EXPECT_EQ(ListInstanceNics(options_, false, &nics, &error_), 0) << error_;
  EXPECT_EQ(ListInstanceNics(options_, true, &nics, &error_), 0) << error_;
  EXPECT_EQ(Starts().size(), 1u);
}

TEST_F(InstanceTest, DaemonInheritsNothingOfItsHost) {
  signal(SIGUSR1, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  sigprocmask(SIG_BLOCK, &block, &before);
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof(one), &one);
  setenv("LD_LIBRARY_PATH", "/nowhere", 1);
  setenv("LD_PRELOAD", "", 1);
  setenv("KEEP_ME", "yes", 1);
  int leaky = dup(2);  // no CLOEXEC
  int fd = ConnectOrStart(options_, &error_);
  sigset_t after;
  sigprocmask(SIG_SETMASK, &before, &after);
  sched_setaffinity(0, sizeof(all), &all);
  unsetenv("LD_LIBRARY_PATH");
  unsetenv("LD_PRELOAD");
  close(leaky);
  ASSERT_GE(fd, 0) << error_;
  close(fd);
  EXPECT_TRUE(sigismember(&after, SIGTERM)) << "the host's mask is as it was";
  EXPECT_FALSE(sigismember(&after, SIGINT));

  std::map<std::string, std::string> report = Report();
  EXPECT_EQ(report["fds"], "0,1,2,3");
  EXPECT_EQ(report["blocked"], "0");
  EXPECT_EQ(report["ignored"], "0");
  EXPECT_EQ(report["cwd"], "/");
  EXPECT_NE(report["sid"], std::to_string(getsid(0)));
  EXPECT_NE(report["ppid"], std::to_string(getpid()));
  EXPECT_EQ(report["cpus"], std::to_string(CPU_COUNT(&all)));
  EXPECT_EQ(report["LD_PRELOAD"], "(unset)");
  EXPECT_EQ(report["LD_LIBRARY_PATH"], "(unset)");
  EXPECT_EQ(report["KEEP_ME"], "yes");
  std::ifstream log(options_.directory + "/log");
  std::string line;
  std::getline(log, line);
  EXPECT_EQ(line, "hello from the daemon");
}

TEST_F(InstanceTest, StandardFdsMayBeClosedInTheHost) {
  EXPECT_EQ(InChild([&] {
              for (int fd = 0; fd < 64; ++fd) close(fd);
              int fd = ConnectOrStart(options_, nullptr);
              return fd >= 0 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(Report()["fds"], "0,1,2,3");
}

std::atomic<int> sigchld_count{0};

TEST_F(InstanceTest, HostSeesNoChild) {
  signal(SIGCHLD, [](int) { sigchld_count.fetch_add(1); });
  int fd = ConnectOrStart(options_, &error_);
  ASSERT_GE(fd, 0) << error_;
  close(fd);
  KillDaemons();
  EXPECT_EQ(sigchld_count.load(), 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG | __WALL), -1);
  EXPECT_EQ(errno, ECHILD);
  signal(SIGCHLD, SIG_DFL);
}

TEST_F(InstanceTest, IgnoredSigchldIsNoObstacle) {
  signal(SIGCHLD, SIG_IGN);
  int fd = ConnectOrStart(options_, &error_);
  signal(SIGCHLD, SIG_DFL);
  EXPECT_GE(fd, 0) << error_;
  close(fd);
}

TEST_F(InstanceTest, RacingProcessesStartOne) {
  constexpr int kProcesses = 8;
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    pid_t pid = fork();
    if (pid == 0) {
      close(gate[1]);
      char byte;
      if (read(gate[0], &byte, 1) != 0) _exit(2);  // all leave together, at end of file
      std::vector<shm::NicInfo> nics;
      std::string error;
      _exit(ListInstanceNics(options_, true, &nics, &error) == 0 && nics.size() == 2 ? 0 : 1);
    }
    children.push_back(pid);
  }
  close(gate[0]);
  close(gate[1]);
  for (pid_t pid : children) {
    int status;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Starts().size(), 1u);
}

TEST_F(InstanceTest, RacingThreadsStartOne) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      int fd = ConnectOrStart(options_, nullptr);
      failed.fetch_add(fd < 0 ? 1 : 0);
      close(fd);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(Starts().size(), 1u);
}

TEST_F(InstanceTest, DeadDaemonsSocketIsReplaced) {
  int fd = ConnectOrStart(options_, &error_);
  ASSERT_GE(fd, 0) << error_;
  close(fd);
  KillDaemons();
  EXPECT_TRUE(fs::exists(options_.directory + "/sock")) << "left behind";
  EXPECT_EQ(ConnectInstance(options_.directory), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  std::vector<shm::NicInfo> nics;
  EXPECT_EQ(ListInstanceNics(options_, false, &nics, &error_), ECONNREFUSED);
  EXPECT_EQ(ListInstanceNics(options_, true, &nics, &error_), 0) << error_;
  EXPECT_EQ(Starts().size(), 2u);
}

TEST_F(InstanceTest, DaemonThatEndsAtTheHelloIsStartedAnew) {
  options_.extra_args = {"--fake=reset"};
  std::vector<shm::NicInfo> nics;
  EXPECT_EQ(ListInstanceNics(options_, true, &nics, &error_), 0) << error_;
  EXPECT_EQ(nics.size(), 2u);
  EXPECT_EQ(Starts().size(), 2u);
}

// One that ends unlinks its socket before it is gone.
TEST_F(InstanceTest, WaitsForADaemonThatIsEnding) {
  int ending = open(options_.directory.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(ending, LOCK_EX), 0);
  int fd = -1;
  std::thread client([&] { fd = ConnectOrStart(options_, &error_); });
  // The client is at it once it holds the start lock.
  int lock = open((options_.directory + "/lock").c_str(), O_RDWR | O_CREAT, 0600);
  while (flock(lock, LOCK_EX | LOCK_NB) == 0) {
    flock(lock, LOCK_UN);
    std::this_thread::yield();
  }
  EXPECT_TRUE(Starts().empty());
  flock(ending, LOCK_UN);
  client.join();
  EXPECT_GE(fd, 0) << error_;
  EXPECT_EQ(Starts().size(), 1u);
  close(fd);
  close(lock);
  close(ending);
}

TEST_F(InstanceTest, SessionIsRetriedToo) {
  options_.extra_args = {"--fake=reset"};
  Session* session = nullptr;
  EXPECT_EQ(OpenSession(options_, true, 7, &session, &error_), ENODEV);
  EXPECT_EQ(session, nullptr);
  EXPECT_NE(error_.find("NIC 7"), std::string::npos) << error_;
  EXPECT_EQ(Starts().size(), 2u);
}

TEST_F(InstanceTest, CommandSubstitutionReturnsAtOnce) {
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(output[1], STDOUT_FILENO);
    close(output[0]);
    close(output[1]);
    _exit(ConnectOrStart(options_, nullptr) >= 0 ? 0 : 1);
  }
  close(output[1]);
  int status;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  // End of file, although the daemon goes on: it holds no copy of our standard output.
  pollfd entry = {output[0], POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 5000), 1);
  char byte;
  EXPECT_EQ(read(output[0], &byte, 1), 0);
  close(output[0]);
  int fd = ConnectInstance(options_.directory);
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST_F(InstanceTest, FailuresAreExplained) {
  options_.extra_args = {"--fake=error"};
  EXPECT_EQ(ConnectOrStart(options_, &error_), -1);
  EXPECT_NE(error_.find("no such thing"), std::string::npos) << error_;
  EXPECT_NE(error_.find(options_.directory + "/log"), std::string::npos) << error_;
  options_.extra_args = {"--fake=die"};
  EXPECT_EQ(ConnectOrStart(options_, &error_), -1);
  EXPECT_NE(error_.find("ended before"), std::string::npos) << error_;
  EXPECT_EQ(ConnectOrStart(options_, nullptr), -1) << "no text wanted";

  setenv("VERBENA_DAEMON", "/nowhere/verbenad", 1);
  EXPECT_EQ(DaemonPath(), "");
  EXPECT_EQ(ConnectOrStart(options_, &error_), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_NE(error_.find("VERBENA_DAEMON"), std::string::npos) << error_;
  // A file that exec refuses.
  std::string text = options_.directory + "/text";
  std::ofstream(text) << "not a program";
  chmod(text.c_str(), 0700);
  setenv("VERBENA_DAEMON", text.c_str(), 1);
  EXPECT_EQ(ConnectOrStart(options_, &error_), -1);
  EXPECT_EQ(errno, ENOEXEC) << error_;

  options_.directory = "/nowhere/at-all";
  EXPECT_EQ(ConnectOrStart(options_, &error_), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_NE(error_.find("/nowhere/at-all/lock"), std::string::npos) << error_;
}

TEST_F(InstanceTest, DirectoryWithoutWritePermission) {
  fs::permissions(options_.directory, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(InChild([&] {
              if (geteuid() == 0) {
                if (chown(options_.directory.c_str(), kStranger, kStranger) != 0) return 9;
                if (setgid(kStranger) != 0 || setuid(kStranger) != 0) return 8;
              }
              std::string error;
              if (ConnectOrStart(options_, &error) != -1 || errno != EACCES) return 1;
              return error.find("/lock") == std::string::npos ? 2 : 0;
            }),
            0);
  fs::permissions(options_.directory, fs::perms::owner_all);
}

TEST_F(InstanceTest, LogIsCutWhenLarge) {
  std::string log = options_.directory + "/log";
  std::ofstream(log) << "kept\n";
  close(ConnectOrStart(options_, &error_));
  KillDaemons();
  EXPECT_GT(fs::file_size(log), 5u + 10) << "appended";
  fs::resize_file(log, (1 << 20) + 1);
  close(ConnectOrStart(options_, &error_));
  EXPECT_LT(fs::file_size(log), 1000u);
}

TEST_F(InstanceTest, PathsLongerThanASocketAddress) {
  std::string deep = options_.directory + "/" + std::string(120, 'd');
  ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock", options_.directory.c_str());
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(ConnectInstance(deep), -1);
  EXPECT_EQ(errno, ENOENT);
  fs::rename(options_.directory + "/sock", deep + "/sock");
  int fd = ConnectInstance(deep);
  EXPECT_GE(fd, 0) << strerror(errno);
  close(fd);
  close(listener);
}

TEST_F(InstanceTest, NamedDirectoryIsChecked) {
  std::string base = options_.directory;
  auto directory = [](const std::string& path, bool create) {
    setenv("VERBENA_INSTANCE", path.c_str(), 1);
    return InstanceDirectory(create);
  };
  EXPECT_EQ(directory(base, false), base);
  EXPECT_EQ(directory(base + "//", false), base);
  EXPECT_EQ(directory(base + "/new", false), "");
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(directory(base + "/new", true), base + "/new");
  struct stat info;
  ASSERT_EQ(stat((base + "/new").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(symlink((base + "/new").c_str(), (base + "/link").c_str()), 0);
  EXPECT_EQ(directory(base + "/link", true), "");
  EXPECT_EQ(errno, EPERM);
  ASSERT_EQ(chmod((base + "/new").c_str(), 0777), 0);
  EXPECT_EQ(directory(base + "/new", true), "");
  EXPECT_EQ(errno, EPERM);
  fs::path before = fs::current_path();
  fs::current_path(base);
  EXPECT_EQ(directory("relative", true), base + "/relative");
  fs::current_path(before);
}

TEST_F(InstanceTest, DefaultDirectoryIsOursAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a user of its own";
  std::string name = "verbena-" + std::to_string(kStranger);
  auto as_stranger = [&](bool create, const std::string& expected_base) {
    return InChild([&] {
      if (setgid(kStranger) != 0 || setuid(kStranger) != 0) return 9;
      std::string directory = InstanceDirectory(create);
      if (expected_base.empty()) return directory.empty() && errno == ENOENT ? 0 : 1;
      if (directory.rfind(expected_base + "/net-", 0) != 0) return 2;
      struct stat info;
      if (lstat(directory.c_str(), &info) != 0) return 3;
      return info.st_uid == kStranger && (info.st_mode & 0777) == 0700 ? 0 : 4;
    });
  };
  EXPECT_EQ(as_stranger(false, ""), 0);
  EXPECT_EQ(as_stranger(true, "/tmp/" + name), 0);
  EXPECT_EQ(as_stranger(false, "/tmp/" + name), 0);
  fs::remove_all("/tmp/" + name);
  // Taken by another user: passed over, not trusted.
  ASSERT_EQ(mkdir(("/tmp/" + name).c_str(), 0777), 0);
  EXPECT_EQ(as_stranger(true, "/var/tmp/" + name), 0);
  fs::remove_all("/tmp/" + name);
  // One in use counts before better places.
  EXPECT_EQ(InChild([&] {
              if (setgid(kStranger) != 0 || setuid(kStranger) != 0) return 9;
              setenv("VERBENA_INSTANCE", "", 1);
              for (const auto& entry : fs::directory_iterator("/var/tmp/" + name)) {
                std::ofstream(entry.path() / "sock") << "";
              }
              return 0;
            }),
            0);
  EXPECT_EQ(as_stranger(true, "/var/tmp/" + name), 0);
  fs::remove_all("/var/tmp/" + name);
  fs::remove_all("/tmp/" + name);
}

TEST_F(InstanceTest, AutostartIsAllowedUnlessZero) {
  EXPECT_TRUE(AutostartAllowed());
  setenv("VERBENA_AUTOSTART", "1", 1);
  EXPECT_TRUE(AutostartAllowed());
  setenv("VERBENA_AUTOSTART", "0", 1);
  EXPECT_FALSE(AutostartAllowed());
}

// Where a copy of this program looks for the daemon.
std::string DaemonPathOf(const std::string& program) {
  std::string output;
  FILE* pipe = popen(("env -u VERBENA_DAEMON " + program + " " + kPrintDaemonPath).c_str(), "r");
  for (int c; (c = fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  pclose(pipe);
  return output;
}

TEST_F(InstanceTest, DaemonIsFoundBesideTheCode) {
  fs::path base = options_.directory;
  for (const char* folder : {"bin", "lib", "other"}) {
    fs::create_directory(base / folder);
    fs::copy_file(OwnProgram(), base / folder / "program");
  }
  EXPECT_EQ(DaemonPathOf(base / "lib/program"), "");
  std::ofstream(base / "bin/verbenad") << "#!/bin/sh\n";
  EXPECT_EQ(DaemonPathOf(base / "lib/program"), "") << "not executable";
  fs::permissions(base / "bin/verbenad", fs::perms::owner_all);
  EXPECT_EQ(DaemonPathOf(base / "lib/program"), (base / "bin/verbenad").string());
  EXPECT_EQ(DaemonPathOf(base / "bin/program"), (base / "bin/verbenad").string());
  fs::create_directory(base / "lib/plugins");
  fs::copy_file(OwnProgram(), base / "lib/plugins/program");
  EXPECT_EQ(DaemonPathOf(base / "lib/plugins/program"), (base / "bin/verbenad").string());
  fs::rename(base / "bin/verbenad", base / "other/verbenad");
  EXPECT_EQ(DaemonPathOf(base / "other/program"), (base / "other/verbenad").string());
  EXPECT_EQ(DaemonPathOf(base / "lib/program"), "");
}

}  // namespace
}  // namespace verbena::client

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == verbena::client::kPrintDaemonPath) {
    std::fputs(verbena::client::DaemonPath().c_str(), stdout);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

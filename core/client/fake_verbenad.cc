// A verbenad for the tests of starting: binds its socket, lists NICs, attaches nobody.
//   DIR/starts  gets one line "PID" for each start
//   DIR/report  what it found of its environment, "key=value" per line
//   --fake=error      says "Eno such thing" instead of ready
//   --fake=die        ends without a word
//   --fake=reset      the first of its instance ends at the first hello, as when idle just then
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "core/shm/attach.h"

namespace verbena {
namespace {

struct Flags {
  std::string directory;
  std::string fake;
  uint32_t nics = 0;
  int ready_fd = -1;
};

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    size_t equals = argument.find('=');
    std::string value = argument.substr(equals + 1);
    std::string name = argument.substr(0, equals);
    if (name == "--directory") flags.directory = value;
    if (name == "--fake") flags.fake = value;
    if (name == "--nics") flags.nics = static_cast<uint32_t>(std::stoul(value));
    if (name == "--ready-fd") flags.ready_fd = std::stoi(value);
  }
  return flags;
}

std::string OpenFds() {
  std::string list;
  DIR* directory = opendir("/proc/self/fd");
  while (dirent* entry = readdir(directory)) {
    if (entry->d_name[0] == '.' || std::stoi(entry->d_name) == dirfd(directory)) continue;
    list += std::string(list.empty() ? "" : ",") + entry->d_name;
  }
  closedir(directory);
  return list;
}

int CountSignals(bool blocked) {
  sigset_t mask;
  sigprocmask(SIG_BLOCK, nullptr, &mask);
  int count = 0;
  for (int number = 1; number < 32; ++number) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    count += blocked ? sigismember(&mask, number) == 1 : action.sa_handler == SIG_IGN;
  }
  return count;
}

void WriteReport(const std::string& path) {
  std::string fds = OpenFds();  // before there is one of our own
  std::ofstream report(path);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof(cpus), &cpus);
  char cwd[256] = {};
  if (getcwd(cwd, sizeof(cwd)) == nullptr) std::perror("getcwd");
  report << "fds=" << fds << "\n";
  report << "blocked=" << CountSignals(true) << "\n";
  report << "ignored=" << CountSignals(false) << "\n";
  report << "cwd=" << cwd << "\n";
  report << "sid=" << getsid(0) << "\n";
  report << "ppid=" << getppid() << "\n";
  report << "cpus=" << CPU_COUNT(&cpus) << "\n";
  for (const char* name : {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "KEEP_ME"}) {
    report << name << "=" << (getenv(name) != nullptr ? getenv(name) : "(unset)") << "\n";
  }
}

int CountStarts(const std::string& path) {
  std::ifstream starts(path);
  int count = 0;
  for (std::string line; std::getline(starts, line);) ++count;
  return count;
}

int Listen(const std::string& path) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return -1;
  return listen(fd, 64) == 0 ? fd : -1;
}

void SendList(int fd, uint32_t nics) {
  shm::ListReply reply = {};
  reply.magic = shm::kAbiMagic;
  reply.abi_version = shm::kAbiVersion;
  reply.count = nics;
  for (uint32_t i = 0; i < nics; ++i) {
    reply.nics[i].index = i;
    std::snprintf(reply.nics[i].name, shm::kNicNameBytes, "verbena%u", i);
  }
  send(fd, &reply, offsetof(shm::ListReply, nics) + nics * sizeof(shm::NicInfo), MSG_NOSIGNAL);
}

void SendRefusal(int fd) {
  shm::Welcome welcome = {};
  welcome.magic = shm::kAbiMagic;
  welcome.abi_version = shm::kAbiVersion;
  welcome.error = ENODEV;
  send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL);
}

int Main(int argc, char** argv) {
  Flags flags = ParseFlags(argc, argv);
  std::string starts = flags.directory + "/starts";
  std::ofstream(starts, std::ios::app) << getpid() << std::endl;
  WriteReport(flags.directory + "/report");
  std::puts("hello from the daemon");
  std::fflush(stdout);
  if (flags.fake == "die") return 3;
  if (flags.fake == "error") {
    return write(flags.ready_fd, "Eno such thing\n", 15) == 15 ? 1 : 2;
  }
  // As verbenad does, for as long as it lives.
  int lock = open(flags.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return write(flags.ready_fd, "Eanother serves\n", 16) == 16 ? 1 : 2;
  }
  std::string socket_path = flags.directory + "/sock";
  int listener = Listen(socket_path);
  if (listener < 0 || write(flags.ready_fd, "R", 1) != 1) return 1;
  close(flags.ready_fd);
  for (;;) {
    int fd = accept(listener, nullptr, nullptr);
    shm::Hello hello = {};
    if (recv(fd, &hello, sizeof(hello), 0) == sizeof(hello)) {
      if (flags.fake == "reset" && CountStarts(starts) == 1) {
        unlink(socket_path.c_str());
        return 0;
      }
      if (hello.kind == static_cast<uint32_t>(shm::HelloKind::kList)) SendList(fd, flags.nics);
      if (hello.kind == static_cast<uint32_t>(shm::HelloKind::kAttach)) SendRefusal(fd);
    }
    close(fd);
  }
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) { return verbena::Main(argc, argv); }

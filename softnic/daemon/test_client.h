// A verbenad under test and a client written by hand against core/shm, with nothing of the client
// library in between.
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/shm/attach.h"
#include "core/shm/command.h"

namespace verbena::softnic {

inline constexpr int kTestTimeoutMs = 20'000;

// Polls `condition` until it holds. False: it did not within the time limit.
template <typename Condition>
bool Eventually(Condition condition) {
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTestTimeoutMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

inline int ConnectTo(const std::string& directory) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock", directory.c_str());
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

inline bool WaitReadable(int fd) {
  pollfd p = {fd, POLLIN, 0};
  return poll(&p, 1, kTestTimeoutMs) == 1;
}

class TestDaemon {
 public:
  explicit TestDaemon(std::vector<std::string> flags = {}) {
    std::string pattern = "/tmp/verbena-test-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    directory_ = pattern;
    flags.push_back("--directory=" + directory_);
    Start(flags);
  }
  ~TestDaemon() {
    if (pid_ > 0) {
      // A daemon that crashed, or of which a sanitizer has something to tell, does not end with 0.
      kill(pid_, SIGTERM);
      int status = Wait();
      EXPECT_EQ(status, 0) << "the daemon did not end cleanly";
      if (status == -1) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
      }
    }
    unlink((directory_ + "/sock").c_str());
    rmdir(directory_.c_str());
  }

  static const char* Path() {
    const char* path = getenv("VERBENAD");
    return path != nullptr ? path : "softnic/daemon/verbenad";
  }
  // Starts a daemon and returns what it said on its ready fd.
  static std::string Launch(const std::vector<std::string>& flags, pid_t* pid) {
    int ready[2];
    if (pipe(ready) != 0) std::abort();
    *pid = fork();
    if (*pid == 0) {
      close(ready[0]);
      std::vector<std::string> args = {Path(), "--ready-fd=" + std::to_string(ready[1]),
                                       "--log-level=error"};
      args.insert(args.end(), flags.begin(), flags.end());
      std::vector<char*> argv;
      for (std::string& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ready[1]);
    std::string said;
    char buffer[512];
    ssize_t n;
    while ((n = read(ready[0], buffer, sizeof(buffer))) > 0) {
      said.append(buffer, static_cast<size_t>(n));
    }
    close(ready[0]);
    return said;
  }
  // Waits for the daemon's end; its wait status, or -1.
  int Wait() {
    int status = -1;
    bool ended = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) return -1;
    pid_ = 0;
    return status;
  }

  int FdCount() const { return CountEntries("/proc/" + std::to_string(pid_) + "/fd"); }
  // The count without what threads open for a moment as they start.
  int IdleFdCount() const {
    Ask("{\"op\":\"status\"}");
    int count = FdCount(), alike = 0;
    Eventually([&] {  // its threads, too, have a file open for a moment now and then
      const int before = std::exchange(count, FdCount());
      alike = before == count ? alike + 1 : 0;
      return alike == 10;
    });
    return count;
  }
  double CpuSeconds() const {
    FILE* f = std::fopen(("/proc/" + std::to_string(pid_) + "/stat").c_str(), "r");
    unsigned long user = 0, system = 0;
    if (f != nullptr) {
      int got = std::fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                            &system);
      if (got != 2) user = system = 0;
      std::fclose(f);
    }
    return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

  // One admin request; the whole reply.
  std::string Ask(const std::string& json) const {
    int fd = ConnectTo(directory_);
    if (fd < 0) return "";
    shm::Hello hello = {};
    hello.magic = shm::kAbiMagic;
    hello.abi_version = shm::kAbiVersion;
    hello.kind = static_cast<uint32_t>(shm::HelloKind::kAdmin);
    std::string reply;
    if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello) &&
        send(fd, json.data(), json.size(), MSG_NOSIGNAL) > 0) {
      char buffer[64 * 1024];
      ssize_t n;
      while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
        reply.append(buffer, static_cast<size_t>(n));
      }
    }
    close(fd);
    return reply;
  }
  // A number in the status reply, by its key.
  long StatusNumber(const std::string& key) const {
    std::string status = Ask("{\"op\":\"status\"}");
    size_t at = status.find("\"" + key + "\":");
    return at == std::string::npos ? -1 : std::atol(status.c_str() + at + key.size() + 3);
  }

  const std::string& directory() const { return directory_; }
  const std::string& said() const { return said_; }
  pid_t pid() const { return pid_; }

 private:
  static int CountEntries(const std::string& path) {
    DIR* dir = opendir(path.c_str());
    if (dir == nullptr) return -1;
    int count = 0;
    while (readdir(dir) != nullptr) ++count;
    closedir(dir);
    return count;
  }
  void Start(const std::vector<std::string>& flags) { said_ = Launch(flags, &pid_); }

  std::string directory_;
  std::string said_;
  pid_t pid_ = 0;
};

class TestClient {
 public:
  ~TestClient() { Close(); }
  TestClient() = default;
  TestClient(const TestClient&) = delete;

  shm::Hello hello() const {
    shm::Hello hello = {};
    hello.magic = shm::kAbiMagic;
    hello.abi_version = shm::kAbiVersion;
    hello.kind = static_cast<uint32_t>(shm::HelloKind::kAttach);
    hello.probe_addr = reinterpret_cast<uint64_t>(&probe_);
    hello.probe_value = probe_;
    std::strcpy(hello.program, "test");
    return hello;
  }
  // True: attached. Otherwise welcome().error says why.
  bool Attach(const std::string& directory) { return Attach(directory, hello()); }
  bool Attach(const std::string& directory, const shm::Hello& hello) {
    return SendHello(directory, hello) && ReceiveWelcome();
  }
  bool SendHello(const std::string& directory, const shm::Hello& hello) {
    socket_ = ConnectTo(directory);
    return socket_ >= 0 && send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
  }
  bool ReceiveWelcome() {
    int fds[shm::kWelcomeFds] = {-1, -1, -1, -1};
    if (!WaitReadable(socket_) || !Receive(&welcome_, sizeof(welcome_), fds, shm::kWelcomeFds) ||
        welcome_.error != 0 || fds[shm::kFdAsyncEvents] < 0) {
      return false;
    }
    area_ = static_cast<shm::ControlArea*>(mmap(nullptr, welcome_.control_area_bytes,
                                                PROT_READ | PROT_WRITE, MAP_SHARED,
                                                fds[shm::kFdControlArea], 0));
    status_ = static_cast<shm::StatusPage*>(
        mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fds[shm::kFdStatusPage], 0));
    control_fd_ = fds[shm::kFdControlArea];
    status_fd_ = fds[shm::kFdStatusPage];
    doorbell_ = fds[shm::kFdDoorbellEvent];
    async_ = fds[shm::kFdAsyncEvents];
    return area_ != MAP_FAILED && status_ != MAP_FAILED;
  }
  void Close() {
    if (area_ != nullptr) munmap(area_, welcome_.control_area_bytes);
    if (status_ != nullptr) munmap(status_, 4096);
    area_ = nullptr;
    status_ = nullptr;
    for (int* fd : {&socket_, &control_fd_, &status_fd_, &doorbell_, &async_}) {
      if (*fd >= 0) close(*fd);
      *fd = -1;
    }
  }

  void Ring(uint32_t doorbell) {
    area_->doorbells.Set(doorbell);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (status_->sleeping.load() != 0) {
      uint64_t one = 1;
      (void)!write(doorbell_, &one, sizeof(one));
    }
  }
  void Submit(uint32_t slot, shm::CommandOp op, const void* payload, uint32_t bytes) {
    shm::CommandSlot& s = area_->slots[slot];
    s.request.op = static_cast<uint32_t>(op);
    s.request.payload_bytes = bytes;
    if (bytes != 0) std::memcpy(s.request.payload, payload, bytes);
    s.submitted.store(++submitted_[slot], std::memory_order_release);
    Ring(slot);
  }
  // The command's error, or -1 if it did not complete in time.
  int Await(uint32_t slot, void* reply = nullptr, size_t bytes = 0) {
    shm::CommandCompletion& c = area_->slots[slot].completion;
    timespec second = {1, 0};
    for (int i = 0; i < kTestTimeoutMs / 1000; ++i) {
      uint32_t done = c.done.load(std::memory_order_acquire);
      if (done == submitted_[slot]) {
        if (reply != nullptr) std::memcpy(reply, c.payload, bytes);
        return c.error;
      }
      syscall(SYS_futex, &c.done, FUTEX_WAIT, done, &second, nullptr, 0);
    }
    return -1;
  }
  int Command(shm::CommandOp op, const void* payload = nullptr, uint32_t bytes = 0,
              void* reply = nullptr, size_t reply_bytes = 0) {
    Submit(0, op, payload, bytes);
    return Await(0, reply, reply_bytes);
  }
  // One message with up to `fd_count` fds.
  bool Receive(void* message, size_t bytes, int* fds, uint32_t fd_count) {
    iovec iov = {message, bytes};
    alignas(cmsghdr) char control[256];
    msghdr msg = {};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    if (recvmsg(socket_, &msg, MSG_CMSG_CLOEXEC) <= 0) return false;
    cmsghdr* header = CMSG_FIRSTHDR(&msg);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return true;
    uint32_t count = static_cast<uint32_t>((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    int received[16];
    std::memcpy(received, CMSG_DATA(header), count * sizeof(int));
    for (uint32_t i = 0; i < count; ++i) {
      if (i < fd_count)
        fds[i] = received[i];
      else
        close(received[i]);
    }
    return true;
  }
  // Whether the daemon has closed the session.
  bool IsEnded() {
    pollfd p = {async_, POLLIN, 0};
    return poll(&p, 1, kTestTimeoutMs) == 1 && (p.revents & POLLHUP) != 0;
  }

  const shm::Welcome& welcome() const { return welcome_; }
  shm::ControlArea* area() { return area_; }
  shm::StatusPage* status() { return status_; }
  int socket() const { return socket_; }
  int control_fd() const { return control_fd_; }
  int status_fd() const { return status_fd_; }
  int doorbell() const { return doorbell_; }

 private:
  uint64_t probe_ = 0x7665'7262'656e'6121;
  shm::Welcome welcome_ = {};
  shm::ControlArea* area_ = nullptr;
  shm::StatusPage* status_ = nullptr;
  int socket_ = -1, control_fd_ = -1, status_fd_ = -1, doorbell_ = -1, async_ = -1;
  uint32_t submitted_[shm::kCommandSlots] = {};
};

}  // namespace verbena::softnic

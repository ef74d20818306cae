#include "core/client/cm_session.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/shm/attach.h"

namespace verbena::client {
namespace {

// Welcomes on an instance's socket, and answers: kCreateChannel with the number of the connection
// and a fd, kNotify with the error that the request names, kListen by hanging up.
class FakeCmDaemon {
 public:
  explicit FakeCmDaemon(const std::string& directory) : path_(directory + "/sock") {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(pipe(stop_), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeCmDaemon() {
    EXPECT_EQ(write(stop_[1], "x", 1), 1);
    thread_.join();
    close(stop_[0]);
    close(stop_[1]);
    unlink(path_.c_str());
  }

  std::atomic<uint32_t> version = shm::kAbiVersion;
  std::atomic<int32_t> welcome_error = 0;
  std::atomic<int> connections = 0;
  std::atomic<int> open_connections = 0;
  std::atomic<uint32_t> hello_kind = 0;
  std::atomic<uint32_t> hello_pid = 0;

 private:
  void Run() {
    std::vector<pollfd> fds = {{stop_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
    for (;;) {
      if (poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents != 0) break;
      if (fds[1].revents != 0) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        ++connections;
        ++open_connections;
        if (Welcome(fd)) fds.push_back({fd, POLLIN, 0});
      }
      for (size_t i = 2; i < fds.size(); ++i) {
        if (fds[i].revents == 0 || Answer(fds[i].fd)) continue;
        close(fds[i].fd);
        --open_connections;
        fds.erase(fds.begin() + static_cast<std::ptrdiff_t>(i--));
      }
    }
    for (size_t i = 1; i < fds.size(); ++i) close(fds[i].fd);
  }

  bool Welcome(int fd) {
    shm::Hello hello = {};
    EXPECT_EQ(recv(fd, &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
    hello_kind = hello.kind;
    hello_pid = hello.pid;
    shm::CmWelcome welcome = {shm::kAbiMagic, version, welcome_error};
    send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL);
    return true;
  }

  bool Answer(int fd) {
    shm::CmRequest request = {};
    if (recv(fd, &request, sizeof(request), 0) != static_cast<ssize_t>(sizeof(request))) {
      return false;
    }
    shm::CmReply reply = {};
    const auto op = static_cast<shm::CmOp>(request.op);
    if (op == shm::CmOp::kListen) return false;
    if (op == shm::CmOp::kNotify) reply.error = static_cast<int32_t>(request.number);
    if (op != shm::CmOp::kCreateChannel) {
      return send(fd, &reply, sizeof(reply), MSG_NOSIGNAL) > 0;
    }
    reply.handle = static_cast<uint32_t>(connections.load());
    SendWithFd(fd, reply);
    return true;
  }

  void SendWithFd(int fd, shm::CmReply reply) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&reply, sizeof(reply)};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &stop_[0], sizeof(int));
    EXPECT_GT(sendmsg(fd, &message, MSG_NOSIGNAL), 0);
  }

  std::string path_;
  int listener_ = -1;
  int stop_[2] = {-1, -1};
  std::thread thread_;
};

shm::CmRequest Request(shm::CmOp op, uint32_t number = 0) {
  shm::CmRequest request = {};
  request.op = static_cast<uint32_t>(op);
  request.number = number;
  return request;
}

class CmSessionTest : public testing::Test {
 protected:
  CmSessionTest() {
    char name[] = "/tmp/cm_session_test_XXXXXX";
    directory_ = mkdtemp(name);
    setenv("VERBENA_INSTANCE", directory_.c_str(), 1);
    setenv("VERBENA_AUTOSTART", "0", 1);
  }
  // The process's session outlives a test; a daemon that is gone ends it.
  ~CmSessionTest() override {
    CmSession* session;
    if (CmSession::ForThisProcess(&session) == 0) {
      shm::CmReply reply;
      session->Execute(Request(shm::CmOp::kListen), &reply);
    }
    rmdir(directory_.c_str());
  }

  std::string directory_;
};

TEST_F(CmSessionTest, RequestsAreAnsweredOnOneConnection) {
  FakeCmDaemon daemon(directory_);
  CmSession* session = nullptr;
  ASSERT_EQ(CmSession::ForThisProcess(&session), 0);
  EXPECT_EQ(daemon.hello_kind, static_cast<uint32_t>(shm::HelloKind::kCm));
  EXPECT_EQ(daemon.hello_pid, static_cast<uint32_t>(getpid()));
  CmSession* again = nullptr;
  ASSERT_EQ(CmSession::ForThisProcess(&again), 0);
  EXPECT_EQ(again, session);
  shm::CmReply reply;
  errno = 77;
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kNotify, EADDRINUSE), &reply), EADDRINUSE);
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kNotify, 0), &reply), 0);
  EXPECT_EQ(errno, 77) << "the host's errno is not ours to change";
  int fd = -1;
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kCreateChannel), &reply, &fd), 0);
  EXPECT_EQ(reply.handle, 1u);
  EXPECT_GE(fd, 0);
  close(fd);
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kQuery), &reply, &fd), 0);
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(daemon.connections, 1);
}

TEST_F(CmSessionTest, ManyThreadsAsk) {
  FakeCmDaemon daemon(directory_);
  CmSession* session = nullptr;
  ASSERT_EQ(CmSession::ForThisProcess(&session), 0);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        shm::CmReply reply;
        const uint32_t error = t * 1000 + i;
        wrong +=
            session->Execute(Request(shm::CmOp::kNotify, error), &reply) != static_cast<int>(error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(CmSessionTest, ADaemonThatIsGoneEndsTheSessionAndTheNextGetsAnother) {
  CmSession* session = nullptr;
  {
    FakeCmDaemon daemon(directory_);
    ASSERT_EQ(CmSession::ForThisProcess(&session), 0);
  }
  shm::CmReply reply;
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kQuery), &reply), EIO);
  EXPECT_FALSE(session->IsAlive());
  CmSession* next = nullptr;
  EXPECT_EQ(CmSession::ForThisProcess(&next), ENODEV);
  EXPECT_EQ(next, nullptr);
  FakeCmDaemon daemon(directory_);
  ASSERT_EQ(CmSession::ForThisProcess(&next), 0);
  EXPECT_NE(next, session);
  EXPECT_EQ(next->Execute(Request(shm::CmOp::kQuery), &reply), 0);
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kQuery), &reply), EIO);
}

TEST_F(CmSessionTest, AHangUpAmidARequestIsAnError) {
  FakeCmDaemon daemon(directory_);
  CmSession* session = nullptr;
  ASSERT_EQ(CmSession::ForThisProcess(&session), 0);
  shm::CmReply reply;
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kListen), &reply), EIO);
  EXPECT_FALSE(session->IsAlive());
}

TEST_F(CmSessionTest, AChildHasASessionOfItsOwn) {
  FakeCmDaemon daemon(directory_);
  CmSession* session = nullptr;
  ASSERT_EQ(CmSession::ForThisProcess(&session), 0);
  const pid_t child = fork();
  if (child == 0) {
    shm::CmReply reply;
    if (session->Execute(Request(shm::CmOp::kQuery), &reply) != EIO) _exit(1);
    CmSession* own = nullptr;
    if (CmSession::ForThisProcess(&own) != 0 || own == session) _exit(2);
    if (!session->IsForkedCopy() || own->IsForkedCopy()) _exit(5);
    if (own->Execute(Request(shm::CmOp::kCreateChannel), &reply) != 0) _exit(3);
    _exit(reply.handle == 2 ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  shm::CmReply reply;
  EXPECT_EQ(session->Execute(Request(shm::CmOp::kQuery), &reply), 0) << "the parent's goes on";
}

TEST_F(CmSessionTest, RefusalsHaveReasons) {
  CmSession* session = nullptr;
  EXPECT_EQ(CmSession::ForThisProcess(&session), ENODEV);
  FakeCmDaemon daemon(directory_);
  daemon.version = shm::kAbiVersion + 1;
  EXPECT_EQ(CmSession::ForThisProcess(&session), EPROTO);
  daemon.version = shm::kAbiVersion;
  daemon.welcome_error = ENOMEM;
  EXPECT_EQ(CmSession::ForThisProcess(&session), ENOMEM);
  EXPECT_EQ(session, nullptr);
  daemon.welcome_error = 0;
  EXPECT_EQ(CmSession::ForThisProcess(&session), 0);
}

}  // namespace
}  // namespace verbena::client

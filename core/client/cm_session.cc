#include "core/client/cm_session.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"
#include "core/client/no_memory.h"
#include "core/client/scoped_lock.h"
#include "core/client/waiting.h"
#include "core/shm/attach.h"

namespace verbena::client {
namespace {

constexpr int64_t kWelcomeTimeoutMs = 10'000;
constexpr int kAttempts = 5;  // each fails only if an idle daemon ends just then

pthread_mutex_t current_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the two below
CmSession* current = nullptr;
bool fork_handler_registered = false;

bool SendAll(int fd, const void* data, size_t bytes) {
  ssize_t sent;
  do {
    sent = send(fd, data, bytes, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

// Keeps the first fd of a message, in `fd`, and closes what else came.
void TakeFds(msghdr* message, int* fd) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (*fd < 0) {
        *fd = received;
      } else {
        close(received);
      }
    }
  }
}

// The bytes of the next message, 0 at the end, -1 and errno.
ssize_t Receive(int socket_fd, void* data, size_t bytes, int* fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {data, bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received >= 0) TakeFds(&message, fd);
  return received;
}

int Connect(const StartOptions& options, bool may_start) {
  return may_start ? ConnectOrStart(options, nullptr) : ConnectInstance(options.directory);
}

}  // namespace

int CmSession::Open(int socket_fd, CmSession** out) {
  NoCancel no_cancel;
  *out = nullptr;
  auto* session = new (std::nothrow) CmSession(socket_fd, getpid());
  if (session == nullptr) {
    close(socket_fd);
    return ENOMEM;
  }
  if (int error = session->Greet(); error != 0) {
    session->MarkDead();
    delete session;
    return error;
  }
  *out = session;
  return 0;
}

int CmSession::ForThisProcess(CmSession** out) {
  NoCancel no_cancel;
  *out = nullptr;
  ScopedLock lock(&current_mutex);
  if (current != nullptr && current->IsAlive()) {
    *out = current;
    return 0;
  }
  CmSession* const earlier = current;
  if (!fork_handler_registered) {
    fork_handler_registered = pthread_atfork(nullptr, nullptr, AfterForkInChild) == 0;
  }
  if (int error = OrNoMemory([&] { return Join(out); }); error != 0) return error;
  (*out)->earlier_ = earlier;
  current = *out;
  return 0;
}

int CmSession::Join(CmSession** out) {
  const bool may_start = AutostartAllowed();
  StartOptions options;
  options.directory = InstanceDirectory(may_start);
  if (options.directory.empty()) return errno == ENOENT ? ENODEV : errno;
  int error = ENODEV;
  for (int i = 0; i < kAttempts; ++i) {
    const int fd = Connect(options, may_start);
    if (fd < 0) return errno == ENOENT || errno == ECONNREFUSED ? ENODEV : errno;
    error = Open(fd, out);
    if (error != ECONNRESET) break;
  }
  return error == ECONNRESET ? ENODEV : error;
}

int CmSession::Greet() {
  const int fd = socket_fd_.load(std::memory_order_relaxed);
  shm::Hello hello = {};
  hello.magic = shm::kAbiMagic;
  hello.abi_version = shm::kAbiVersion;
  hello.kind = static_cast<uint32_t>(shm::HelloKind::kCm);
  hello.pid = static_cast<uint32_t>(owner_pid_);
  hello.netns = NetworkNamespaceInode();
  std::strncpy(hello.program, program_invocation_short_name, sizeof(hello.program) - 1);
  if (!SendAll(fd, &hello, sizeof(hello))) return errno == EPIPE ? ECONNRESET : errno;
  if (!AwaitInput(fd, MonotonicMs() + kWelcomeTimeoutMs)) return ETIMEDOUT;
  shm::CmWelcome welcome;
  int unexpected_fd = -1;
  const ssize_t received = Receive(fd, &welcome, sizeof(welcome), &unexpected_fd);
  if (unexpected_fd >= 0) close(unexpected_fd);
  if (received < 0) return errno;
  if (received == 0) return ECONNRESET;
  if (received != static_cast<ssize_t>(sizeof(welcome)) || welcome.magic != shm::kAbiMagic ||
      welcome.abi_version != shm::kAbiVersion) {
    return EPROTO;
  }
  return welcome.error;
}

int CmSession::Execute(const shm::CmRequest& request, shm::CmReply* reply, int* fd) {
  NoCancel no_cancel;
  const int saved_errno = errno;
  int received_fd = -1;
  int error = EIO;
  if (IsAlive()) {
    ScopedLock lock(&mutex_);
    error = Exchange(request, reply, &received_fd);
  }
  if (fd != nullptr) {
    *fd = received_fd;
  } else if (received_fd >= 0) {
    close(received_fd);
  }
  errno = saved_errno;
  return error;
}

int CmSession::Exchange(const shm::CmRequest& request, shm::CmReply* reply, int* fd) {
  const int socket_fd = socket_fd_.load(std::memory_order_relaxed);
  if (socket_fd < 0) return EIO;
  if (SendAll(socket_fd, &request, sizeof(request)) &&
      Receive(socket_fd, reply, sizeof(*reply), fd) == static_cast<ssize_t>(sizeof(*reply)) &&
      reply->error >= 0) {
    return reply->error;
  }
  MarkDead();
  return EIO;
}

bool CmSession::IsAlive() const {
  return socket_fd_.load(std::memory_order_relaxed) >= 0 && !IsForkedCopy();
}

bool CmSession::IsForkedCopy() const { return owner_pid_ != getpid(); }

void CmSession::MarkDead() {
  const int fd = socket_fd_.exchange(-1, std::memory_order_relaxed);
  if (fd >= 0) close(fd);
}

// The parent's other threads may have held the locks, which are free in this copy of its memory.
void CmSession::AfterForkInChild() {
  current_mutex = PTHREAD_MUTEX_INITIALIZER;
  if (current == nullptr) return;
  current->mutex_ = PTHREAD_MUTEX_INITIALIZER;
  const int saved_errno = errno;
  current->MarkDead();
  errno = saved_errno;
}

}  // namespace verbena::client

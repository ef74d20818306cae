#include "softnic/control/attached_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <utility>

#include "softnic/control/program_name.h"
#include "softnic/control/watch.h"

namespace verbena::softnic {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kImportPause = std::chrono::milliseconds(1);

// One message into `data`, and the fd with it, if any, into `fd`. Bytes (more than `bytes` of one
// that is longer), 0 at EOF, or -1 with errno.
ssize_t ReceiveWithFd(int socket, void* data, size_t bytes, UniqueFd* fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {data, bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  const cmsghdr* header = n < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received;
    std::memcpy(&received, CMSG_DATA(header), sizeof(received));
    fd->Reset(received);
  }
  return n;
}

}  // namespace

AttachedClient::AttachedClient(ControlServer* server, pid_t pid)
    : server_(server),
      pid_(pid),
      watched_socket_(server->io()),
      pidfd_(server->io()),
      import_pause_(server->io()) {}

AttachedClient::~AttachedClient() = default;

int AttachedClient::Start(UniqueFd socket, const shm::Hello& hello, const AttachedClient* joins) {
  if (joins != nullptr && joins->id_ == 0) return ENODEV;
  nic_ = joins != nullptr ? joins->nic_ : hello.nic;
  program_ = ProgramNameOf(hello.program, sizeof(hello.program));
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd.IsValid()) return errno;
  // The session sends on its own copy: the control thread may stop watching at any time.
  UniqueFd watched(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched.IsValid()) return errno;
  std::weak_ptr<AttachedClient> weak = weak_from_this();
  ControlServer* server = server_;
  session_ = std::make_unique<ClientSession>(
      server_->shard(), std::move(socket), server_->config().session,
      [weak, server] {
        asio::post(server->io(), [weak] {
          if (auto self = weak.lock()) self->End("it does not read its socket");
        });
      },
      [weak, server](std::byte* part) {
        // Nobody waits for this thread meanwhile, as clients would for the leader.
        asio::post(server->io(), [weak, part] {
          if (auto self = weak.lock()) PutOnHugePage(part);
        });
      });
  int error = session_->Create();
  if (error != 0) return error;
  error = softnic::Watch(&watched, &watched_socket_);
  if (error == 0) error = softnic::Watch(&pidfd, &pidfd_);
  if (error != 0) return error;
  OpenOnLeader(hello, joins != nullptr ? joins->id_ : 0);
  Watch();
  WatchProcess();
  return 0;
}

void AttachedClient::OpenOnLeader(const shm::Hello& hello, SessionId joins) {
  server_->shard()->Post([self = shared_from_this(), hello, joins]() mutable {
    ControlServer* server = self->server_;
    std::vector<shm::NicInfo> nics = server->device()->ListNics();
    shm::Welcome welcome = {};
    welcome.magic = shm::kAbiMagic;
    welcome.abi_version = shm::kAbiVersion;
    if (self->nic_ < nics.size()) {
      welcome.session = server->device()->OpenSession(self->nic_, self->program_, self->pid_,
                                                      self->session_.get(), joins);
    }
    if (welcome.session == 0) {
      welcome.error = ENODEV;
      return HandBack(std::move(self), welcome);
    }
    welcome.nic = nics[self->nic_];
    self->session_->port().id = welcome.session;
    server->dma()->AttachSession(welcome.session, self->pid_);
    // On the copy path, because touching the client's memory may hang.
    server->shard()->Probe(welcome.session, hello.probe_addr, sizeof(uint64_t), false,
                           [self = std::move(self), welcome, expected = hello.probe_value](
                               int error, uint64_t word) mutable {
                             ControlServer* server = self->server_;
                             // Another word means another process: the pid is of a different
                             // namespace.
                             if (error == 0 && word != expected) error = ESRCH;
                             server->dma()->SetReachable(welcome.session, error == 0);
                             welcome.dma_errno = error;
                             welcome.dma_backends = (error == 0 ? shm::kDmaProcess : 0) |
                                                    shm::kDmaMapped | shm::kDmaAssisted;
                             if (!server->shard()->AddPort(&self->session_->port()))
                               welcome.error = errno;
                             HandBack(std::move(self), welcome);
                           });
  });
}

// From the leader to control. The leader gives its reference away: what it held last it would have
// to destroy, and sockets and timers are the control thread's.
void AttachedClient::HandBack(std::shared_ptr<AttachedClient> self, const shm::Welcome& welcome) {
  ControlServer* server = self->server_;
  asio::post(server->io(), [self = std::move(self), welcome] { self->OnAttached(welcome); });
}

void AttachedClient::OnAttached(const shm::Welcome& welcome) {
  is_attached_ = true;
  id_ = welcome.session;
  if (is_ended_) return CloseOnLeader();  // ended while it was attaching
  if (welcome.error != 0) {
    SendWithFds(session_->socket(), &welcome, sizeof(welcome), nullptr, 0);
    return End("attaching failed");
  }
  if (session_->SendWelcome(welcome) != 0) return End("it does not read its socket");
  server_->log().Debug("session " + std::to_string(id_) + " opened by " + program_ + " (pid " +
                       std::to_string(pid_) + ")");
}

// All that comes after Hello are those of who imports the context; else it is the client's end.
void AttachedClient::Watch() {
  watched_socket_.async_wait(
      asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](error_code error) {
        if (error || self->is_ended_) return;
        shm::Hello hello = {};
        UniqueFd socket;
        ssize_t n =
            ReceiveWithFd(self->watched_socket_.native_handle(), &hello, sizeof(hello), &socket);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->Watch();
        if (n == sizeof(hello) && hello.magic == shm::kAbiMagic &&
            hello.kind == static_cast<uint32_t>(shm::HelloKind::kImport)) {
          self->Import(std::move(socket), hello);
          return self->WatchAfterPause();
        }
        self->End(n > 0 ? "it sent something it must not" : "it closed its socket");
      });
}

void AttachedClient::WatchProcess() {
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](error_code error) {
                      if (error || self->is_ended_) return;
                      self->is_process_dead_ = true;
                      if (!self->IsHeld()) return self->End("its process ended");
                      self->AbandonOnLeader();
                    });
}

// A flood of imports goes by the clock, as that of other connections.
void AttachedClient::WatchAfterPause() {
  import_pause_.expires_after(kImportPause);
  import_pause_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && !self->is_ended_) self->Watch();
  });
}

// Whoever holds the other end of `socket` may import: it had this session's socket to say so.
void AttachedClient::Import(UniqueFd socket, const shm::Hello& hello) {
  int domain = 0, type = 0;
  socklen_t bytes = sizeof(domain);
  const bool is_end_of_pair =
      socket.IsValid() && getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 &&
      domain == AF_UNIX && getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 &&
      type == SOCK_SEQPACKET;
  if (!is_end_of_pair) return;
  // A socket to us is no end of a pair: its other end is ours.
  ucred peer = {};
  bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
      peer.pid == getpid()) {
    return;
  }
  server_->Attach(std::move(socket), hello, this);
}

// Whether a process that lives has the client's end of the socket.
bool AttachedClient::IsHeld() {
  if (!is_attached_ || !watched_socket_.is_open()) return false;
  pollfd end = {watched_socket_.native_handle(), POLLRDHUP, 0};
  return poll(&end, 1, 0) == 0;
}

void AttachedClient::AbandonOnLeader() {
  server_->log().Debug("session " + std::to_string(id_) + " of " + program_ +
                       ": its process ended, its context is held");
  is_abandoned_ = true;
  server_->shard()->Post([self = shared_from_this(), id = id_]() mutable {
    ControlServer* server = self->server_;
    server->dma()->MarkProcessDead(id);
    server->shard()->RemovePort(&self->session_->port());
    server->device()->AbandonSession(server->shard()->now(), id);
    // As in HandBack: the last reference is dropped by control.
    asio::post(server->io(), [self = std::move(self)] {});
  });
}

void AttachedClient::End(const std::string& why) {
  if (is_ended_) return;
  is_ended_ = true;
  server_->log().Debug("session " + std::to_string(id_) + " of " + program_ + " ends: " + why);
  error_code ignored;
  watched_socket_.close(ignored);
  pollfd ended = {pidfd_.is_open() ? pidfd_.native_handle() : -1, POLLIN, 0};
  if (poll(&ended, 1, 0) == 1) is_process_dead_ = true;
  pidfd_.close(ignored);
  // A socket the client still holds must read EOF now, not when the last copy is done.
  shutdown(session_->socket(), SHUT_RDWR);
  if (is_attached_) CloseOnLeader();
}

void AttachedClient::CloseOnLeader() {
  if (is_closing_) return;
  is_closing_ = true;
  server_->shard()->Post([self = shared_from_this(), id = id_, is_process_dead = is_process_dead_,
                          is_abandoned = is_abandoned_]() mutable {
    ControlServer* server = self->server_;
    ClientPort* port = &self->session_->port();
    // As in HandBack: the last reference is dropped by control.
    auto forget = [self = std::move(self), server]() mutable {
      asio::post(server->io(), [self = std::move(self), server] { server->Forget(self.get()); });
    };
    if (id == 0) return forget();
    if (is_process_dead) server->dma()->MarkProcessDead(id);
    server->dma()->EndAssistance(id);
    if (!is_abandoned) server->shard()->RemovePort(port);
    server->device()->CloseSession(server->shard()->now(), id);
    server->shard()->WhenGone(id, std::move(forget));
  });
}

}  // namespace verbena::softnic

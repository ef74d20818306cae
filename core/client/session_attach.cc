// Opening and closing sessions, and what arrives on the attach socket.
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "core/base/huge_page_mapping.h"
#include "core/client/assist.h"
#include "core/client/assist_mover.h"
#include "core/client/no_cancel.h"
#include "core/client/payload.h"
#include "core/client/scoped_lock.h"
#include "core/client/session.h"
#include "core/client/waiting.h"

namespace verbena::client {
namespace {

constexpr int64_t kWelcomeTimeoutMs = 10'000;  // the daemon may be attaching hundreds of others
constexpr int64_t kFdTimeoutMs = 1'000;        // fds are sent before the command completes
constexpr size_t kStatusPageBytes = 4096;

pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;  // guards the two below
Session* sessions = nullptr;
bool fork_handlers_registered = false;

void CloseFd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

// A helper's are its file, its socket, and a pidfd of each of the two processes.
constexpr size_t kAssistFds = 4;

template <size_t kCount>
bool IsRoomForFds() {
  int fds[kCount];
  size_t count = 0;
  while (count < kCount && (fds[count] = eventfd(0, EFD_CLOEXEC)) >= 0) ++count;
  for (size_t i = 0; i < count; ++i) close(fds[i]);
  return count == kCount;
}

// Lets the daemon read and write this process's memory where Yama restricts it to descendants.
// Kernels without Yama answer EINVAL; the daemon's probe of its backends decides in any case.
void AllowTracer(int socket_fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  unsigned long tracer = PR_SET_PTRACER_ANY;  // the daemon's pid has no meaning in our namespace
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0) {
    tracer = static_cast<unsigned long>(peer.pid);
  }
  prctl(PR_SET_PTRACER, tracer, 0, 0, 0);
}

// One message into `data` and its fds into `fds` (-1 where none). The bytes, 0 at EOF, -1 and
// errno. With MSG_PEEK it stays in the socket, its fds too.
ssize_t ReceiveWithFds(int socket_fd, void* data, size_t bytes, int* fds, size_t max_fds,
                       int flags = 0) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * shm::kWelcomeFds)] = {};
  for (size_t i = 0; i < max_fds; ++i) fds[i] = -1;
  iovec part = {data, bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(sizeof(int) * max_fds);
  ssize_t received;
  do {
    received = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (i < max_fds) {
        fds[i] = fd;
      } else {
        close(fd);
      }
    }
  }
  return received;
}

// `fd` may be -1: none.
ssize_t SendWithFd(int socket_fd, const void* data, size_t bytes, int fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {const_cast<void*>(data), bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

// Connected to an instance's socket, as far as can be told without sending anything.
bool IsSessionSocket(int fd) {
  int type = 0;
  socklen_t bytes = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET) {
    return false;
  }
  sockaddr_un peer = {};
  bytes = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
  const size_t path_bytes = strnlen(peer.sun_path, sizeof(peer.sun_path));
  constexpr char kName[] = "/sock";
  constexpr size_t kNameBytes = sizeof(kName) - 1;
  return peer.sun_family == AF_UNIX && path_bytes >= kNameBytes &&
         std::memcmp(peer.sun_path + path_bytes - kNameBytes, kName, kNameBytes) == 0;
}

}  // namespace

// Takes the fd. nullptr: no memory.
Session* Session::New(int socket_fd) {
  auto* session = new (std::nothrow) Session();
  if (session == nullptr) {
    close(socket_fd);
    return nullptr;
  }
  session->socket_fd_ = socket_fd;
  session->owner_pid_ = getpid();
  CountForks();
  session->fork_generation_ = process_fork_generation_.load(std::memory_order_relaxed);
  {
    // In the list from the start, so that a fork at any moment finds what is already mapped.
    ScopedLock lock(&sessions_lock);
    RegisterForkHandlers();
    session->next_session_ = sessions;
    sessions = session;
  }
  return session;
}

int Session::Open(int socket_fd, uint32_t nic, Session** out) {
  NoCancel no_cancel;
  *out = nullptr;
  Session* session = New(socket_fd);
  if (session == nullptr) return ENOMEM;
  int error = session->Attach(nic, -1);
  if (error != 0) {
    session->Close();
    return error;
  }
  *out = session;
  return 0;
}

int Session::Import(int cmd_fd, Session** out) {
  NoCancel no_cancel;
  *out = nullptr;
  if (!IsSessionSocket(cmd_fd)) return EINVAL;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
  Session* session = New(ends[0]);
  if (session == nullptr) {
    close(ends[1]);
    return ENOMEM;
  }
  session->imported_fd_ = cmd_fd;
  int error = session->Attach(0, ends[1]);
  if (error != 0) {
    session->imported_fd_ = -1;
    session->Close();
    return error == ECONNRESET ? ENODEV : error;
  }
  *out = session;
  return 0;
}

Session* Session::ForThisProcess() {
  if (!IsForkedCopy()) return this;
  Session* known = child_session_.load(std::memory_order_acquire);
  if (known == nullptr) {
    NoCancel no_cancel;
    int fd = fcntl(cmd_fd(), F_DUPFD_CLOEXEC, 0);
    Session* opened = nullptr;
    int error = fd < 0 ? errno : Import(fd, &opened);
    if (error != 0) {
      CloseFd(&fd);
      errno = error;
      return nullptr;
    }
    if (child_session_.compare_exchange_strong(known, opened, std::memory_order_acq_rel)) {
      known = opened;
    } else {
      opened->Close();
    }
  }
  return known->ForThisProcess();  // it may be a copy itself
}

int Session::Attach(uint32_t nic, int passed_fd) {
  AllowTracer(cmd_fd());
  int error = SendHello(nic, passed_fd);
  // The daemon's end now; if it does not take it, ours reads EOF.
  CloseFd(&passed_fd);
  if (error != 0) return error;
  int fds[shm::kWelcomeFds];
  error = ReceiveWelcome(fds);
  if (error == 0) error = MapWelcome(fds);
  for (int& fd : fds) CloseFd(&fd);  // those that the session kept read -1 here
  return error;
}

int Session::SendHello(uint32_t nic, int passed_fd) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  // Differs between processes and moments, so that the daemon can't mistake another's memory for
  // it.
  probe_ = reinterpret_cast<uintptr_t>(this) * 0x9e37'79b9'7f4a'7c15u ^
           static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u ^ static_cast<uint64_t>(now.tv_nsec) ^
           (static_cast<uint64_t>(owner_pid_) << 40);
  shm::Hello hello = {};
  hello.magic = shm::kAbiMagic;
  hello.abi_version = shm::kAbiVersion;
  hello.kind =
      static_cast<uint32_t>(passed_fd >= 0 ? shm::HelloKind::kImport : shm::HelloKind::kAttach);
  hello.nic = nic;
  hello.pid = static_cast<uint32_t>(owner_pid_);
  hello.probe_addr = reinterpret_cast<uintptr_t>(&probe_);
  hello.probe_value = probe_;
  std::strncpy(hello.program, program_invocation_short_name, sizeof(hello.program) - 1);
  ssize_t sent;
  do {
    sent = SendWithFd(cmd_fd(), &hello, sizeof(hello), passed_fd);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof(hello))) return 0;
  if (sent >= 0) return EPROTO;
  return errno == EPIPE ? ECONNRESET : errno;
}

int Session::ReceiveWelcome(int (&fds)[shm::kWelcomeFds]) {
  for (int& fd : fds) fd = -1;
  int64_t deadline_ms = MonotonicMs() + kWelcomeTimeoutMs;
  for (;;) {
    if (!AwaitInput(socket_fd_, deadline_ms)) return ETIMEDOUT;
    ssize_t received =
        ReceiveWithFds(socket_fd_, &welcome_, sizeof(welcome_), fds, shm::kWelcomeFds);
    if (received < 0 && errno == EAGAIN) continue;
    if (received < 0) return errno;
    if (received == 0) return ECONNRESET;
    if (received < static_cast<ssize_t>(sizeof(welcome_)) || welcome_.magic != shm::kAbiMagic) {
      return EPROTO;
    }
    if (welcome_.error != 0) return welcome_.error;
    return welcome_.abi_version == shm::kAbiVersion ? 0 : EPROTO;
  }
}

int Session::MapWelcome(int (&fds)[shm::kWelcomeFds]) {
  for (int fd : fds) {
    if (fd < 0) return EMFILE;  // the kernel drops fds that this process has no room for
  }
  if (welcome_.control_area_bytes < sizeof(shm::ControlArea)) return EPROTO;
  void* status = mmap(nullptr, kStatusPageBytes, PROT_READ, MAP_SHARED, fds[shm::kFdStatusPage], 0);
  if (status == MAP_FAILED) return errno;
  status_ = static_cast<const shm::StatusPage*>(status);
  void* control = mmap(nullptr, welcome_.control_area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                       fds[shm::kFdControlArea], 0);
  if (control == MAP_FAILED) return errno;
  control_ = static_cast<shm::ControlArea*>(control);
  doorbell_fd_ = fds[shm::kFdDoorbellEvent];
  async_fd_ = fds[shm::kFdAsyncEvents];
  fds[shm::kFdDoorbellEvent] = fds[shm::kFdAsyncEvents] = -1;
  KeepRoom();
  return 0;
}

void Session::Close() {
  NoCancel no_cancel;
  {
    ScopedLock lock(&sessions_lock);
    Session** link = &sessions;
    while (*link != nullptr && *link != this) link = &(*link)->next_session_;
    if (*link == this) *link = next_session_;
  }
  if (Session* of_child = child_session_.load(std::memory_order_acquire)) of_child->Close();
  if (payload_ != nullptr) internal::ReleasePayload(payload_);
  // No shutdown(): as on hardware, a context dies with the last process that holds its cmd_fd.
  CloseFd(&socket_fd_);
  if (helper_ != nullptr && IsForkedCopy()) {
    ForgetHelper(helper_);
  } else if (helper_ != nullptr) {
    StopHelper(helper_);
  }
  if (mover_ != nullptr && IsForkedCopy()) {
    ForgetMover(mover_);
  } else if (mover_ != nullptr) {
    StopMover(mover_);
  }
  CloseFd(&imported_fd_);
  CloseFd(&async_fd_);
  CloseFd(&doorbell_fd_);
  CloseFd(&room_fd_);
  if (control_ != nullptr) munmap(control_, welcome_.control_area_bytes);
  if (status_ != nullptr) munmap(const_cast<shm::StatusPage*>(status_), kStatusPageBytes);
  for (Arena* arena = arenas_.load(std::memory_order_acquire); arena != nullptr;) {
    Arena* next = arena->next;
    munmap(arena->base, arena->bytes);
    delete arena;
    arena = next;
  }
  while (pending_fds_ != nullptr) {
    PendingFd* pending = pending_fds_;
    pending_fds_ = pending->next;
    CloseFd(&pending->fd);
    delete pending;
  }
  delete this;
}

Session::Arena* Session::FindArena(uint32_t id) const {
  // Acquire: pairs with the release in AddArena.
  Arena* arena = arenas_.load(std::memory_order_acquire);
  while (arena != nullptr && arena->id != id) arena = arena->next;
  return arena;
}

Session::Arena* Session::AddArena(const shm::FdMessage& message, int fd) {
  auto* arena = new (std::nothrow)
      Arena{arenas_.load(std::memory_order_relaxed), message.id, message.bytes, nullptr};
  void* base = arena == nullptr ? MAP_FAILED : MapForHugePages(message.bytes, fd);
  if (base == MAP_FAILED) {
    delete arena;
    KeepPending(message, fd);  // it comes once only: the next call may find room for it
    errno = ENOMEM;
    return nullptr;
  }
  close(fd);
  KeepRoom();
  arena->base = base;
  arenas_.store(arena, std::memory_order_release);
  return arena;
}

// For the next arena: once the NIC has moved a queue there is no way back.
void Session::KeepRoom() {
  if (room_fd_ < 0) room_fd_ = fcntl(doorbell_fd_, F_DUPFD_CLOEXEC, 0);
}

void* Session::MapPlace(const shm::QueuePlace& place) {
  NoCancel no_cancel;
  if (IsForkedCopy()) return nullptr;
  Arena* arena = FindArena(place.arena);
  if (arena == nullptr) {
    ScopedLock lock(&fd_lock_);
    arena = FindArena(place.arena);
    if (arena == nullptr) {
      shm::FdMessage message;
      int fd = AwaitFd(shm::FdKind::kArena, place.arena, &message);
      if (fd >= 0) arena = AddArena(message, fd);
    }
  }
  if (arena == nullptr || place.offset > arena->bytes ||
      place.bytes > arena->bytes - place.offset || place.doorbell >= shm::kDoorbellsEnd) {
    return nullptr;
  }
  return static_cast<std::byte*>(arena->base) + place.offset;
}

RingMemory Session::MapRing(const shm::QueuePlace& place) {
  void* base = MapPlace(place);
  return base == nullptr ? RingMemory() : RingMemory(base, place.bytes);
}

int Session::TakeFd(shm::FdKind kind, shm::Handle handle, uint64_t* bytes) {
  NoCancel no_cancel;
  if (IsForkedCopy()) {
    errno = EIO;
    return -1;
  }
  ScopedLock lock(&fd_lock_);
  shm::FdMessage message = {};
  int fd = AwaitFd(kind, handle, &message);
  *bytes = message.bytes;
  return fd;
}

int Session::TakeChannelFd(shm::Handle channel) {
  uint64_t bytes;
  return TakeFd(shm::FdKind::kChannel, channel, &bytes);
}

int Session::TakeMemoryFd(shm::Handle dm, uint64_t* bytes) {
  return TakeFd(shm::FdKind::kDeviceMemory, dm, bytes);
}

int Session::OpenPayload(PayloadFile** out) {
  NoCancel no_cancel;
  if ((welcome_.dma_backends & shm::kDmaMapped) == 0 || IsForkedCopy()) return EOPNOTSUPP;
  ScopedLock lock(&payload_lock_);
  *out = payload_;
  if (payload_ != nullptr) return 0;
  shm::OpenPayloadRequest request = {};
  shm::OpenPayloadReply reply = {};
  internal::KnownPayloads(request.known, shm::kPayloadsKnownMax);
  int error =
      Execute(shm::CommandOp::kOpenPayload, &request, sizeof(request), &reply, sizeof(reply));
  if (error != 0) return error;
  payload_ = internal::FindPayload(reply.payload);
  if (payload_ == nullptr) {
    shm::FdMessage message;
    int fd;
    {
      ScopedLock fd_lock(&fd_lock_);
      fd = AwaitFd(shm::FdKind::kPayload, 0, &message);
    }
    if (fd < 0) return errno;
    error = internal::AdoptPayload(reply.payload, fd, &payload_);
  }
  *out = payload_;
  return error;
}

int Session::TakeAssistFds(bool for_entries, int* file, int* socket) {
  if (!IsRoomForFds<kAssistFds>()) return EMFILE;  // another time there may be
  has_tried_assist_ = true;
  shm::OpenAssistRequest request = {};
  if (for_entries) request.flags = shm::kAssistEntries;
  const int error =
      Execute(shm::CommandOp::kOpenAssist, &request, sizeof(request), nullptr, 0, nullptr);
  if (error != 0) return error;
  uint64_t bytes;
  *file = TakeFd(shm::FdKind::kAssistFile, 0, &bytes);
  *socket = *file < 0 ? -1 : TakeFd(shm::FdKind::kAssistSocket, 0, &bytes);
  if (*socket >= 0) return 0;
  CloseFd(file);
  return EIO;
}

int Session::OpenAssist(bool for_entries) {
  NoCancel no_cancel;
  if ((welcome_.dma_backends & shm::kDmaAssisted) == 0 || IsForkedCopy()) return EOPNOTSUPP;
  ScopedLock lock(&assist_lock_);
  if (has_tried_assist_) return assist_error_;
  int file = -1, socket = -1;
  assist_error_ = TakeAssistFds(for_entries, &file, &socket);
  if (assist_error_ == 0) assist_error_ = StartHelper(file, socket, &helper_);
  return assist_error_;
}

int Session::MoveBy(const MoveFunctions& functions) {
  NoCancel no_cancel;
  if (IsForkedCopy()) return EOPNOTSUPP;
  ScopedLock lock(&assist_lock_);
  if (has_tried_assist_) return EBUSY;
  int file = -1, socket = -1;
  assist_error_ = TakeAssistFds(/*for_entries=*/false, &file, &socket);
  if (assist_error_ == 0) assist_error_ = StartMover(file, socket, functions, &mover_);
  return assist_error_;
}

int Session::AwaitFd(shm::FdKind kind, uint32_t id, shm::FdMessage* message) {
  int64_t deadline_ms = MonotonicMs() + kFdTimeoutMs;
  for (;;) {
    int fd;
    if (TakePendingFd(kind, id, message, &fd)) {
      if (fd < 0) errno = EMFILE;
      return fd;
    }
    switch (ReceiveFdMessage()) {
      case Received::kMessage:
        break;
      case Received::kNone:
        if (AwaitInput(socket_fd_, deadline_ms)) break;
        errno = EIO;
        return -1;
      case Received::kNoRoom:
        errno = EMFILE;
        return -1;
      case Received::kGone:
        MarkDead();
        errno = EIO;
        return -1;
    }
  }
}

bool Session::TakePendingFd(shm::FdKind kind, uint32_t id, shm::FdMessage* message, int* fd) {
  for (PendingFd** link = &pending_fds_; *link != nullptr; link = &(*link)->next) {
    PendingFd* pending = *link;
    if (pending->message.kind != static_cast<uint32_t>(kind) || pending->message.id != id) continue;
    *link = pending->next;
    *fd = pending->fd;
    *message = pending->message;
    delete pending;
    return true;
  }
  return false;
}

Session::Received Session::ReceiveFdMessage() {
  // Taken only with its fd: the kernel drops one that finds no room, and an arena's comes once.
  shm::FdMessage message;
  int fd;
  ssize_t received = ReceiveWithFds(socket_fd_, &message, sizeof(message), &fd, 1, MSG_PEEK);
  const bool is_whole = received == static_cast<ssize_t>(sizeof(message));
  if (is_whole && fd < 0 && message.kind == static_cast<uint32_t>(shm::FdKind::kArena)) {
    if (room_fd_ < 0) return Received::kNoRoom;
    CloseFd(&room_fd_);
    return Received::kMessage;  // at the next look
  }
  if (received > 0) {
    const int saved = errno;
    (void)recv(socket_fd_, nullptr, 0, MSG_DONTWAIT);  // closes what fds it still has
    errno = saved;
  }
  if (received < 0) return errno == EAGAIN ? Received::kNone : Received::kGone;
  if (received == 0) return Received::kGone;
  if (is_whole) {
    KeepPending(message, fd);  // without one, too: who waits for it is told so at once
  } else {
    CloseFd(&fd);
  }
  return Received::kMessage;
}

void Session::KeepPending(const shm::FdMessage& message, int fd) {
  auto* pending = new (std::nothrow) PendingFd{pending_fds_, message, fd};
  if (pending == nullptr) {
    if (fd >= 0) close(fd);
  } else {
    pending_fds_ = pending;
  }
}

void Session::RegisterForkHandlers() {
  if (fork_handlers_registered) return;
  fork_handlers_registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
}

void Session::BeforeFork() { pthread_mutex_lock(&sessions_lock); }

void Session::AfterForkInParent() { pthread_mutex_unlock(&sessions_lock); }

void Session::AfterForkInChild() {
  for (Session* s = sessions; s != nullptr; s = s->next_session_) s->AbandonInChild();
  pthread_mutex_unlock(&sessions_lock);
}

// Only async-signal-safe calls: the parent may have other threads.
void Session::AbandonInChild() {
  MarkDead();
  auto replace = [](void* base, size_t bytes, int protection) {
    mmap(base, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  };
  int saved = errno;
  // The status page first: no doorbell of this child may wake the parent's NIC.
  if (status_ != nullptr) {
    replace(const_cast<shm::StatusPage*>(status_), kStatusPageBytes, PROT_READ);
  }
  if (control_ != nullptr) {
    replace(control_, welcome_.control_area_bytes, PROT_READ | PROT_WRITE);
  }
  for (Arena* a = arenas_.load(std::memory_order_acquire); a != nullptr; a = a->next) {
    replace(a->base, a->bytes, PROT_READ | PROT_WRITE);
  }
  errno = saved;
}

}  // namespace verbena::client

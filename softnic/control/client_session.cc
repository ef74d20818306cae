#include "softnic/control/client_session.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "core/base/check.h"
#include "core/shm/assist.h"

namespace verbena::softnic {

namespace {

constexpr uint32_t kFdsPerMessageMax = 8;

// Its fd stays open: who imports the memory gets a copy.
class SharedNicMemory final : public NicMemory {
 public:
  int Create(uint64_t size) {
    int error = memory_.Create("verbena-dm", size, ClientAccess::kReadWrite);
    if (error == 0) error = memory_.Back(0, size);
    data = memory_.data();
    bytes = size;
    return error;
  }
  int fd() const { return memory_.fd(); }

 private:
  SharedMemory memory_;
};

uint64_t PageRound(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// 0 or errno.
int MakePair(UniqueFd* ours, UniqueFd* theirs) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  ours->Reset(pair[0]);
  theirs->Reset(pair[1]);
  return 0;
}

}  // namespace

int SendWithFds(int socket, const void* message, size_t bytes, const int* fds, uint32_t fd_count) {
  VERBENA_CHECK(fd_count <= kFdsPerMessageMax);
  iovec iov = {const_cast<void*>(message), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsPerMessageMax)] = {};
  msghdr msg = {};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  if (fd_count != 0) {
    msg.msg_control = control;
    msg.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* header = CMSG_FIRSTHDR(&msg);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    std::memcpy(CMSG_DATA(header), fds, sizeof(int) * fd_count);
  }
  for (;;) {
    if (sendmsg(socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

ClientSession::ClientSession(Shard* shard, UniqueFd socket, SessionLimits limits,
                             std::function<void()> doomed, ArenaSet::PartFilled part_filled)
    : shard_(shard),
      socket_(std::move(socket)),
      limits_(limits),
      doomed_(std::move(doomed)),
      arenas_(
          limits.arenas,
          [this](uint32_t id, int fd, uint64_t bytes) {
            return SendFd(shm::FdKind::kArena, id, bytes, fd);
          },
          std::move(part_filled)) {}

ClientSession::~ClientSession() = default;

int ClientSession::Create() {
  uint64_t area_bytes = PageRound(sizeof(shm::ControlArea));
  int error = control_area_.Create("verbena-control", area_bytes, ClientAccess::kReadWrite);
  if (error == 0) error = control_area_.Back(0, area_bytes);
  if (error == 0) error = status_page_.Create("verbena-status", 4096, ClientAccess::kReadOnly);
  if (error == 0) error = status_page_.Back(0, 4096);
  if (error != 0) return error;
  doorbell_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_event_.IsValid()) return errno;
  error = MakePair(&async_events_, &client_async_events_);
  if (error != 0) return error;
  port_.area = new (control_area_.data()) shm::ControlArea;
  port_.status = new (status_page_.data()) shm::StatusPage;
  // Until the shard listens the client rings its eventfd.
  port_.status->sleeping.store(1, std::memory_order_relaxed);
  port_.status->stopping.store(0, std::memory_order_relaxed);
  port_.doorbell_event = doorbell_event_.get();
  return 0;
}

int ClientSession::SendWelcome(const shm::Welcome& message) {
  shm::Welcome welcome = message;
  welcome.control_area_bytes = control_area_.bytes();
  int fds[shm::kWelcomeFds];
  fds[shm::kFdControlArea] = control_area_.fd();
  fds[shm::kFdStatusPage] = status_page_.fd();
  fds[shm::kFdDoorbellEvent] = doorbell_event_.get();
  fds[shm::kFdAsyncEvents] = client_async_events_.get();
  int error = SendWithFds(socket_.get(), &welcome, sizeof(welcome), fds, shm::kWelcomeFds);
  // Passed on: the mappings are enough for us, and fds are scarce with hundreds of clients.
  control_area_.CloseFd();
  status_page_.CloseFd();
  client_async_events_.Reset();
  return error;
}

void ClientSession::SetStopping() {
  if (port_.status != nullptr) port_.status->stopping.store(1, std::memory_order_release);
}

void ClientSession::Doom() {
  if (is_doomed_) return;
  is_doomed_ = true;
  doomed_();
}

int ClientSession::SendFd(shm::FdKind kind, uint32_t id, uint64_t bytes, int fd) {
  shm::FdMessage message = {};
  message.kind = static_cast<uint32_t>(kind);
  message.id = id;
  message.bytes = bytes;
  int error = SendWithFds(socket_.get(), &message, sizeof(message), &fd, 1);
  if (error == 0) return 0;
  // The client does not read its socket (or is gone). What it was to receive is lost, so the
  // session can't go on; nothing is kept for it.
  Doom();
  return error == ETOOMANYREFS ? EMFILE : ENOMEM;
}

int ClientSession::AllocateQueue(uint64_t bytes, QueueMemory* out) {
  return arenas_.Allocate(bytes, out);
}

void ClientSession::FreeQueue(const QueueMemory& queue) { arenas_.Free(queue); }

void ClientSession::OpenDoorbells(uint32_t page, const QueueMemory& memory) {
  RingMemory ring = memory.memory;
  port_.doorbells.OpenPage(page, reinterpret_cast<shm::ThreadDoorbellPage*>(ring.data()));
}

int ClientSession::OpenChannel(shm::Handle channel) {
  if (channels_.size() >= limits_.channels_max) return EMFILE;
  UniqueFd ours, theirs;
  int error = MakePair(&ours, &theirs);
  if (error != 0) return error;
  error = SendFd(shm::FdKind::kChannel, channel, 0, theirs.get());
  if (error != 0) return error;
  channels_[channel] = std::move(ours);
  return 0;
}

void ClientSession::CloseChannel(shm::Handle channel) { channels_.erase(channel); }

int ClientSession::SendPayload(int fd) {
  return SendFd(shm::FdKind::kPayload, 0, shm::kPayloadFileBytes, fd);
}

int ClientSession::SendAssist(int file, int socket) {
  // While we hold a copy of the helper's end, ours reads no end of file.
  const UniqueFd sent_file(file), sent_socket(socket);
  int error = SendFd(shm::FdKind::kAssistFile, 0, shm::kAssistFileBytes, file);
  return error == 0 ? SendFd(shm::FdKind::kAssistSocket, 0, 0, socket) : error;
}

int ClientSession::MakeMemory(uint64_t bytes, std::shared_ptr<NicMemory>* out) {
  auto memory = std::make_shared<SharedNicMemory>();
  int error = memory->Create(bytes);
  if (error == 0) *out = std::move(memory);
  return error;
}

// Precondition: some session's MakeMemory made it.
int ClientSession::SendMemory(shm::Handle dm, const NicMemory& memory) {
  return SendFd(shm::FdKind::kDeviceMemory, dm, memory.bytes,
                static_cast<const SharedNicMemory&>(memory).fd());
}

bool ClientSession::SendEvent(int fd, const void* message, size_t bytes) {
  for (;;) {
    if (send(fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM) return true;  // nobody reads it
    shard_->RequestFlush();
    return false;
  }
}

bool ClientSession::SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) {
  auto it = channels_.find(channel);
  return it == channels_.end() || SendEvent(it->second.get(), &event, sizeof(event));
}

bool ClientSession::SendAsyncEvent(const shm::AsyncEventMessage& event) {
  return SendEvent(async_events_.get(), &event, sizeof(event));
}

void ClientSession::CompleteCommand(uint32_t slot, uint32_t submitted, int error,
                                    const void* payload, uint32_t payload_bytes, uint32_t detail) {
  VERBENA_CHECK(slot < shm::kCommandSlots && payload_bytes <= shm::kCommandPayloadBytes);
  VERBENA_CHECK(port_.slots[slot].is_busy && port_.slots[slot].submitted == submitted);
  port_.slots[slot].is_busy = false;
  shm::CommandCompletion& completion = port_.area->slots[slot].completion;
  completion.error = error;
  completion.payload_bytes = payload_bytes;
  completion.detail = detail;
  if (payload_bytes != 0) std::memcpy(completion.payload, payload, payload_bytes);
  // Release: pairs with the acquire of the client's wait.
  completion.done.store(submitted, std::memory_order_release);
  syscall(SYS_futex, &completion.done, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace verbena::softnic

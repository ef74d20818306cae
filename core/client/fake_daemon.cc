#include "core/client/fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"

namespace verbena::client {
namespace {

constexpr int kPollsBeforeSleep = 1000;
constexpr uint32_t kStrayChannel = 1000;

int MakeMemfd(uint64_t bytes) {
  int fd = memfd_create("fake", MFD_CLOEXEC);
  VERBENA_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  return fd;
}

void* Map(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  VERBENA_CHECK(base != MAP_FAILED);
  return base;
}

void CloseFd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

}  // namespace

FakeDaemon::FakeDaemon() {
  int pair[2], async[2];
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, async) == 0);
  client_fd_ = pair[0];
  socket_fd_ = pair[1];
  async_client_fd_ = async[0];
  async_fd_ = async[1];
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  control_fd_ = MakeMemfd(sizeof(shm::ControlArea));
  status_fd_ = MakeMemfd(4096);
  control_ = static_cast<shm::ControlArea*>(Map(control_fd_, sizeof(shm::ControlArea)));
  status_ = static_cast<shm::StatusPage*>(Map(status_fd_, 4096));
}

FakeDaemon::~FakeDaemon() {
  StopThread();
  CloseFd(&client_fd_);
  CloseOwnEnds();
  munmap(control_, sizeof(shm::ControlArea));
  munmap(status_, 4096);
}

int FakeDaemon::TakeClientFd() { return std::exchange(client_fd_, -1); }

void FakeDaemon::CloseOwnEnds() {
  for (int* fd :
       {&socket_fd_, &async_fd_, &async_client_fd_, &event_fd_, &control_fd_, &status_fd_}) {
    CloseFd(fd);
  }
  for (int& fd : channel_ends_) CloseFd(&fd);
  channel_ends_.clear();
}

void FakeDaemon::StartThread() {
  thread_ = std::thread([this] { Run(); });
}

void FakeDaemon::StopThread() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  uint64_t one = 1;
  VERBENA_CHECK(write(event_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  CloseOwnEnds();
}

pid_t FakeDaemon::StartProcess() {
  pid_t pid = fork();
  VERBENA_CHECK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CloseFd(&client_fd_);
    Run();
    _exit(0);
  }
  CloseOwnEnds();
  return pid;
}

void FakeDaemon::Run() {
  if (!Attach() || attach_only) return;
  while (!stop_.load()) {
    int idle = 0;
    while (idle < kPollsBeforeSleep) idle = Sweep() ? 0 : idle + 1;
    Sleep();
  }
}

bool FakeDaemon::Attach() {
  ssize_t n = recv(socket_fd_, &hello_, sizeof(hello_), 0);
  if (n != sizeof(hello_) || close_before_welcome) {
    CloseFd(&socket_fd_);
    return false;
  }
  shm::Welcome welcome = {};
  welcome.magic = shm::kAbiMagic;
  welcome.abi_version = shm::kAbiVersion;
  welcome.error = welcome_error;
  welcome.session = 42;
  welcome.control_area_bytes = sizeof(shm::ControlArea);
  int fds[shm::kWelcomeFds];
  fds[shm::kFdControlArea] = control_fd_;
  fds[shm::kFdStatusPage] = status_fd_;
  fds[shm::kFdDoorbellEvent] = event_fd_;
  fds[shm::kFdAsyncEvents] = async_client_fd_;
  SendFds(&welcome, sizeof(welcome), fds, welcome_error == 0 ? shm::kWelcomeFds : 0);
  CloseFd(&async_client_fd_);
  return welcome_error == 0;
}

bool FakeDaemon::Sweep() {
  if (control_->doorbells.summary[0].exchange(0, std::memory_order_seq_cst) == 0) return false;
  uint64_t bits = control_->doorbells.Leaf(0).exchange(0, std::memory_order_seq_cst);
  for (; bits != 0; bits &= bits - 1) RunCommand(static_cast<uint32_t>(__builtin_ctzll(bits)));
  return true;
}

void FakeDaemon::Sleep() {
  status_->sleeping.store(1, std::memory_order_seq_cst);
  if (!Sweep()) {
    sleeps_.fetch_add(1);
    pollfd entries[2] = {{event_fd_, POLLIN, 0}, {socket_fd_, POLLRDHUP, 0}};
    poll(entries, 2, -1);
    uint64_t count = 0;
    if (read(event_fd_, &count, sizeof(count)) == sizeof(count)) {
      wakeups_.fetch_add(static_cast<uint32_t>(count));
    }
    if (entries[1].revents != 0) stop_.store(true);
  }
  status_->sleeping.store(0, std::memory_order_seq_cst);
}

void FakeDaemon::RunCommand(uint32_t index) {
  shm::CommandSlot* slot = &control_->slots[index];
  uint32_t use = slot->submitted.load(std::memory_order_acquire);
  if (use == slot->completion.done.load(std::memory_order_relaxed)) return;
  commands_.fetch_add(1);
  switch (static_cast<shm::CommandOp>(slot->request.op)) {
    case shm::CommandOp::kNop:
      return Reply(slot, use, 0, 0, slot->request.payload, slot->request.payload_bytes);
    case shm::CommandOp::kAllocPd:
      return;
    case shm::CommandOp::kDeallocPd:
      return Reply(slot, use, EBUSY, kFakeBusyDetail, nullptr, 0);
    case shm::CommandOp::kCreateChannel:
      return CreateChannel(slot, use);
    case shm::CommandOp::kCreateCq:
      return CreateCq(slot, use);
    case shm::CommandOp::kQueryPort:
      raise(SIGKILL);
      return;
    default:
      return Reply(slot, use, EOPNOTSUPP, 0, nullptr, 0);
  }
}

void FakeDaemon::Reply(shm::CommandSlot* slot, uint32_t use, int32_t error, uint32_t detail,
                       const void* payload, uint32_t bytes) {
  slot->completion.error = error;
  slot->completion.detail = detail;
  slot->completion.payload_bytes = bytes;
  if (bytes != 0) std::memcpy(slot->completion.payload, payload, bytes);
  slot->completion.done.store(use, std::memory_order_release);
  syscall(SYS_futex, &slot->completion.done, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void FakeDaemon::CreateChannel(shm::CommandSlot* slot, uint32_t use) {
  shm::HandleReply reply = {++channels_, 0};
  SendChannelFd(reply.handle);
  Reply(slot, use, 0, 0, &reply, sizeof(reply));
}

void FakeDaemon::SendChannelFd(uint32_t id) {
  int pair[2];
  VERBENA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  shm::ChannelEvent event = {.cookie = id, .cq = 0, .reserved = 0};
  VERBENA_CHECK(send(pair[1], &event, sizeof(event), 0) == sizeof(event));
  shm::FdMessage message = {static_cast<uint32_t>(shm::FdKind::kChannel), id, 0};
  SendFds(&message, sizeof(message), &pair[0], 1);
  close(pair[0]);
  channel_ends_.push_back(pair[1]);
}

void FakeDaemon::CreateCq(shm::CommandSlot* slot, uint32_t use) {
  shm::CreateCqRequest request;
  std::memcpy(&request, slot->request.payload, sizeof(request));
  uint32_t arena = request.entries;
  if (std::find(arenas_.begin(), arenas_.end(), arena) == arenas_.end()) {
    arenas_.push_back(arena);
    if (arenas_.size() == 1) SendChannelFd(kStrayChannel);
    int fd = MakeMemfd(kFakeArenaBytes);
    void* base = Map(fd, kFakeArenaBytes);
    // Each page says which arena it is of.
    std::memset(base, static_cast<int>(arena), kFakeArenaBytes);
    munmap(base, kFakeArenaBytes);
    shm::FdMessage message = {static_cast<uint32_t>(shm::FdKind::kArena), arena, kFakeArenaBytes};
    SendFds(&message, sizeof(message), &fd, 1);
    close(fd);
  }
  shm::CreateCqReply reply = {};
  reply.cq = 9;
  reply.place = {.arena = arena,
                 .stride_bytes = 64,
                 .offset = 4096,
                 .bytes = 4096,
                 .entries = 32,
                 .doorbell = 64};
  Reply(slot, use, 0, 0, &reply, sizeof(reply));
}

void FakeDaemon::SendFds(const void* data, size_t bytes, const int* fds, int count) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * shm::kWelcomeFds)] = {};
  iovec part = {const_cast<void*>(data), bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<size_t>(count));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<size_t>(count));
    std::memcpy(CMSG_DATA(header), fds, sizeof(int) * static_cast<size_t>(count));
  }
  VERBENA_CHECK(sendmsg(socket_fd_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

}  // namespace verbena::client

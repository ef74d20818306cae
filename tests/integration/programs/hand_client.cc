#include "tests/integration/programs/hand_client.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace verbena::tests {

ssize_t ReceiveWithFds(int socket, void* data, size_t bytes, int flags, std::vector<int>* fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
  iovec iov = {data, bytes};
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->push_back(fd);
    }
  }
  return n;
}

HandClient::~HandClient() {
  if (control_ != nullptr) munmap(control_, control_bytes_);
  for (Mapping& mapping : arenas_) munmap(mapping.data, mapping.bytes);
  for (int fd : fds_) close(fd);
  if (socket_ >= 0) close(socket_);
}

int HandClient::Connect() {
  const char* directory = getenv("VERBENA_INSTANCE");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::string path = std::string(directory != nullptr ? directory : ".") + "/sock";
  if (path.size() >= sizeof(address.sun_path)) return -1;
  memcpy(address.sun_path, path.c_str(), path.size());
  int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

shm::Hello HandClient::MakeHello(shm::HelloKind kind) {
  static uint64_t probe = 0x1234'5678;
  shm::Hello hello = {};
  hello.magic = shm::kAbiMagic;
  hello.abi_version = shm::kAbiVersion;
  hello.kind = static_cast<uint32_t>(kind);
  hello.pid = static_cast<uint32_t>(getpid());
  hello.probe_addr = reinterpret_cast<uint64_t>(&probe);
  hello.probe_value = probe;
  strcpy(hello.program, "hostile");
  return hello;
}

bool HandClient::Attach(uint32_t nic) {
  socket_ = Connect();
  if (socket_ < 0) return false;
  shm::Hello hello = MakeHello(shm::HelloKind::kAttach);
  hello.nic = nic;
  if (send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) return false;
  shm::Welcome welcome = {};
  if (ReceiveWithFds(socket_, &welcome, sizeof(welcome), 0, &fds_) != sizeof(welcome)) return false;
  if (welcome.error != 0 || fds_.size() < shm::kWelcomeFds) return false;
  control_bytes_ = welcome.control_area_bytes;
  void* p = mmap(nullptr, control_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED,
                 fds_[shm::kFdControlArea], 0);
  if (p == MAP_FAILED) return false;
  control_ = static_cast<shm::ControlArea*>(p);
  return true;
}

void HandClient::Ring(uint32_t doorbell) {
  control_->doorbells.Set(doorbell);
  uint64_t one = 1;  // always: this client does not ask whether the NIC sleeps
  if (write(fds_[shm::kFdDoorbellEvent], &one, sizeof(one)) < 0) return;
}

void HandClient::Submit(uint32_t slot, uint32_t submitted, uint32_t op, const void* payload,
                        uint32_t stored_bytes, uint32_t claimed_bytes) {
  shm::CommandSlot& s = control_->slots[slot];
  s.request.op = op;
  s.request.payload_bytes = claimed_bytes;
  stored_bytes = std::min(stored_bytes, shm::kCommandPayloadBytes);
  if (stored_bytes > 0) memcpy(s.request.payload, payload, stored_bytes);
  s.submitted.store(submitted, std::memory_order_release);
  Ring(slot);
}

int HandClient::Issue(uint32_t slot, shm::CommandOp op, const void* payload, uint32_t bytes,
                      void* reply, uint32_t reply_bytes, int limit_ms) {
  uint32_t number = ++submitted_[slot];
  Submit(slot, number, static_cast<uint32_t>(op), payload, bytes, bytes);
  shm::CommandCompletion& completion = control_->slots[slot].completion;
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  while (completion.done.load(std::memory_order_acquire) != number) {
    if (std::chrono::steady_clock::now() > end) return -1;
    sched_yield();
  }
  if (reply != nullptr) memcpy(reply, completion.payload, reply_bytes);
  TakeArenas();
  return completion.error;
}

void HandClient::TakeArenas() {
  for (;;) {
    shm::FdMessage message = {};
    std::vector<int> fds;
    ssize_t n = ReceiveWithFds(socket_, &message, sizeof(message), MSG_DONTWAIT, &fds);
    if (n <= 0) return;
    fds_.insert(fds_.end(), fds.begin(), fds.end());
    if (n != sizeof(message) || fds.empty()) continue;
    if (message.kind != static_cast<uint32_t>(shm::FdKind::kArena)) continue;
    void* p = mmap(nullptr, message.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (p == MAP_FAILED) continue;
    arenas_.push_back({static_cast<uint8_t*>(p), message.bytes, message.id});
  }
}

uint8_t* HandClient::At(const shm::QueuePlace& place) {
  for (Mapping& mapping : arenas_) {
    if (mapping.arena == place.arena && place.offset + place.bytes <= mapping.bytes) {
      return mapping.data + place.offset;
    }
  }
  return nullptr;
}

}  // namespace verbena::tests

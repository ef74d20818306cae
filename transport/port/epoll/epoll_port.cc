#include "transport/port/epoll/epoll_port.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace verbena::transport {
namespace {

constexpr int kEventsMax = 16;
// Calls that may bring nothing of use, one after the other: errors about earlier packets, runts.
// Who floods us with those must not hold up the rest of the NIC.
constexpr int kVainMax = 16;

}  // namespace

EpollPort::EpollPort(const UdpPortConfig& config)
    : UdpPort(config), buffer_(new std::byte[kReceiveBytesMax]) {}

EpollPort::~EpollPort() {
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

std::unique_ptr<EpollPort> EpollPort::Open(const UdpPortConfig& config, UdpPortError* error) {
  std::unique_ptr<EpollPort> port(new EpollPort(config));
  port->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (port->epoll_fd_ < 0) {
    *error = {.kind = UdpPortErrorKind::kSystem,
              .error = errno,
              .port = config.port,
              .text = std::string("no epoll descriptor could be had: ") + strerror(errno)};
    return nullptr;
  }
  if (!port->OpenSockets(error)) return nullptr;
  return port;
}

int EpollPort::OnSocketOpened(size_t index) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = index;
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, endpoints()[index].fd, &event) == 0 ? 0 : errno;
}

void EpollPort::OnSocketClosing(size_t index) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, endpoints()[index].fd, nullptr);
}

void EpollPort::WaitForRoom(size_t endpoint, bool wait) {
  if (blocked()[endpoint] == wait) return;
  SetBlocked(endpoint, wait);
  epoll_event event{};
  event.events = EPOLLIN | (wait ? static_cast<uint32_t>(EPOLLOUT) : 0);
  event.data.u64 = endpoint;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, endpoints()[endpoint].fd, &event);
}

void EpollPort::OnBatchesReady() {
  while (SendBatch* batch = TakeReady()) {
    const size_t endpoint = batch->endpoint;
    switch (Transmit(batch)) {
      case Progress::kDone:
        break;
      case Progress::kBlocked:
        WaitForRoom(endpoint, true);
        break;
      case Progress::kLater:
        return;
    }
  }
}

void EpollPort::Flush(Instant now) {
  collector().CloseAll();
  OnBatchesReady();
}

bool EpollPort::Receive(Instant now, InPacket* out) {
  for (int vain = 0; vain < kVainMax; ++vain) {
    if (TakePacket(&datagram_, out)) return true;
    // The socket that gave the last datagram is the likeliest to have the next: one system call.
    if (ReceiveFrom(last_endpoint_)) continue;
    while (!readable_.empty()) {
      const size_t endpoint = readable_.back();
      if (ReceiveFrom(endpoint)) break;
      readable_.pop_back();
    }
    if (!datagram_.empty()) continue;
    // With one socket its own answer was all there is to know, unless some wait for room.
    const bool one = endpoints().size() == 1 && !blocked()[0];
    if (one || !LookForReady()) return false;
  }
  return false;
}

bool EpollPort::ReceiveFrom(size_t index) {
  if (endpoints()[index].fd < 0) return false;
  for (int vain = 0; vain < kVainMax; ++vain) {
    SocketAddress from;
    iovec part{buffer_.get(), kReceiveBytesMax};
    alignas(cmsghdr) std::array<char, kReceiveControlBytes> control;
    msghdr message{};
    message.msg_name = from.get();
    message.msg_namelen = sizeof from.storage;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(endpoints()[index].fd, &message, MSG_DONTWAIT);
    if (got >= 0) {
      last_endpoint_ = index;
      BeginDatagram(message, buffer_.get(), static_cast<size_t>(got), index, &datagram_);
      if (!datagram_.empty()) return true;
      continue;  // no bytes at all
    }
    // EAGAIN: nothing more. EINTR, ECONNREFUSED and the like: about something else. ENOMEM,
    // ENOBUFS: the datagram stays where it is, for the next call.
    if (errno == EAGAIN || errno == ENOMEM || errno == ENOBUFS) return false;
  }
  return false;
}

bool EpollPort::LookForReady() {
  std::array<epoll_event, kEventsMax> events;
  const int count = epoll_wait(epoll_fd_, events.data(), kEventsMax, 0);
  bool room = false;
  for (int i = 0; i < count; ++i) {
    const size_t endpoint = events[i].data.u64;
    if ((events[i].events & EPOLLOUT) != 0) {
      WaitForRoom(endpoint, false);
      room = true;
    }
    if ((events[i].events & (EPOLLIN | EPOLLERR)) != 0) readable_.push_back(endpoint);
  }
  if (room) OnBatchesReady();
  return !readable_.empty();
}

bool EpollPort::PrepareToSleep() {
  OnBatchesReady();
  if (!datagram_.empty() || !readable_.empty()) return false;
  // What the kernel had no memory for is tried once a turn; there is no event to wait for.
  return !collector().HasReady(blocked());
}

}  // namespace verbena::transport

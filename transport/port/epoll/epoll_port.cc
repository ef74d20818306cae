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
// Datagrams taken with one call, once one call after the other found some. Two tell whether more
// wait: the call that would find nothing is saved. Not more: a large one is 56 KB, whose copy and
// acknowledgement the peer waits for.
constexpr size_t kDatagrams = 2;
// Calls to one busy socket before the others get a look.
constexpr uint32_t kStreakMax = 16;
// Calls that may bring nothing of use, one after the other: errors about earlier packets, runts.
// Who floods us with those must not hold up the rest of the NIC.
constexpr int kVainMax = 16;
// A socket that gave this often since the NIC slept is asked in every turn and watched by nobody
// until it sleeps again: who watches makes the kernel call him for every datagram that comes, and
// for every one that has left, 5 % of a round trip. A NIC that sleeps between messages is spared
// the two calls to epoll_ctl.
constexpr uint32_t kAwakeCalls = 64;

}  // namespace

struct EpollPort::Incoming {
  Incoming() : buffers(new std::byte[kDatagrams * kReceiveBytesMax]) {
    for (size_t i = 0; i < kDatagrams; ++i) {
      parts[i] = {buffers.get() + i * kReceiveBytesMax, kReceiveBytesMax};
      msghdr& message = messages[i].msg_hdr;
      message.msg_name = names[i].get();
      message.msg_iov = &parts[i];
      message.msg_iovlen = 1;
      message.msg_control = controls[i].bytes;
    }
    Reset();
  }
  // As recvmmsg.
  int TakeOne(int fd) {
    const ssize_t got = recvmsg(fd, &messages[0].msg_hdr, MSG_DONTWAIT);
    if (got < 0) return -1;
    messages[0].msg_len = static_cast<unsigned>(got);
    return 1;
  }
  // The kernel wrote over these of the messages it used.
  void Reset() {
    for (size_t i = 0; i < used; ++i) {
      messages[i].msg_hdr.msg_namelen = sizeof names[i].storage;
      messages[i].msg_hdr.msg_controllen = kReceiveControlBytes;
    }
  }

  struct Control {
    alignas(cmsghdr) char bytes[kReceiveControlBytes];
  };
  std::unique_ptr<std::byte[]> buffers;
  std::array<SocketAddress, kDatagrams> names;
  std::array<iovec, kDatagrams> parts;
  std::array<Control, kDatagrams> controls;
  std::array<mmsghdr, kDatagrams> messages{};
  size_t count = 0;
  size_t next = 0;
  size_t used = kDatagrams;
};

EpollPort::EpollPort(const UdpPortConfig& config) : UdpPort(config), incoming_(new Incoming) {}

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

int EpollPort::OnSocketOpened(size_t index) { return Watch(index, EPOLL_CTL_ADD); }

int EpollPort::Watch(size_t endpoint, int operation) {
  epoll_event event{};
  event.events = EPOLLIN | (blocked()[endpoint] ? static_cast<uint32_t>(EPOLLOUT) : 0);
  event.data.u64 = endpoint;
  return epoll_ctl(epoll_fd_, operation, endpoints()[endpoint].fd, &event) == 0 ? 0 : errno;
}

void EpollPort::OnSocketClosing(size_t index) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, endpoints()[index].fd, nullptr);
  if (unwatched_ == index) unwatched_.reset();
  if (last_endpoint_ != index) return;
  incoming_->count = incoming_->next = 0;
  datagram_ = {};
}

void EpollPort::OnDatagrams(size_t endpoint) {
  if (endpoint != last_endpoint_) {
    WatchAll();
    since_sleep_ = 0;
    last_endpoint_ = endpoint;
  }
  if (unwatched_ || ++since_sleep_ < kAwakeCalls || blocked()[endpoint]) return;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, endpoints()[endpoint].fd, nullptr) == 0) {
    unwatched_ = endpoint;
  }
}

int EpollPort::WatchAll() {
  if (!unwatched_) return 0;
  // What has come meanwhile counts: epoll looks when it is told.
  const int error = Watch(*unwatched_, EPOLL_CTL_ADD);
  if (error == 0) unwatched_.reset();
  return error;
}

void EpollPort::WaitForRoom(size_t endpoint, bool wait) {
  if (blocked()[endpoint] == wait) return;
  SetBlocked(endpoint, wait);
  if (unwatched_ == endpoint) {
    WatchAll();
  } else {
    Watch(endpoint, EPOLL_CTL_MOD);
  }
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
  if (collector().IsEmpty()) return;
  collector().CloseAll();
  OnBatchesReady();
}

bool EpollPort::Receive(Instant now, InPacket* out) {
  Incoming& in = *incoming_;
  for (int vain = 0; vain < kVainMax; ++vain) {
    if (TakePacket(&datagram_, out)) return true;
    if (in.next < in.count) {
      const mmsghdr& message = in.messages[in.next];
      BeginDatagram(message.msg_hdr, in.buffers.get() + in.next * kReceiveBytesMax, message.msg_len,
                    last_endpoint_, &datagram_);
      ++in.next;
      continue;
    }
    if (drained_) {
      drained_ = false;
      return false;
    }
    // With one socket its own answer is all there is to know, unless it waits for room.
    const bool alone = endpoints().size() == 1 && !blocked()[0];
    // The socket that gave the last datagram is the likeliest to have the next: one system call.
    const bool asks_last = alone || streak_ < kStreakMax;
    if (asks_last && ReceiveFrom(last_endpoint_)) continue;
    while (!readable_.empty() && !ReceiveFrom(readable_.back())) readable_.pop_back();
    if (in.next < in.count) continue;
    // The last one may be unwatched: nobody but itself says that it has nothing.
    if (alone || (!LookForReady() && asks_last)) return false;
  }
  return false;
}

bool EpollPort::ReceiveFrom(size_t endpoint) {
  const int fd = endpoints()[endpoint].fd;
  if (fd < 0) return false;
  Incoming& in = *incoming_;
  for (int vain = 0; vain < kVainMax; ++vain) {
    in.Reset();
    // After a pause a datagram is alone as a rule; what may wait behind it is found in the next
    // turn, when this one's answer is out.
    const int got = is_crowded_
                        ? recvmmsg(fd, in.messages.data(), kDatagrams, MSG_DONTWAIT, nullptr)
                        : in.TakeOne(fd);
    is_crowded_ = got == (is_crowded_ ? static_cast<int>(kDatagrams) : 1);
    if (got > 0) {
      in.count = in.used = static_cast<size_t>(got);
      in.next = 0;
      drained_ = in.count < kDatagrams;
      OnDatagrams(endpoint);
      ++streak_;
      return true;
    }
    const int error = errno;
    if (error == EAGAIN) return false;  // nothing more
    if (error == EINTR) continue;
    const PortError kind = KindOfReceiveError(error);
    CountError(kind, error);
    // The datagram stays where it is, for the next call. Else it was about something else.
    if (kind == PortError::kNoReceiveMemory) return false;
  }
  return false;
}

bool EpollPort::LookForReady() {
  std::array<epoll_event, kEventsMax> events;
  const int count = epoll_wait(epoll_fd_, events.data(), kEventsMax, 0);
  bool room = false;
  streak_ = 0;
  if (unwatched_ && *unwatched_ != last_endpoint_) WatchAll();  // once more: it could not be
  readable_.clear();
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
  if (!datagram_.empty() || incoming_->next < incoming_->count || !readable_.empty()) return false;
  since_sleep_ = 0;
  if (WatchAll() != 0) return false;  // nobody would wake the caller
  // What the kernel had no memory for is tried once a turn; there is no event to wait for.
  return !collector().HasReady(blocked());
}

}  // namespace verbena::transport

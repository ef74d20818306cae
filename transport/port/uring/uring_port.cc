#include "transport/port/uring/uring_port.h"

#include <liburing.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

namespace verbena::transport {
namespace {

// All buffers and all batches may complete, and receives end, between two calls.
constexpr unsigned kCqEntries = 512;
// A power of two. Each holds the largest datagram; few, so that a stream stays in the cache.
constexpr unsigned kBuffers = 32;
constexpr unsigned kBufferGroup = 0;
// Name and ancillary data lie before the payload. 32: room for sockaddr_in6, keeps both aligned.
constexpr size_t kNameBytes = 32;
constexpr size_t kBufferBytes =
    sizeof(io_uring_recvmsg_out) + kNameBytes + kReceiveControlBytes + kReceiveBytesMax;
// Prepared batches that are submitted without waiting for Flush: the peer may begin with them.
constexpr uint32_t kSendsPerSubmission = 4;
// Completions copied out of the ring at a time.
constexpr unsigned kReapMax = 32;
// Calls that may bring nothing of use, one after the other; see EpollPort.
constexpr int kVainMax = 16;
// Receives that end in errors, one after the other, before the port lets its caller sleep over it.
constexpr uint32_t kFailuresMax = 16;
constexpr int kSubmitTriesMax = 16;

// user_data: kind; which socket of those that had the endpoint's place; which receive of that
// socket; endpoint or batch. Both numbers wrap: nothing is under way for that long.
enum class Request : uint8_t { kReceive = 1, kSend, kRoom, kCancel };
constexpr uint64_t UserData(Request kind, uint8_t socket, uint16_t turn, uint32_t index) {
  return uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{socket} << 48 |
         uint64_t{turn} << 32 | index;
}
constexpr uint8_t SocketOf(uint64_t user_data) { return static_cast<uint8_t>(user_data >> 48); }
constexpr uint16_t TurnOf(uint64_t user_data) { return static_cast<uint16_t>(user_data >> 32); }

// Its address tells threads apart, without a system call.
thread_local char t_this_thread;

UdpPortError NoUring(int error) {
  std::string why;
  switch (error) {
    case ENOSYS:
      why = "this kernel has no io_uring";
      break;
    case EPERM:
    case EACCES:
      why =
          "io_uring is refused here (a container's seccomp filter, or the sysctl "
          "kernel.io_uring_disabled)";
      break;
    case EINVAL:
      why = "io_uring of this kernel lacks multishot receive (Linux 6.0) or buffer rings (5.19)";
      break;
    case ENOMEM:
      why = "io_uring got no memory (RLIMIT_MEMLOCK, or the cgroup's limit)";
      break;
    default:
      why = std::string("io_uring can't be used: ") + strerror(error);
  }
  return {.kind = UdpPortErrorKind::kNoUring, .error = error, .text = why};
}

}  // namespace

struct UringPort::Ring {
  ~Ring() {
    if (opened) io_uring_queue_exit(&ring);
    if (buffer_ring != nullptr) munmap(buffer_ring, BufferRingBytes());
  }
  static constexpr size_t BufferRingBytes() { return kBuffers * sizeof(io_uring_buf); }
  std::byte* Buffer(uint16_t index) { return buffers.get() + index * kBufferBytes; }

  io_uring ring{};
  bool opened = false;
  io_uring_buf_ring* buffer_ring = nullptr;
  std::unique_ptr<std::byte[]> buffers;
  // The last send prepared since the last submission, to chain the next one of its socket to.
  io_uring_sqe* last_send = nullptr;
  uint32_t last_send_endpoint = 0;
};

struct UringPort::Receiver {
  uint8_t socket = 0;
  uint16_t turn = 0;  // of the current receive
  bool armed = false;
  msghdr message{};

  uint64_t UserDataAt(size_t endpoint) const {
    return UserData(Request::kReceive, socket, turn, static_cast<uint32_t>(endpoint));
  }
};

UringPort::UringPort(const UdpPortConfig& config) : UdpPort(config), ring_(new Ring) {}

UringPort::~UringPort() {
  if (!ring_->opened) return;
  // Requests hold their sockets: gone first, the addresses are free when this returns.
  Submit();
  CancelAll();
  // Those of a thread that has ended are cancelled by its end, and complete in a worker's time.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (holding_ > 0 && std::chrono::steady_clock::now() < end) {
    __kernel_timespec most{.tv_sec = 0, .tv_nsec = 100'000'000};
    io_uring_cqe* cqe = nullptr;
    io_uring_wait_cqe_timeout(&ring_->ring, &cqe, &most);
    while (Reap()) {
    }
  }
  // A completion is told before its socket is let go of, both under the lock that this call takes.
  CancelAll();
}

void UringPort::CancelAll() {
  io_uring_sync_cancel_reg all{};
  all.fd = -1;
  all.flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
  all.timeout.tv_sec = 1;
  io_uring_register_sync_cancel(&ring_->ring, &all);
  io_uring_get_events(&ring_->ring);
}

std::unique_ptr<UringPort> UringPort::Open(const UdpPortConfig& config, UdpPortError* error) {
  std::unique_ptr<UringPort> port(new UringPort(config));
  if (!port->OpenRing(error) || !port->OpenSockets(error)) return nullptr;
  return port;
}

bool UringPort::OpenRing(UdpPortError* error) {
  io_uring_params params{};
  params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG;
  params.cq_entries = kCqEntries;
  // Not SINGLE_ISSUER, and so not DEFER_TASKRUN: see TakeOver.
  if (int failed = io_uring_queue_init_params(config().submission_entries, &ring_->ring, &params);
      failed != 0) {
    *error = NoUring(-failed);
    return false;
  }
  ring_->opened = true;
  io_uring_ring_dontfork(&ring_->ring);

  void* memory = mmap(nullptr, Ring::BufferRingBytes(), PROT_READ | PROT_WRITE,
                      MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
  if (memory == MAP_FAILED) {
    *error = NoUring(errno);
    return false;
  }
  ring_->buffer_ring = static_cast<io_uring_buf_ring*>(memory);
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<uintptr_t>(memory);
  registration.ring_entries = kBuffers;
  registration.bgid = kBufferGroup;
  if (int failed = io_uring_register_buf_ring(&ring_->ring, &registration, 0); failed != 0) {
    *error = NoUring(-failed);
    return false;
  }
  io_uring_buf_ring_init(ring_->buffer_ring);
  ring_->buffers.reset(new std::byte[kBuffers * kBufferBytes]);
  for (uint16_t i = 0; i < kBuffers; ++i) ReturnBuffer(i);
  if (int failed = ProbeReceive(); failed != 0) {
    *error = NoUring(failed);
    return false;
  }
  return true;
}

int UringPort::ProbeReceive() {
  // A socket bound to nothing has nothing to receive: the request waits, if the kernel knows it.
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  io_uring* ring = &ring_->ring;
  msghdr message{};
  message.msg_namelen = kNameBytes;
  message.msg_controllen = kReceiveControlBytes;
  const uint64_t user_data = UserData(Request::kReceive, 0, 0, 0);
  io_uring_sqe* sqe = io_uring_get_sqe(ring);
  io_uring_prep_recvmsg_multishot(sqe, fd, &message, 0);
  sqe->flags |= IOSQE_BUFFER_SELECT;
  sqe->buf_group = kBufferGroup;
  io_uring_sqe_set_data64(sqe, user_data);
  sqe = io_uring_get_sqe(ring);
  io_uring_prep_cancel64(sqe, user_data, 0);
  io_uring_sqe_set_data64(sqe, UserData(Request::kCancel, 0, 0, 0));
  int error = 0;
  for (int left = 2; left > 0 && error == 0;) {
    // Both answer at once, with an error or because of the cancellation.
    const int failed = io_uring_submit_and_wait(ring, 1);
    if (failed < 0 && failed != -EINTR) error = -failed;
    io_uring_cqe* cqe = nullptr;
    while (error == 0 && left > 0 && io_uring_peek_cqe(ring, &cqe) == 0) {
      const bool receive = cqe->user_data == user_data;
      if (receive && cqe->res != -ECANCELED && cqe->res < 0) error = -cqe->res;
      io_uring_cqe_seen(ring, cqe);
      --left;
    }
  }
  close(fd);
  return error;
}

int UringPort::poll_fd() const { return ring_->ring.ring_fd; }

int UringPort::OnSocketOpened(size_t index) {
  if (receivers_.size() <= index) receivers_.resize(index + 1);
  if (receivers_[index] == nullptr) receivers_[index] = std::make_unique<Receiver>();
  Receiver& receiver = *receivers_[index];
  ++receiver.socket;
  receiver.armed = false;
  receiver.message = {};
  receiver.message.msg_namelen = kNameBytes;
  receiver.message.msg_controllen = kReceiveControlBytes;
  // Armed by the next call, which is the driving thread's; whoever opens the port may be another.
  unarmed_ = true;
  return 0;
}

void UringPort::OnSocketClosing(size_t index) {
  Receiver& receiver = *receivers_[index];
  if (receiver.armed) Cancel(receiver.UserDataAt(index));
  receiver.armed = false;
  ++receiver.socket;
  Submit();
}

void UringPort::Attend() {
  if (thread_ != &t_this_thread) TakeOver();
  // With most buffers waiting to be looked at, a receive would only end again.
  if (unarmed_ && arrivals_.size() < kBuffers / 2) ArmAll();
}

void UringPort::TakeOver() {
  // What the other thread submitted completes in that thread, if it ever runs again. Cancelled, and
  // submitted anew here; should both receive for a moment, both are listened to.
  for (size_t i = 0; i < endpoints().size(); ++i) {
    Receiver& receiver = *receivers_[i];
    if (endpoints()[i].fd < 0) continue;
    if (receiver.armed) Cancel(receiver.UserDataAt(i));
    receiver.armed = false;
    if (blocked()[i]) WaitForRoom(i);
  }
  unarmed_ = true;
  thread_ = &t_this_thread;
}

void UringPort::ArmAll() {
  unarmed_ = false;
  for (size_t i = 0; i < endpoints().size(); ++i) {
    if (endpoints()[i].fd >= 0 && !receivers_[i]->armed && !Arm(i)) unarmed_ = true;
  }
  Submit();
}

bool UringPort::Arm(size_t endpoint) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  if (sqe == nullptr) return false;
  Receiver& receiver = *receivers_[endpoint];
  ++receiver.turn;
  receiver.armed = true;
  io_uring_prep_recvmsg_multishot(sqe, endpoints()[endpoint].fd, &receiver.message, 0);
  sqe->flags |= IOSQE_BUFFER_SELECT;
  sqe->buf_group = kBufferGroup;
  io_uring_sqe_set_data64(sqe, receiver.UserDataAt(endpoint));
  ring_->last_send = nullptr;
  ++unsubmitted_;
  ++holding_;
  return true;
}

void UringPort::Cancel(uint64_t user_data) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  if (sqe == nullptr) {
    Submit();
    sqe = io_uring_get_sqe(&ring_->ring);
    // Then the receive goes on, and is listened to, until its socket goes.
    if (sqe == nullptr) return;
  }
  io_uring_prep_cancel64(sqe, user_data, 0);
  io_uring_sqe_set_data64(sqe, UserData(Request::kCancel, 0, 0, 0));
  ring_->last_send = nullptr;
  ++unsubmitted_;
}

void UringPort::WaitForRoom(size_t endpoint) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  // Without a place in the queue it is not blocked, and the next turn tries the socket again.
  SetBlocked(endpoint, sqe != nullptr);
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, endpoints()[endpoint].fd, POLLOUT);
  io_uring_sqe_set_data64(sqe, UserData(Request::kRoom, 0, 0, static_cast<uint32_t>(endpoint)));
  ring_->last_send = nullptr;
  ++unsubmitted_;
  ++holding_;
}

void UringPort::OnBatchesReady() {
  is_later_ = false;
  while (SendBatch* batch = TakeReady()) {
    // What comes later to a socket is not submitted before it is known that the earlier was sent:
    // it might find the room that the earlier did not.
    const bool full =
        sends_under_way_ >= kSendsPerSubmission || io_uring_sq_space_left(&ring_->ring) == 0;
    if (full || (batch->one_by_one && sends_under_way_ > 0)) {
      collector().PutBack(batch);
      Submit();
      if (sends_under_way_ > 0 || unsubmitted_ > 0 || is_later_) return;  // EAGAIN, EBUSY; ENOBUFS
      continue;
    }
    if (!batch->one_by_one) {
      Prepare(batch);
      continue;
    }
    const uint32_t endpoint = batch->endpoint;
    const Progress progress = Transmit(batch);
    if (progress == Progress::kBlocked) WaitForRoom(endpoint);
    if (progress == Progress::kLater) return;
  }
}

void UringPort::Prepare(SendBatch* batch) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  batch->PrepareWhole(HopLimitToTell(endpoints()[batch->endpoint], batch->address));
  // With DONTWAIT it completes while it is submitted, in whichever thread that is. A chain, so that
  // no batch overtakes one that found no room.
  if (ring_->last_send != nullptr && ring_->last_send_endpoint == batch->endpoint) {
    ring_->last_send->flags |= IOSQE_IO_LINK;
  }
  io_uring_prep_sendmsg(sqe, endpoints()[batch->endpoint].fd, &batch->message,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
  io_uring_sqe_set_data64(sqe, UserData(Request::kSend, 0, 0, batch->index));
  ring_->last_send = sqe;
  ring_->last_send_endpoint = batch->endpoint;
  ++unsubmitted_;
  ++sends_under_way_;
}

void UringPort::Submit() {
  if (unsubmitted_ == 0) return;
  int submitted = 0;
  for (int tries = 0; tries < kSubmitTriesMax; ++tries) {
    submitted = config().refuse_submission ? config().refuse_submission() : 0;
    if (submitted == 0) submitted = io_uring_submit(&ring_->ring);
    if (submitted >= 0) {
      ring_->last_send = nullptr;
      unsubmitted_ = io_uring_sq_ready(&ring_->ring);
      // Sends have completed by now. Taken out here: their order depends on it, and they don't make
      // poll_fd readable.
      while (sends_under_way_ > 0 && Reap()) {
      }
      return;
    }
    // EBUSY: completions that did not fit wait to be taken.
    if (submitted == -EINTR || (submitted == -EBUSY && Reap())) continue;
    break;
  }
  // EAGAIN: the kernel's memory is short. It all stays queued, and the next call tries again.
  CountError(PortError::kSubmissionRefused, -submitted);
}

void UringPort::Flush(Instant now) {
  if (thread_ != &t_this_thread) TakeOver();
  collector().CloseAll();
  SendBatch* only = sends_under_way_ == 0 ? TakeReady() : nullptr;
  if (only != nullptr && !collector().HasReady(blocked())) {
    // A submission of one costs more than the system call that it stands for.
    const uint32_t endpoint = only->endpoint;
    if (Transmit(only) == Progress::kBlocked) WaitForRoom(endpoint);
  } else if (only != nullptr) {
    collector().PutBack(only);
  }
  uint64_t cancelled = 0;
  do {
    cancelled = sends_cancelled_;
    OnBatchesReady();
    Submit();
    // Each time round, the batch at the head of a chain is done with, or its socket blocked.
  } while (cancelled != sends_cancelled_ && !is_later_);
}

bool UringPort::Reap() {
  std::array<io_uring_cqe*, kReapMax> found;
  // Enters the kernel only if the ring is empty and says that there is work to do, or completions
  // that did not fit.
  const unsigned count = io_uring_peek_batch_cqe(&ring_->ring, found.data(), found.size());
  if (count == 0) return false;
  struct Completion {
    uint64_t user_data;
    int result;
    uint32_t flags;
  };
  // Copied first: handling one may submit, and so add more.
  std::array<Completion, kReapMax> completions;
  for (unsigned i = 0; i < count; ++i) {
    completions[i] = {found[i]->user_data, found[i]->res, found[i]->flags};
  }
  io_uring_cq_advance(&ring_->ring, count);
  for (unsigned i = 0; i < count; ++i) {
    OnCompletion(completions[i].user_data, completions[i].result, completions[i].flags);
  }
  return true;
}

void UringPort::OnCompletion(uint64_t user_data, int result, uint32_t flags) {
  const auto index = static_cast<uint32_t>(user_data);
  switch (static_cast<Request>(user_data >> 56)) {
    case Request::kReceive:
      if ((flags & IORING_CQE_F_MORE) == 0) --holding_;
      OnReceived(index, user_data, result, flags);
      break;
    case Request::kSend: {
      --sends_under_way_;
      SendBatch* batch = collector().at(index);
      const uint32_t endpoint = batch->endpoint;
      if (result == -ECANCELED) {
        ++sends_cancelled_;
        collector().PutBack(batch);
        break;
      }
      const Progress progress = OnSent(batch, result < 0 ? -result : 0);
      if (progress == Progress::kBlocked && !blocked()[endpoint]) WaitForRoom(endpoint);
      if (progress == Progress::kLater) is_later_ = true;
      break;
    }
    case Request::kRoom:
      --holding_;
      // ECANCELED: the thread that waited is gone. Trying tells.
      SetBlocked(index, false);
      break;
    case Request::kCancel:  // ENOENT, EALREADY: it ended by itself
      break;
  }
}

void UringPort::OnReceived(uint32_t endpoint, uint64_t user_data, int result, uint32_t flags) {
  Receiver& receiver = *receivers_[endpoint];
  const bool ours = endpoints()[endpoint].fd >= 0 && SocketOf(user_data) == receiver.socket;
  if ((flags & IORING_CQE_F_BUFFER) != 0) {
    const auto buffer = static_cast<uint16_t>(flags >> IORING_CQE_BUFFER_SHIFT);
    if (result >= 0 && ours) {
      failures_in_a_row_ = 0;
      arrivals_.push_back({endpoint, receiver.socket, buffer, static_cast<uint32_t>(result)});
    } else {
      ReturnBuffer(buffer);
    }
  }
  if ((flags & IORING_CQE_F_MORE) != 0 || !ours) return;
  if (result == -ENOBUFS) {
    CountError(PortError::kNoReceiveBuffer, ENOBUFS);
  } else if (result < 0 && result != -ECANCELED && result != -EINTR) {
    // Arming it anew goes on.
    CountError(KindOfReceiveError(-result), -result);
    ++failures_in_a_row_;
  }
  // An earlier one ended, after TakeOver: the current one goes on.
  if (TurnOf(user_data) != receiver.turn) return;
  receiver.armed = false;
  unarmed_ = true;
}

void UringPort::BeginArrival() {
  const Arrival arrival = arrivals_.front();
  arrivals_.pop_front();
  held_buffer_ = arrival.buffer;
  Receiver& receiver = *receivers_[arrival.endpoint];
  io_uring_recvmsg_out* got = io_uring_recvmsg_validate(
      ring_->Buffer(arrival.buffer), static_cast<int>(arrival.length), &receiver.message);
  const bool same_socket = arrival.socket == receiver.socket;
  if (got == nullptr || !same_socket || endpoints()[arrival.endpoint].fd < 0) return;
  msghdr message{};
  message.msg_name = io_uring_recvmsg_name(got);
  message.msg_namelen = got->namelen;
  message.msg_control = static_cast<std::byte*>(message.msg_name) + kNameBytes;
  message.msg_controllen = got->controllen;
  const auto* payload =
      static_cast<const std::byte*>(io_uring_recvmsg_payload(got, &receiver.message));
  BeginDatagram(
      message, payload,
      io_uring_recvmsg_payload_length(got, static_cast<int>(arrival.length), &receiver.message),
      arrival.endpoint, &datagram_);
}

void UringPort::ReturnBuffer(uint16_t buffer) {
  io_uring_buf_ring_add(ring_->buffer_ring, ring_->Buffer(buffer), kBufferBytes, buffer,
                        io_uring_buf_ring_mask(kBuffers), 0);
  io_uring_buf_ring_advance(ring_->buffer_ring, 1);
}

bool UringPort::Receive(Instant now, InPacket* out) {
  Attend();
  for (int vain = 0; vain < kVainMax; ++vain) {
    if (TakePacket(&datagram_, out)) return true;
    if (held_buffer_ >= 0) {
      ReturnBuffer(static_cast<uint16_t>(held_buffer_));
      held_buffer_ = -1;
    }
    if (arrivals_.empty()) {
      if (!Reap()) {
        // A socket may have room again, or the kernel memory for what it refused.
        if (collector().HasReady(blocked()) || unsubmitted_ > 0) {
          OnBatchesReady();
          Submit();
        }
        return false;
      }
      if (arrivals_.empty()) continue;
    }
    BeginArrival();
  }
  return false;
}

bool UringPort::PrepareToSleep() {
  Attend();
  OnBatchesReady();
  Submit();
  while (Reap()) {
  }
  if (!datagram_.empty() || !arrivals_.empty()) return false;
  if (collector().HasReady(blocked()) || unsubmitted_ > 0) return false;
  return !unarmed_ || failures_in_a_row_ >= kFailuresMax;
}

}  // namespace verbena::transport

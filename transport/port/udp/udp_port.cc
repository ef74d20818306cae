#include "transport/port/udp/udp_port.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/clock/monotonic_clock.h"

namespace verbena::transport {
namespace {

// Batches of one port, open, waiting, or with the kernel: 2 MB at most, touched as used.
constexpr uint32_t kBatches = 32;
// Tries of a batch when the kernel is short of memory, and when errors of earlier packets come
// back.
constexpr uint32_t kRetriesMax = 16;
// A route may change to an interface that takes batches; so they are tried again after this many.
constexpr uint32_t kOneByOnePackets = 1 << 16;

}  // namespace

UdpPort::UdpPort(const UdpPortConfig& config) : config_(config), collector_(kBatches) {}

UdpPort::~UdpPort() {
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.fd >= 0) close(endpoint.fd);
  }
}

bool UdpPort::OpenSockets(UdpPortError* error) {
  if (config_.addresses.empty()) {
    *error = {.kind = UdpPortErrorKind::kBadConfig,
              .error = EINVAL,
              .port = config_.port,
              .text = "a NIC on the network needs an address"};
    return false;
  }
  for (const UdpAddress& address : config_.addresses) {
    Endpoint endpoint;
    if (!OpenEndpoint(address, config_, &endpoint, error)) return false;
    endpoints_.push_back(endpoint);
    blocked_.push_back(false);
    if (int failed = OnSocketOpened(endpoints_.size() - 1); failed != 0) {
      *error = {.kind = UdpPortErrorKind::kSystem,
                .error = failed,
                .address = address,
                .port = config_.port,
                .text = std::string("the socket of ") + TextOf(address) +
                        " could not be waited for: " + strerror(failed)};
      return false;
    }
  }
  return true;
}

uint32_t UdpPort::receive_buffer_bytes() const {
  uint32_t least = 0;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.fd < 0) continue;
    if (least == 0 || endpoint.receive_buffer_bytes < least) least = endpoint.receive_buffer_bytes;
  }
  return least;
}

void UdpPort::WantGrh(bool is_wanted) {
  if (std::exchange(wants_grh_, is_wanted) == is_wanted) return;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.fd >= 0) AskForGrh(endpoint, is_wanted);
  }
}

int UdpPort::JoinGroup(const Gid& group) {
  if (!IsGroup(group)) return EINVAL;
  const Endpoint* via = nullptr;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.fd < 0) continue;
    if (endpoint.bound == group) return 0;
    if (via == nullptr && !endpoint.IsForGroup() && endpoint.ipv4 == group.IsIpv4Mapped()) {
      via = &endpoint;
    }
  }
  if (via == nullptr) return EADDRNOTAVAIL;
  const UdpAddress address = via->address;
  auto place = std::find_if(endpoints_.begin(), endpoints_.end(),
                            [](const Endpoint& endpoint) { return endpoint.fd < 0; });
  const auto index = static_cast<size_t>(place - endpoints_.begin());
  if (place == endpoints_.end()) {
    endpoints_.emplace_back();
    blocked_.push_back(false);
  }
  return ListenTo(group, address, index);
}

int UdpPort::ListenTo(const Gid& group, const UdpAddress& via, size_t index) {
  Endpoint opened;
  if (int error = OpenGroupEndpoint(via, group, config_, &opened); error != 0) return error;
  if (!wants_grh_) AskForGrh(opened, false);
  CloseEndpoint(index);
  endpoints_[index] = opened;
  const int error = OnSocketOpened(index);
  if (error != 0) {
    close(opened.fd);
    endpoints_[index].fd = -1;
  }
  return error;
}

void UdpPort::CloseEndpoint(size_t index) {
  if (endpoints_[index].fd < 0) return;
  OnSocketClosing(index);
  close(endpoints_[index].fd);
  endpoints_[index].fd = -1;
}

void UdpPort::FollowInterface(const UdpAddress& address) {
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    Endpoint& endpoint = endpoints_[i];
    if (endpoint.fd < 0 || endpoint.address.gid != address.gid ||
        endpoint.address.interface_index == address.interface_index) {
      continue;
    }
    if (endpoint.IsForGroup()) {
      // A new socket, as IPv6 binds one to its interface. If it can't be had, the old one tells the
      // next call that there is something to do.
      ListenTo(endpoint.bound, address, i);
    } else {
      endpoint.address.interface_index = address.interface_index;
      SetMulticastInterface(endpoint);
    }
  }
}

void UdpPort::LeaveGroup(const Gid& group) {
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (endpoints_[i].IsForGroup() && endpoints_[i].bound == group) CloseEndpoint(i);
  }
}

bool UdpPort::Send(Instant now, const OutPacket& packet) {
  size_t from = 0;
  while (from < endpoints_.size() &&
         (endpoints_[from].fd < 0 || endpoints_[from].bound != packet.address.source)) {
    ++from;
  }
  if (from == endpoints_.size() || packet.length + wire::kIcrcBytes > wire::kPacketBytesMax ||
      endpoints_[from].ipv4 != packet.address.IsIpv4()) {
    const bool too_long =
        from < endpoints_.size() && endpoints_[from].ipv4 == packet.address.IsIpv4();
    Lose(too_long ? EMSGSIZE : EADDRNOTAVAIL, 1);
    return packet.GiveBack();
  }
  wire::PacketAddress address = packet.address;
  address.source_port = config_.port;
  const bool one_by_one = !one_by_one_.empty() && GoesOneByOne(address.destination);
  const auto endpoint = static_cast<uint16_t>(from);
  if (!collector_.Add(endpoint, endpoints_[from], address, packet, one_by_one)) {
    OnBatchesReady();
    if (!collector_.Add(endpoint, endpoints_[from], address, packet, one_by_one)) return false;
  }
  if (collector_.HasReady(blocked_)) OnBatchesReady();
  return true;
}

int UdpPort::SendMessage(int fd, const msghdr* message) const {
  if (config_.send_message) return config_.send_message(fd, message);
  return sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

UdpPort::Progress UdpPort::Transmit(SendBatch* batch) {
  if (batch->one_by_one) return TransmitOneByOne(batch);
  Endpoint& from = endpoints_[batch->endpoint];
  batch->PrepareWhole(FollowHopLimit(batch->address, &from));
  const int error = SendMessage(from.fd, &batch->message);
  return OnSent(batch, error);
}

UdpPort::Progress UdpPort::OnSent(SendBatch* batch, int error) {
  ++counters_.sent_batches;
  switch (ClassifySendError(error, batch->segment_count > 1)) {
    case SendOutcome::kSent:
      counters_.sent_packets += batch->segment_count;
      counters_.sent_bytes += batch->used_bytes;
      break;
    case SendOutcome::kAgain:
    case SendOutcome::kNoMemory:
      if (batch->retries++ < kRetriesMax) {
        collector_.PutBack(batch);
        return Progress::kLater;
      }
      Lose(error, batch->segment_count);
      break;
    case SendOutcome::kNoRoom:
      collector_.PutBack(batch);
      return Progress::kBlocked;
    case SendOutcome::kOneByOne:
      CountError(PortError::kBatchRefused, error);
      batch->BecomeOneByOne();
      return TransmitOneByOne(batch);
    case SendOutcome::kLost:
      Lose(error, batch->segment_count);
      break;
  }
  collector_.Release(batch);
  return Progress::kDone;
}

UdpPort::Progress UdpPort::TransmitOneByOne(SendBatch* batch) {
  bool all_sent = true;
  while (batch->next_segment < batch->segment_count) {
    const uint32_t length = batch->SegmentLength(batch->next_segment);
    Endpoint& from = endpoints_[batch->endpoint];
    batch->PrepareSegment(batch->next_segment, FollowHopLimit(batch->address, &from));
    const int error = SendMessage(from.fd, &batch->message);
    ++counters_.sent_batches;
    switch (ClassifySendError(error, false)) {
      case SendOutcome::kSent:
        ++counters_.sent_packets;
        counters_.sent_bytes += length;
        break;
      case SendOutcome::kAgain:
      case SendOutcome::kNoMemory:
        if (batch->retries++ < kRetriesMax) {
          collector_.PutBack(batch);
          return Progress::kLater;
        }
        Lose(error, 1);
        all_sent = false;
        break;
      case SendOutcome::kNoRoom:
        collector_.PutBack(batch);
        return Progress::kBlocked;
      case SendOutcome::kOneByOne:
      case SendOutcome::kLost:
        Lose(error, 1);
        all_sent = false;
        break;
    }
    ++batch->next_segment;
  }
  // Only if it helped: segments longer than the MTU fail either way.
  if (all_sent && batch->segment_count > 1) RememberOneByOne(batch->address.destination);
  collector_.Release(batch);
  return Progress::kDone;
}

void UdpPort::Lose(int error, uint64_t packets) {
  counters_.send_errors += packets;
  CountError(KindOfSendError(error), error, packets);
}

void UdpPort::CountError(PortError kind, int error, uint64_t count) {
  uint64_t& counter = counters_.errors[kind];
  const bool is_first = counter == 0;
  counter += count;
  if (is_first && on_first_error_) on_first_error_(kind, error);
}

bool UdpPort::GoesOneByOne(const Gid& destination) {
  for (size_t i = 0; i < one_by_one_.size(); ++i) {
    if (one_by_one_[i].gid != destination) continue;
    if (--one_by_one_[i].packets_left > 0) return true;
    one_by_one_.erase(one_by_one_.begin() + static_cast<ptrdiff_t>(i));
    return false;
  }
  return false;
}

void UdpPort::RememberOneByOne(const Gid& destination) {
  for (const OneByOne& known : one_by_one_) {
    if (known.gid == destination) return;
  }
  // The oldest is found out again if it still matters.
  if (one_by_one_.size() == kOneByOneMax) one_by_one_.erase(one_by_one_.begin());
  one_by_one_.push_back({destination, kOneByOnePackets});
}

void UdpPort::BeginDatagram(const msghdr& message, const std::byte* bytes, size_t length,
                            size_t endpoint, ReceivedDatagram* out) {
  ++counters_.received_batches;
  out->Begin(message, bytes, length, config_.port, &endpoints_[endpoint], &hints_,
             &counters_.receive_drops);
  received_at_ = ReadMonotonicClock();
  if (length == 0) ++runts_;
}

bool UdpPort::TakePacket(ReceivedDatagram* datagram, InPacket* out) {
  while (datagram->Next(&hints_, out)) {
    if (out->length < wire::kBthBytes + wire::kIcrcBytes) {
      ++runts_;
      continue;
    }
    ++counters_.received_packets;
    counters_.received_bytes += out->length;
    out->received_at = received_at_;
    out->more_follow = datagram->next_bytes() >= wire::kBthBytes + wire::kIcrcBytes;
    return true;
  }
  return false;
}

}  // namespace verbena::transport

#include "transport/port/udp/received_datagram.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "transport/port/udp/send_batch.h"
#include "transport/port/udp/udp_options.h"

namespace verbena::transport {
namespace {

template <typename T>
T ValueOf(const cmsghdr* item) {
  T value{};
  if (item->cmsg_len >= CMSG_LEN(sizeof value)) memcpy(&value, CMSG_DATA(item), sizeof value);
  return value;
}

}  // namespace

void IpIdHints::Begin(const Gid& gid, uint16_t port) {
  Remember();
  uint64_t low;
  memcpy(&low, gid.raw.data() + 8, sizeof low);
  const uint64_t hash = (low + port) * 0x9e37'79b9'7f4a'7c15u;
  Peer* peer = &peers_[hash >> 32 & (kPeers - 1)];
  if (peer->gid != gid || peer->port != port) *peer = {.gid = gid, .port = port};
  peer_ = peer;
  next_ = peer->running ? peer->next : 0;
}

void IpIdHints::Remember() {
  if (peer_ != nullptr) peer_->next = next_;
}

void IpIdHints::Learn(uint16_t ip_id) {
  next_ = static_cast<uint16_t>(ip_id + 1);
  if (peer_ != nullptr) peer_->running = ip_id >= kBatchSegmentsMax;
}

void ReceivedDatagram::Begin(const msghdr& message, const std::byte* bytes, size_t length,
                             uint16_t port, Endpoint* endpoint, IpIdHints* hints, uint64_t* drops) {
  bytes_ = bytes;
  length_ = length;
  offset_ = 0;
  segment_bytes_ = length;
  address_ = {};
  address_.destination = endpoint->bound;
  address_.destination_port = port;
  if (message.msg_name == nullptr ||
      !ReadSocketAddress(static_cast<const sockaddr*>(message.msg_name), &address_.source,
                         &address_.source_port)) {
    length_ = 0;
    return;
  }
  msghdr walk = message;  // CMSG_NXTHDR takes no const one
  for (cmsghdr* item = CMSG_FIRSTHDR(&walk); item != nullptr; item = CMSG_NXTHDR(&walk, item)) {
    const int level = item->cmsg_level;
    const int type = item->cmsg_type;
    if (level == SOL_UDP && type == UDP_GRO) {
      const int merged = ValueOf<int>(item);
      if (merged > 0) segment_bytes_ = static_cast<size_t>(merged);
    } else if (level == SOL_SOCKET && type == SO_RXQ_OVFL) {
      const auto total = ValueOf<uint32_t>(item);
      *drops += static_cast<uint32_t>(total - endpoint->kernel_drops);
      endpoint->kernel_drops = total;
    } else if (level == IPPROTO_IP && type == IP_TOS) {
      address_.traffic_class = ValueOf<uint8_t>(item);
    } else if (level == IPPROTO_IP && type == IP_TTL) {
      address_.hop_limit = static_cast<uint8_t>(ValueOf<int>(item));
    } else if (level == IPPROTO_IPV6 && type == IPV6_TCLASS) {
      address_.traffic_class = static_cast<uint8_t>(ValueOf<int>(item));
    } else if (level == IPPROTO_IPV6 && type == IPV6_HOPLIMIT) {
      address_.hop_limit = static_cast<uint8_t>(ValueOf<int>(item));
    } else if (level == IPPROTO_IPV6 && type == IPV6_FLOWINFO) {
      address_.flow_label = ntohl(ValueOf<uint32_t>(item)) & 0xf'ffff;
    }
  }
  hints->Begin(address_.source, address_.source_port);
}

bool ReceivedDatagram::Next(IpIdHints* hints, InPacket* out) {
  if (empty()) return false;
  const size_t length = std::min(segment_bytes_, length_ - offset_);
  *out = {.address = address_,
          .bytes = bytes_ + offset_,
          .length = static_cast<uint32_t>(length),
          .expected_ip_id = hints->Next()};
  offset_ += length;
  return true;
}

}  // namespace verbena::transport

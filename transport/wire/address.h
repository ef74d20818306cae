// What IP and UDP say about a RoCEv2 packet.
#pragma once

#include <cstdint>

#include "core/base/types.h"

namespace verbena::transport::wire {

// UDP destination port of RoCEv2.  Spec: IBTA A17.4.3.
inline constexpr uint16_t kRoceUdpPort = 4791;

struct PacketAddress {
  Gid source;  // IPv4 addresses in their IPv4-mapped form
  Gid destination;
  uint16_t source_port = kRoceUdpPort;
  uint16_t destination_port = kRoceUdpPort;
  uint8_t traffic_class = 0;  // IPv4: TOS
  uint8_t hop_limit = 64;     // IPv4: TTL
  uint32_t flow_label = 0;    // IPv6 only

  bool IsIpv4() const { return destination.IsIpv4Mapped(); }
};

}  // namespace verbena::transport::wire

// Real ports of this machine for tests: free UDP ports, packets, waiting without sleeping.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/port/udp/udp_port.h"
#include "transport/wire/icrc.h"

namespace verbena::transport {

inline Gid V4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return Gid::FromIpv4(uint32_t{a} << 24 | uint32_t{b} << 16 | uint32_t{c} << 8 | d);
}

inline Gid V6Loopback() {
  Gid gid;
  gid.raw[15] = 1;
  return gid;
}

// `length` bytes with something of `seed` in all of them; long enough for a BTH.
inline std::vector<std::byte> MakePacket(uint32_t length, uint32_t seed) {
  std::vector<std::byte> bytes(length);
  uint32_t state = seed * 2'654'435'761u + 1;
  for (std::byte& byte : bytes) {
    state = state * 1'664'525u + 1'013'904'223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

struct Received {
  wire::PacketAddress address;
  std::vector<std::byte> bytes;  // without the ICRC
  wire::IcrcCheck check = wire::IcrcCheck::kWrong;
  uint16_t expected_ip_id = 0;
  uint16_t ip_id = 0;
};

// Long enough for any machine; only a broken port waits it out.
inline constexpr int kPatienceMs = 20'000;

// What the port has, or nothing after `patience_ms` of waiting for its descriptor.
inline bool ReceiveOne(PacketPort* port, Received* out, int patience_ms = kPatienceMs) {
  InPacket packet;
  for (;;) {
    if (port->Receive({}, &packet)) {
      *out = {.address = packet.address,
              .bytes = {packet.bytes, packet.bytes + packet.length - wire::kIcrcBytes},
              .check = wire::IcrcCheck::kWrong,
              .expected_ip_id = packet.expected_ip_id};
      out->check = wire::VerifyIcrc(packet.address, packet.expected_ip_id, packet.bytes,
                                    packet.length, &out->ip_id);
      if (out->check == wire::IcrcCheck::kSolved) port->LearnIpId(packet, out->ip_id);
      return true;
    }
    if (!port->PrepareToSleep()) continue;
    pollfd wait{.fd = port->poll_fd(), .events = POLLIN, .revents = 0};
    const int ready = poll(&wait, 1, patience_ms);
    if (ready == 0) return false;
  }
}

// What the port has; looks again and again, and does not sleep.
inline bool ReceiveAwake(PacketPort* port, InPacket* out) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!port->Receive({}, out)) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

// What the port has, up to now.
inline int ReceiveAll(PacketPort* port) {
  int count = 0;
  for (InPacket packet; port->Receive({}, &packet);) ++count;
  return count;
}

inline bool IsReadable(PacketPort* port, int patience_ms) {
  pollfd wait{.fd = port->poll_fd(), .events = POLLIN, .revents = 0};
  return poll(&wait, 1, patience_ms) == 1;
}

}  // namespace verbena::transport

// Opens a NIC's port on a real network.
#pragma once

#include <memory>

#include "transport/port/udp/udp_port.h"

namespace verbena::transport {

// What drives the sockets (docs/adr/0011).
enum class NetIo : uint8_t {
  kEpoll,
  kUring,
};

// nullptr: `error` says why.
std::unique_ptr<UdpPort> OpenUdpPort(const UdpPortConfig& config, NetIo net_io,
                                     UdpPortError* error);

}  // namespace verbena::transport

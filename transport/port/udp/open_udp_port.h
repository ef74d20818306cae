// Opens a NIC's port on a real network, in the best way this system allows.
#pragma once

#include <memory>

#include "transport/port/udp/udp_port.h"

namespace verbena::transport {

enum class PortPreference : uint8_t {
  kAuto,  // io_uring, or epoll where that is refused
  kUring,
  kEpoll,
};

// nullptr: `error` says why. Else name() tells which kind it became; with kAuto `error` keeps why
// it is not io_uring (kNoUring), or kNone.
std::unique_ptr<UdpPort> OpenUdpPort(const UdpPortConfig& config, PortPreference preference,
                                     UdpPortError* error);

}  // namespace verbena::transport

#include "transport/port/udp/open_udp_port.h"

#include "transport/port/epoll/epoll_port.h"
#include "transport/port/uring/uring_port.h"

namespace verbena::transport {

std::unique_ptr<UdpPort> OpenUdpPort(const UdpPortConfig& config, NetIo net_io,
                                     UdpPortError* error) {
  *error = {};
  if (net_io == NetIo::kUring) return UringPort::Open(config, error);
  return EpollPort::Open(config, error);
}

}  // namespace verbena::transport

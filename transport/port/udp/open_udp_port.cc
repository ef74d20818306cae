#include "transport/port/udp/open_udp_port.h"

#include "transport/port/epoll/epoll_port.h"
#include "transport/port/uring/uring_port.h"

namespace verbena::transport {

std::unique_ptr<UdpPort> OpenUdpPort(const UdpPortConfig& config, PortPreference preference,
                                     UdpPortError* error) {
  *error = {};
  if (preference != PortPreference::kEpoll) {
    auto port = UringPort::Open(config, error);
    if (port != nullptr || preference == PortPreference::kUring ||
        error->kind != UdpPortErrorKind::kNoUring) {
      return port;
    }
  }
  UdpPortError epoll_error;
  auto port = EpollPort::Open(config, &epoll_error);
  if (port == nullptr) *error = epoll_error;
  return port;
}

}  // namespace verbena::transport

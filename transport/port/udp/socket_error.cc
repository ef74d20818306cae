#include "transport/port/udp/socket_error.h"

#include <cerrno>

namespace verbena::transport {

SendOutcome ClassifySendError(int error, bool batch) {
  switch (error) {
    case 0:
      return SendOutcome::kSent;
    case EINTR:
    case ECONNREFUSED:  // ICMP about an earlier packet, told once; this one was not tried
      return SendOutcome::kAgain;
    case EAGAIN:  // SO_SNDBUF is full
      return SendOutcome::kNoRoom;
    case ENOBUFS:  // also a full queueing discipline
    case ENOMEM:
      return SendOutcome::kNoMemory;
    case EIO:         // IPsec on the way, or no checksum offload (before Linux 6.11)
    case EINVAL:      // no UDP_SEGMENT in this kernel; segments longer than the MTU (before 6.8)
    case EMSGSIZE:    // segments longer than the MTU, or just this many
    case EOPNOTSUPP:  // a socket that is not quite a kernel's
    case ENOPROTOOPT:
      return batch ? SendOutcome::kOneByOne : SendOutcome::kLost;
    default:
      // ENETUNREACH, EHOSTUNREACH, EHOSTDOWN, ENETDOWN, EPERM, EACCES, EADDRNOTAVAIL, ENODEV...
      return SendOutcome::kLost;
  }
}

PortError KindOfSendError(int error) {
  switch (error) {
    case EMSGSIZE:
      return PortError::kTooLong;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
      return PortError::kUnreachable;
    case EPERM:
    case EACCES:
      return PortError::kForbidden;
    case ECONNREFUSED:
      return PortError::kRefused;
    case EADDRNOTAVAIL:
    case EINVAL:
    case ENODEV:
    case ENXIO:  // IPv6: no interface of that scope
      return PortError::kNoSource;
    case ENOBUFS:
    case ENOMEM:
      return PortError::kNoSendMemory;
    default:  // EIO, EOPNOTSUPP, ENOPROTOOPT; EINTR, time and again
      return PortError::kOtherSend;
  }
}

PortError KindOfReceiveError(int error) {
  switch (error) {
    // What ICMP, or the way out, says of a packet sent before. Each is told once.
    case ECONNREFUSED:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EMSGSIZE:
    case EPROTO:
    case ENOPROTOOPT:
    case EACCES:
    case EPERM:
    case EOPNOTSUPP:
      return PortError::kAboutSent;
    case ENOMEM:
    case ENOBUFS:
      return PortError::kNoReceiveMemory;
    default:
      return PortError::kOtherReceive;
  }
}

}  // namespace verbena::transport

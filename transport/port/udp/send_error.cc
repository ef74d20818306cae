#include "transport/port/udp/send_error.h"

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
      // ENETUNREACH, EHOSTUNREACH, ENETDOWN, EPERM, EACCES, EADDRNOTAVAIL, ENODEV...
      return SendOutcome::kLost;
  }
}

void CountSendError(int error, uint64_t packets, SendErrorCounters* counters) {
  switch (error) {
    case EMSGSIZE:
      counters->too_long += packets;
      break;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
      counters->unreachable += packets;
      break;
    case EPERM:
    case EACCES:
      counters->forbidden += packets;
      break;
    case ECONNREFUSED:
      counters->refused += packets;
      break;
    case EADDRNOTAVAIL:
    case EINVAL:
    case ENODEV:
      counters->no_source += packets;
      break;
    case ENOBUFS:
    case ENOMEM:
      counters->no_memory += packets;
      break;
    default:
      counters->other += packets;
  }
}

}  // namespace verbena::transport

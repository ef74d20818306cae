// What an error of sendmsg means for the packets it was about.
#pragma once

#include <cstdint>

namespace verbena::transport {

enum class SendOutcome : uint8_t {
  kSent,
  kAgain,     // nothing to do with this packet: call again at once, a limited number of times
  kNoRoom,    // the socket's send buffer is full: keep, and wait until it is writable
  kNoMemory,  // the kernel's memory is short: keep, try again a limited number of times
  kOneByOne,  // a batch was refused that may do packet by packet
  kLost,      // as if lost on the wire
};

// `error`: errno of sendmsg, positive, or 0; `batch`: more than one segment.
SendOutcome ClassifySendError(int error, bool batch);

// Packets lost by what the kernel said about them; for the operator.
struct SendErrorCounters {
  uint64_t too_long = 0;     // EMSGSIZE: larger than the interface's or the path's MTU
  uint64_t unreachable = 0;  // ENETUNREACH, EHOSTUNREACH, ENETDOWN: no route, no neighbour
  uint64_t forbidden = 0;    // EPERM, EACCES: a firewall; a broadcast address
  uint64_t refused = 0;      // ECONNREFUSED, time and again: ICMP says nobody listens there
  uint64_t no_source = 0;    // EADDRNOTAVAIL, EINVAL, ENODEV: our address or interface is gone
  uint64_t no_memory = 0;    // ENOBUFS, ENOMEM, and trying again did not help
  uint64_t other = 0;
  uint64_t batches_refused = 0;  // not lost: sent packet by packet instead
};
void CountSendError(int error, uint64_t packets, SendErrorCounters* counters);

}  // namespace verbena::transport

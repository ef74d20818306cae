// What an error of sendmsg or recvmsg means for the packets it was about.
#pragma once

#include <cstdint>

#include "transport/port/port_error.h"

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

// What it means that packets were lost to this errno of sendmsg.
PortError KindOfSendError(int error);
// What an errno of recvmsg means that is neither EAGAIN nor EINTR.
PortError KindOfReceiveError(int error);

}  // namespace verbena::transport

#include "transport/port/port_error.h"

#include <cstring>

namespace verbena::transport {

PortErrorText TextOf(PortError kind) {
  switch (kind) {
    case PortError::kTooLong:
      return {"tx_too_long",
              "packets larger than the MTU of the interface or the path are lost; raise the MTU "
              "there, or choose a smaller path MTU (--mtu)"};
    case PortError::kUnreachable:
      return {"tx_unreachable",
              "packets are lost, as the peer's host has no route, is down, or does not answer; "
              "`ip route get` and `ip neighbour` tell"};
    case PortError::kForbidden:
      return {"tx_forbidden",
              "packets are lost, as a firewall or a security module forbids them; UDP port 4791 "
              "has to be allowed"};
    case PortError::kRefused:
      return {"tx_refused",
              "packets are lost, as nobody listens at the peer's address; start an instance there"};
    case PortError::kNoSource:
      return {"tx_no_source",
              "packets are lost, as the NIC's address or interface is gone; `ip address` lists "
              "those there are"};
    case PortError::kNoSendMemory:
      return {"tx_no_memory",
              "packets are lost, as the kernel has no memory for them or the interface's queue is "
              "full; they are sent again after a timeout"};
    case PortError::kOtherSend:
      return {"tx_other_errors", "packets are lost"};
    case PortError::kBatchRefused:
      return {"tx_batches_refused",
              "packets to this peer go out one by one, which is slower; nothing is lost"};
    case PortError::kSubmissionRefused:
      return {"submissions_refused",
              "io_uring is short of memory or its completions wait; nothing is lost, it is tried "
              "again"};
    case PortError::kAboutSent:
      return {"rx_about_sent",
              "the network told about a packet sent earlier: the peer's host or a router refused "
              "it; nothing received is lost"};
    case PortError::kNoReceiveMemory:
      return {"rx_no_memory",
              "the kernel is short of memory; what has come waits in the socket, and is lost once "
              "that is full"};
    case PortError::kNoReceiveBuffer:
      return {"rx_buffer_shortages", ""};
    case PortError::kOtherReceive:
      return {"rx_other_errors", "receiving fails; it is tried again"};
  }
  return {"", ""};
}

std::string Describe(PortError kind, int error) {
  const PortErrorText text = TextOf(kind);
  if (text.meaning[0] == '\0') return "";
  const char* name = strerrorname_np(error);
  return (name != nullptr ? std::string(name) : std::to_string(error)) + " (" + strerror(error) +
         "): " + text.meaning + "; `verbena status` counts it as " + text.counter;
}

}  // namespace verbena::transport

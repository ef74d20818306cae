// What a network said about packets, by meaning; for the operator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::transport {

enum class PortError : uint8_t {
  // Sent in vain: as if lost on the wire.
  kTooLong,       // larger than the interface's or the path's MTU
  kUnreachable,   // no route, no neighbour
  kForbidden,     // a firewall; a broadcast address
  kRefused,       // time and again, ICMP says that nobody listens there
  kNoSource,      // our address or interface is gone
  kNoSendMemory,  // and trying again did not help
  kOtherSend,
  // Not lost.
  kBatchRefused,       // sent packet by packet instead
  kSubmissionRefused,  // io_uring: sent and received later
  kAboutSent,          // told while receiving, about a packet sent before
  kNoReceiveMemory,    // what has come waits in the socket
  kNoReceiveBuffer,    // io_uring: the same; any NIC that is busy sees it
  kOtherReceive,
};
inline constexpr size_t kPortErrors = static_cast<size_t>(PortError::kOtherReceive) + 1;

class PortErrorCounters {
 public:
  uint64_t& operator[](PortError kind) { return counts_[static_cast<size_t>(kind)]; }
  uint64_t operator[](PortError kind) const { return counts_[static_cast<size_t>(kind)]; }

 private:
  std::array<uint64_t, kPortErrors> counts_{};
};

// How `verbena status` calls the counter, and what the error means for the user; empty: nothing to
// tell, the counter is enough.
struct PortErrorText {
  const char* counter;
  const char* meaning;
};
PortErrorText TextOf(PortError kind);
// A sentence for the log: errno's name, what it means, the counter. Empty: nothing to tell.
std::string Describe(PortError kind, int error);

}  // namespace verbena::transport

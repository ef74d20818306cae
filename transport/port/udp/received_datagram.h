// One datagram as a socket gave it, possibly several packets that the kernel merged (UDP_GRO), cut
// into packets again; and guesses at the IPv4 identification of each.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "transport/port/packet_port.h"
#include "transport/port/udp/udp_socket.h"
#include "transport/wire/address.h"

namespace verbena::transport {

// Room for the ancillary data that our sockets ask for.
inline constexpr size_t kReceiveControlBytes = 160;
// Largest datagram, merged or not.
inline constexpr size_t kReceiveBytesMax = 65'536;

// Which IPv4 identification a peer's next packets probably have. A hint: VerifyIcrc finds the true
// one if it is wrong, which costs time and some of the ICRC's strength.
//
// Verbena's peers, as any socket like ours: 0, 1, 2... in what the kernel cut from one batch.
// Merged datagrams arrive so too, but one may begin in the middle of a batch. Kernel rxe: a running
// number. What was solved tells which: from there on it counts, in this datagram, and for a peer
// whose numbers are too high for a batch, in the following ones.
class IpIdHints {
 public:
  // A datagram from `peer` begins.
  void Begin(const Gid& peer, uint16_t port);
  // Its next packet's.
  uint16_t Next() { return next_++; }
  // The packet that Next() was last called for had this one.
  void Learn(uint16_t ip_id);

 private:
  struct Peer {
    Gid gid;
    uint16_t port = 0;
    bool running = false;
    uint16_t next = 0;
  };
  // More peers than this share their places, and so lose their hints: a power of two.
  static constexpr size_t kPeers = 64;

  void Remember();

  std::array<Peer, kPeers> peers_{};
  Peer* peer_ = nullptr;
  uint16_t next_ = 0;
};

class ReceivedDatagram {
 public:
  // `message`: name and ancillary data as recvmsg filled them; the payload is [bytes, bytes +
  // length). `drops` gets what SO_RXQ_OVFL says anew about the endpoint.
  void Begin(const msghdr& message, const std::byte* bytes, size_t length, uint16_t port,
             Endpoint* endpoint, IpIdHints* hints, uint64_t* drops);
  // The next packet; false: no more.
  bool Next(IpIdHints* hints, InPacket* out);
  bool empty() const { return offset_ >= length_; }
  // Of the packet that Next gives.
  size_t next_bytes() const { return empty() ? 0 : std::min(segment_bytes_, length_ - offset_); }

 private:
  const std::byte* bytes_ = nullptr;
  size_t length_ = 0;
  size_t offset_ = 0;
  size_t segment_bytes_ = 0;
  wire::PacketAddress address_;
};

}  // namespace verbena::transport

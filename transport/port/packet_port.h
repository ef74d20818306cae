// The seam between the NIC and a network: RoCEv2 packets of one NIC, without sockets or clocks.
//
// Behind it: sockets with epoll (transport/port/epoll) or io_uring (transport/port/uring), or a
// network in virtual time (transport/port/sim). Taps (transport/port/tap) are ports over another
// port: capture, faults and trace.
//
// Thread: one, the shard's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/instant.h"
#include "transport/port/port_error.h"
#include "transport/wire/address.h"
#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::transport {

// Whose memory packets lie in that a port need not copy.
class PacketLender {
 public:
  // The port is done with a packet of `block`.
  virtual void TakeBack(void* block) = 0;

 protected:
  ~PacketLender() = default;
};

struct OutPacket {
  wire::PacketAddress address;
  const std::byte* bytes = nullptr;  // BTH to pad; the port appends the ICRC, as it knows the IP ID
  uint32_t length = 0;
  // Fault tap: this bit of the finished packet (ICRC included) goes out wrong. -1: none.
  int32_t corrupt_bit = -1;
  // Lent: the bytes, and room for the ICRC behind them that the port may write to, stay as they are
  // until lender->TakeBack(block). nullptr: they are good during Send only.
  PacketLender* lender = nullptr;
  void* block = nullptr;
  // Where the CRC of the payload is known (wire::ComputeIcrc).
  wire::KnownPayload payload = {};

  // For a port that has copied the packet: gives it back. Always true, for `return`.
  bool GiveBack() const {
    if (lender != nullptr) lender->TakeBack(block);
    return true;
  }
};

struct InPacket {
  wire::PacketAddress address;       // destination_port is ours, source_port the peer's
  const std::byte* bytes = nullptr;  // BTH to ICRC; good until the next call to the port
  uint32_t length = 0;
  // The identification of its IPv4 header, where the port knows it (sim); else what peers of our
  // own kind send: its index within a GRO batch, 0 for a single one.
  uint16_t expected_ip_id = 0;
  // The next call gives a packet of the same batch, and leaves `bytes` of this one, and of those
  // before it that said so too, as they are.
  bool more_follow = false;
  // Not before it arrived: where its sender asks to wait, that begins here. A port with a clock
  // reads it when it has the packet; others go by the `now` of Receive.
  Instant received_at = {};
};

struct PortCounters {
  uint64_t sent_packets = 0;
  uint64_t sent_bytes = 0;    // UDP payload
  uint64_t sent_batches = 0;  // system calls or GSO batches
  uint64_t received_packets = 0;
  uint64_t received_bytes = 0;
  uint64_t received_batches = 0;
  uint64_t send_errors = 0;    // packets the kernel refused: as if lost on the wire
  uint64_t receive_drops = 0;  // packets the kernel dropped for want of room (SO_RXQ_OVFL)
  PortErrorCounters errors;    // all it said, by meaning
};

class PacketPort {
 public:
  virtual ~PacketPort() = default;

  // Takes the packet, which what is lent goes with; it comes back sooner or later, at the latest
  // when the port is destroyed. False: no room now; try again once Flush or Receive was called.
  // A packet that can't be sent (no route, no such source address) is counted and lost: true.
  virtual bool Send(Instant now, const OutPacket& packet) = 0;
  // Hands to the network what Send collected. Call at the end of every turn that sent.
  virtual void Flush(Instant now) = 0;
  // False: nothing more now.
  virtual bool Receive(Instant now, InPacket* out) = 0;
  // The identification that VerifyIcrc solved for the packet just received (IcrcCheck::kSolved), so
  // that the next ones of this peer get the right one to expect. Taps hand it on.
  virtual void LearnIpId(const InPacket& packet, uint16_t ip_id) {}

  // When OnTimeout is due (packets a fault tap delays); Never: not at all.
  virtual Instant PollTimeout() const { return Instant::Never(); }
  virtual void OnTimeout(Instant now) {}

  // Whether `address` of what Receive gives shall have traffic class, hop limit and flow label, as
  // a GRH does: until told otherwise. A socket's cost time.
  virtual void WantGrh(bool is_wanted) {}

  // Multicast groups whose packets Receive shall give. 0 or errno.
  virtual int JoinGroup(const Gid& group) = 0;
  virtual void LeaveGroup(const Gid& group) = 0;

  // Becomes readable (level-triggered, for epoll) when Receive may have something, or Send room
  // again, from PrepareToSleep to the next call; -1: the port has no fd (sim).
  virtual int poll_fd() const { return -1; }
  // Before the caller sleeps: false if there is something to Receive already.
  virtual bool PrepareToSleep() { return true; }
  // What its receiving sockets hold, the smallest of them, as the kernel counts it: with the
  // overhead of packets. 0: not known.
  virtual uint32_t receive_buffer_bytes() const { return 0; }
  virtual const PortCounters& counters() const = 0;
  virtual const char* name() const { return "network"; }  // "epoll", "io_uring"
};

}  // namespace verbena::transport

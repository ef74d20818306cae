// A port over another port that changes nothing: what the taps derive from.
//
// Stack them NIC → TraceTap → FaultTap → CaptureTap → port: a capture then shows what is on the
// wire, faults included, and the trace what the NIC sends and gets.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "transport/pdu.h"
#include "transport/port/packet_port.h"

namespace verbena::transport::tap {

class TapPort : public PacketPort {
 public:
  // `inner` outlives the tap.
  explicit TapPort(PacketPort* inner) : inner_(inner) {}

  bool Send(Instant now, const OutPacket& packet) override { return inner_->Send(now, packet); }
  void Flush(Instant now) override { inner_->Flush(now); }
  bool Receive(Instant now, InPacket* out) override { return inner_->Receive(now, out); }
  void LearnIpId(const InPacket& packet, uint16_t ip_id) override {
    inner_->LearnIpId(packet, ip_id);
  }
  void WantGrh(bool is_wanted) override { inner_->WantGrh(is_wanted); }
  Instant PollTimeout() const override { return inner_->PollTimeout(); }
  void OnTimeout(Instant now) override { inner_->OnTimeout(now); }
  int JoinGroup(const Gid& group) override { return inner_->JoinGroup(group); }
  void LeaveGroup(const Gid& group) override { inner_->LeaveGroup(group); }
  int poll_fd() const override { return inner_->poll_fd(); }
  bool PrepareToSleep() override { return inner_->PrepareToSleep(); }
  uint32_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  const PortCounters& counters() const override { return inner_->counters(); }
  const char* name() const override { return inner_->name(); }

 protected:
  PacketPort* inner() const { return inner_; }
  void SetInner(PacketPort* inner) { inner_ = inner; }

 private:
  PacketPort* inner_;
};

// Says whose a packet is, e.g. "ib_write_bw (pid 812) QP 0x11 → 10.0.0.2 QP 0x12".
using PacketComment =
    std::function<std::string(const wire::PacketAddress&, const Pdu&, bool is_sent)>;

// What a fault tap tells the tap below it, so that a capture says what was done to a packet.
class FaultNotes {
 public:
  virtual ~FaultNotes() = default;
  // An outgoing packet that the tap keeps from the wire for good.
  virtual void OnDropped(Instant now, const OutPacket& packet, std::string_view note) = 0;
  // About the packet of the next Send.
  virtual void NoteNextSent(std::string_view note) = 0;
  // About the packet that the last Receive gave. Call before the next call to the port.
  virtual void NoteLastReceived(std::string_view note) = 0;
};

}  // namespace verbena::transport::tap

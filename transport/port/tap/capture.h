// Captures what NICs send and receive to pcapng. docs/capture.md says what stands in the file.
//
// Thread: the shard's, capture and taps alike; one capture serves the taps of all NICs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/instant.h"
#include "transport/port/tap/pcapng.h"
#include "transport/port/tap/recording.h"
#include "transport/port/tap/tap_port.h"

namespace verbena::transport::tap {

class Capture final : public Recording {
 public:
  Capture(CaptureSink* sink, RecordingOptions options, std::string_view application = "Verbena");
  ~Capture() { Finish(); }

  // Its number for the calls below. `comment` of its packets; none: no comment.
  uint32_t AddInterface(std::string_view name, PacketComment comment);
  // `note` is what a fault tap says of the packet; empty: nothing.
  void OnSent(Instant now, uint32_t interface, const OutPacket& packet, std::string_view note);
  void OnReceived(uint32_t interface, const InPacket& packet, std::string_view note);

 private:
  const std::byte* data() const override { return buffer_.data(); }
  uint32_t size() const override { return buffer_.size(); }
  bool HasRoom() const override { return buffer_.HasRoom(); }
  void Take(uint32_t count) override { buffer_.Take(count); }
  uint32_t TornBytes() const override { return buffer_.TornBytes(); }
  bool TakesPacket(uint32_t length);
  void Record(Instant now, PacketRecord record, uint32_t length, const std::byte* payload,
              std::string_view note, std::string_view icrc_note);

  std::vector<PacketComment> comments_;  // by interface
  PcapngBuffer buffer_;
  std::string text_;  // the packet's comment; keeps its memory
};

// Records every packet that passes. Directly over the NIC's port, below a fault tap, whose
// FaultNotes it is: the file then has what is on the wire, and outgoing packets that were dropped
// before it. Holds no packets of its own, so that it can be put in and taken out between turns.
class CaptureTap : public TapPort, public FaultNotes {
 public:
  // `capture` outlives the tap.
  CaptureTap(PacketPort* inner, Capture* capture, std::string_view nic, PacketComment comment);
  ~CaptureTap() override { WritePending(); }

  bool Send(Instant now, const OutPacket& packet) override;
  void Flush(Instant now) override;
  bool Receive(Instant now, InPacket* out) override;
  // The file has the packets' IP headers, whatever the NIC needs.
  void WantGrh(bool) override { inner()->WantGrh(true); }
  Instant PollTimeout() const override;
  void OnTimeout(Instant now) override;
  bool PrepareToSleep() override;

  void OnDropped(Instant now, const OutPacket& packet, std::string_view note) override;
  void NoteNextSent(std::string_view note) override { sent_note_ = note; }
  void NoteLastReceived(std::string_view note) override { received_note_ = note; }

 private:
  void WritePending();

  Capture* capture_;
  uint32_t interface_;
  std::vector<std::byte> sent_;  // a copy of the packet in hand
  // The packet that Receive gave last, written at the next call: until then its bytes are good, and
  // a fault tap may have said something about it.
  bool has_pending_ = false;
  InPacket pending_;
  std::string sent_note_;
  std::string received_note_;
};

}  // namespace verbena::transport::tap

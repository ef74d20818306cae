// Captures what NICs send and receive to pcapng. docs/capture.md says what stands in the file.
//
// Thread: the shard's, capture and taps alike; one capture serves the taps of all NICs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/instant.h"
#include "transport/port/tap/capture_sink.h"
#include "transport/port/tap/pcapng.h"
#include "transport/port/tap/tap_port.h"

namespace verbena::transport::tap {

// Says whose a packet is, e.g. "ib_write_bw (pid 812) QP 0x11 → 10.0.0.2 QP 0x12".
using PacketComment =
    std::function<std::string(const wire::PacketAddress&, const Pdu&, bool is_sent)>;

struct CaptureOptions {
  std::string application = "Verbena";
  uint64_t limit_bytes = 0;  // of the file; 0: none
  Duration wall_offset{0};  // wall-clock time since 1970 minus the Instants the port is called with
  Duration flush_after = Milliseconds(200);  // a packet waits so long at most for its block to fill
  uint32_t buffer_bytes = 1u << 20;
};

class Capture {
 public:
  enum class State : uint8_t {
    kRunning,
    kLimitReached,
    kFinished,
    kFailed,  // error() says why
  };

  // `sink` outlives the capture.
  Capture(CaptureSink* sink, CaptureOptions options, PacketComment comment);
  ~Capture() { Finish(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Its number for the calls below.
  uint32_t AddInterface(std::string_view name, std::string_view description = {});
  // `note` is what a fault tap says of the packet; empty: nothing.
  void OnSent(Instant now, uint32_t interface, const OutPacket& packet, std::string_view note);
  void OnReceived(Instant now, uint32_t interface, const InPacket& packet, std::string_view note);

  Instant PollTimeout() const { return flush_due_; }
  void OnTimeout(Instant now);
  // Writes what it can without waiting, and ends.
  void Finish();

  State state() const { return state_; }
  const std::string& error() const { return error_; }
  uint64_t packets() const { return packets_; }
  // Packets not in the file, because its reader was too slow.
  uint64_t missed_packets() const { return missed_packets_; }
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  bool TakeRoom(uint32_t length);
  void Record(Instant now, PacketRecord record, uint32_t length, const std::byte* payload,
              std::string_view note, std::string_view icrc_note);
  void Write();
  void Fail(int error);

  CaptureSink* sink_;
  CaptureOptions options_;
  PacketComment comment_;
  PcapngBuffer buffer_;
  State state_ = State::kRunning;
  std::string error_;
  std::string text_;  // the packet's comment; keeps its memory
  Instant flush_due_ = Instant::Never();
  uint32_t interfaces_ = 0;
  uint64_t packets_ = 0;
  uint64_t missed_packets_ = 0;
  uint64_t missed_since_ = 0;
  uint64_t accepted_bytes_ = 0;  // given to the buffer
  uint64_t written_bytes_ = 0;
};

// Records every packet that passes. Directly over the NIC's port, below a fault tap, whose
// FaultNotes it is: the file then has what is on the wire, and outgoing packets that were dropped
// before it. Holds no packets of its own, so that it can be put in and taken out between turns.
class CaptureTap : public TapPort, public FaultNotes {
 public:
  // `capture` outlives the tap.
  CaptureTap(PacketPort* inner, Capture* capture, std::string_view nic);
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
  Instant pending_at_;
  std::string sent_note_;
  std::string received_note_;
};

}  // namespace verbena::transport::tap

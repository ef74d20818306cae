// One line per packet, for people who watch a run. docs/capture.md says what stands in it.
//
// Thread: the shard's, trace and taps alike; one trace serves the taps of all NICs.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "transport/port/tap/recording.h"
#include "transport/port/tap/tap_port.h"

namespace verbena::transport::tap {

class Trace final : public Recording {
 public:
  Trace(CaptureSink* sink, RecordingOptions options) : Recording(sink, "trace", options) {}
  ~Trace() { Finish(); }

  void Add(Instant now, std::string_view line);

 private:
  const std::byte* data() const override {
    return reinterpret_cast<const std::byte*>(text_.data()) + taken_;
  }
  uint32_t size() const override { return static_cast<uint32_t>(text_.size()) - taken_; }
  bool HasRoom() const override { return text_.size() < options_.buffer_bytes; }
  void Take(uint32_t count) override;
  uint32_t TornBytes() const override { return torn_; }

  std::string text_;
  uint32_t taken_ = 0;  // bytes at the front of text_ that are written
  uint32_t torn_ = 0;   // bytes written since the last line's end
};

// Over a fault tap: the lines tell what the NIC sends and gets.
class TraceTap : public TapPort {
 public:
  // `trace` outlives the tap. Without `comment` lines don't say whose a packet is.
  TraceTap(PacketPort* inner, Trace* trace, std::string_view nic, PacketComment comment)
      : TapPort(inner), trace_(trace), nic_(nic), comment_(std::move(comment)) {}

  bool Send(Instant now, const OutPacket& packet) override;
  bool Receive(Instant now, InPacket* out) override;
  Instant PollTimeout() const override;
  void OnTimeout(Instant now) override;

 private:
  void Print(Instant now, const wire::PacketAddress& address, const std::byte* bytes,
             uint32_t length, bool is_sent);

  Trace* trace_;
  std::string nic_;
  PacketComment comment_;
  std::string text_;  // the line; keeps its memory
  std::array<std::byte, wire::kPacketBytesMax> decode_room_{};
};

}  // namespace verbena::transport::tap

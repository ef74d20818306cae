#include "transport/port/tap/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/wire/icrc.h"

namespace verbena::transport::tap {
Capture::Capture(CaptureSink* sink, RecordingOptions options, std::string_view application)
    : Recording(sink, "capture", options), buffer_(options.buffer_bytes) {
  buffer_.AddSectionHeader(application);
  CountAccepted(buffer_.size());
}

uint32_t Capture::AddInterface(std::string_view name, PacketComment comment) {
  if (state() == State::kRunning) {
    // Its number is its place in the file: it may not get lost as packets may, however slow the
    // reader. Interfaces are few and small, the buffer's memory grows if it has to.
    const uint32_t before = buffer_.size();
    buffer_.AddInterface(name, {});
    CountAccepted(buffer_.size() - before);
  }
  comments_.push_back(std::move(comment));
  return static_cast<uint32_t>(comments_.size() - 1);
}

// False: this packet is not captured.
bool Capture::TakesPacket(uint32_t length) {
  if (!TakeRoom(length + kPacketOverheadBytesMax)) return false;
  if (length <= kUdpPayloadBytesMax) return true;
  Miss();
  return false;
}

void Capture::OnSent(Instant now, uint32_t interface, const OutPacket& packet,
                     std::string_view note) {
  const uint32_t length = packet.length + wire::kIcrcBytes;
  if (!TakesPacket(length)) return;
  std::byte* payload = buffer_.PacketRoom(packet.address, length);
  std::memcpy(payload, packet.bytes, packet.length);
  wire::StoreIcrc(wire::ComputeIcrc(packet.address, 0, payload, packet.length),
                  payload + packet.length);
  if (packet.corrupt_bit >= 0) {
    const auto bit = static_cast<uint32_t>(packet.corrupt_bit);
    if (bit / 8 < length) payload[bit / 8] ^= std::byte{1} << bit % 8;
  }
  PacketRecord record;
  record.address = packet.address;
  record.interface = interface;
  record.is_sent = true;
  Record(now, record, length, payload, note, {});
}

void Capture::OnReceived(uint32_t interface, const InPacket& packet, std::string_view note) {
  if (!TakesPacket(packet.length)) return;
  std::byte* payload = buffer_.PacketRoom(packet.address, packet.length);
  if (packet.length != 0) std::memcpy(payload, packet.bytes, packet.length);
  PacketRecord record;
  record.address = packet.address;
  record.interface = interface;
  record.ip_id = packet.expected_ip_id;
  std::string_view icrc_note;
  if (packet.length < wire::kIcrcBytes) {
    icrc_note = "too short for an ICRC";
  } else {
    uint16_t solved = 0;
    switch (
        wire::VerifyIcrc(packet.address, packet.expected_ip_id, payload, packet.length, &solved)) {
      case wire::IcrcCheck::kExact:
        break;
      case wire::IcrcCheck::kSolved:
        record.ip_id = solved;
        break;
      case wire::IcrcCheck::kWrong:
        icrc_note = "received with a wrong ICRC";
        break;
    }
  }
  Record(packet.received_at, record, packet.length, payload, note, icrc_note);
}

void Capture::Record(Instant now, PacketRecord record, uint32_t length, const std::byte* payload,
                     std::string_view note, std::string_view icrc_note) {
  text_.clear();
  Pdu pdu;
  const wire::DecodeError wrong = wire::Decode(payload, length, &pdu);
  if (wrong != wire::DecodeError::kNone) {
    text_.append("not decoded: ").append(wire::NameOf(wrong));
  } else if (const PacketComment& comment = comments_[record.interface]) {
    text_ = comment(record.address, pdu, record.is_sent);
  }
  for (std::string_view more : {icrc_note, note}) {
    if (more.empty()) continue;
    // What was done to a packet is not what may be cut off.
    if (text_.size() + more.size() + 2 > kCommentBytesMax) {
      text_.resize(kCommentBytesMax - std::min<size_t>(more.size() + 2, kCommentBytesMax));
    }
    text_.append(text_.empty() ? "" : "; ").append(more);
  }
  record.comment = text_;
  record.wall_ns = static_cast<uint64_t>((now + options_.wall_offset).ns);
  record.missed = TakeMissed();
  OnAdded(now, buffer_.AddPacket(record, length));
}

CaptureTap::CaptureTap(PacketPort* inner, Capture* capture, std::string_view nic,
                       PacketComment comment)
    : TapPort(inner),
      capture_(capture),
      interface_(capture->AddInterface(nic, std::move(comment))) {}

void CaptureTap::WritePending() {
  if (!std::exchange(has_pending_, false)) return;
  capture_->OnReceived(interface_, pending_, received_note_);
  received_note_.clear();
}

bool CaptureTap::Send(Instant now, const OutPacket& packet) {
  WritePending();
  sent_.assign(packet.bytes, packet.bytes + packet.length);  // before it is out of hand
  OutPacket copy = packet;
  copy.bytes = sent_.data();
  const bool is_sent = inner()->Send(now, packet);
  if (is_sent) capture_->OnSent(now, interface_, copy, sent_note_);
  sent_note_.clear();  // offered again, it comes with its note again
  return is_sent;
}

void CaptureTap::OnDropped(Instant now, const OutPacket& packet, std::string_view note) {
  WritePending();
  capture_->OnSent(now, interface_, packet, note);
}

void CaptureTap::Flush(Instant now) {
  WritePending();
  inner()->Flush(now);
}

bool CaptureTap::Receive(Instant now, InPacket* out) {
  WritePending();
  if (!inner()->Receive(now, out)) return false;
  has_pending_ = true;
  pending_ = *out;
  return true;
}

Instant CaptureTap::PollTimeout() const {
  return std::min(inner()->PollTimeout(), capture_->PollTimeout());
}

void CaptureTap::OnTimeout(Instant now) {
  WritePending();
  inner()->OnTimeout(now);
  capture_->OnTimeout(now);
}

bool CaptureTap::PrepareToSleep() {
  WritePending();
  return inner()->PrepareToSleep();
}

}  // namespace verbena::transport::tap

#include "transport/port/tap/capture.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/wire/icrc.h"

namespace verbena::transport::tap {
namespace {

// From so many bytes on it is worth a system call.
constexpr uint32_t kBlockBytes = 256u << 10;

std::string ErrorText(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "the disk is full; free some space, or capture with a size limit";
    case EFBIG:
      return "the file reached the size this process may write (ulimit -f)";
    case EPIPE:
      return "whoever read it has closed the pipe";
    default:
      return std::strerror(error);
  }
}

}  // namespace

Capture::Capture(CaptureSink* sink, CaptureOptions options, PacketComment comment)
    : sink_(sink),
      options_(std::move(options)),
      comment_(std::move(comment)),
      buffer_(options_.buffer_bytes) {
  buffer_.AddSectionHeader(options_.application);
  accepted_bytes_ = buffer_.size();
}

uint32_t Capture::AddInterface(std::string_view name, std::string_view description) {
  if (state_ == State::kRunning) {
    // Its number is its place in the file: it may not get lost as packets may, however slow the
    // reader. Interfaces are few and small, the buffer's memory grows if it has to.
    const uint32_t before = buffer_.size();
    buffer_.AddInterface(name, description);
    accepted_bytes_ += buffer_.size() - before;
  }
  return interfaces_++;
}

void Capture::Fail(int error) {
  state_ = State::kFailed;
  flush_due_ = Instant::Never();
  error_ = "capture stopped after " + std::to_string(packets_) + " packets: " + ErrorText(error);
  sink_->Unwrite(buffer_.TornBytes());
}

void Capture::Write() {
  while (buffer_.size() > 0) {
    const int64_t count = sink_->Write(buffer_.data(), buffer_.size());
    if (count < 0) return Fail(static_cast<int>(-count));
    written_bytes_ += static_cast<uint64_t>(count);
    buffer_.Take(static_cast<uint32_t>(count));
    if (count == 0) return;
  }
  flush_due_ = Instant::Never();
}

void Capture::OnTimeout(Instant now) {
  if (now < flush_due_) return;
  Write();
  // A slow reader is asked again then.
  if (state_ != State::kFailed && buffer_.size() > 0) flush_due_ = now + options_.flush_after;
}

void Capture::Finish() {
  if (state_ == State::kRunning) state_ = State::kFinished;
  if (state_ != State::kFailed) Write();
  flush_due_ = Instant::Never();
}

// False: this packet is not captured.
bool Capture::TakeRoom(uint32_t length) {
  if (state_ != State::kRunning) return false;
  if (options_.limit_bytes != 0 &&
      accepted_bytes_ + length + kPacketOverheadBytesMax > options_.limit_bytes) {
    state_ = State::kLimitReached;
    Write();
    return false;
  }
  if (!buffer_.HasRoom()) Write();
  if (state_ != State::kRunning) return false;
  if (length > kUdpPayloadBytesMax || !buffer_.HasRoom()) {
    ++missed_packets_;
    ++missed_since_;
    return false;
  }
  return true;
}

void Capture::OnSent(Instant now, uint32_t interface, const OutPacket& packet,
                     std::string_view note) {
  const uint32_t length = packet.length + wire::kIcrcBytes;
  if (!TakeRoom(length)) return;
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

void Capture::OnReceived(Instant now, uint32_t interface, const InPacket& packet,
                         std::string_view note) {
  if (!TakeRoom(packet.length)) return;
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
  Record(now, record, packet.length, payload, note, icrc_note);
}

void Capture::Record(Instant now, PacketRecord record, uint32_t length, const std::byte* payload,
                     std::string_view note, std::string_view icrc_note) {
  text_.clear();
  Pdu pdu;
  const wire::DecodeError wrong = wire::Decode(payload, length, &pdu);
  if (wrong != wire::DecodeError::kNone) {
    text_.append("not decoded: ").append(wire::NameOf(wrong));
  } else if (comment_) {
    text_ = comment_(record.address, pdu, record.is_sent);
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
  record.missed = std::exchange(missed_since_, 0);
  accepted_bytes_ += buffer_.AddPacket(record, length);
  ++packets_;
  if (flush_due_.IsNever()) flush_due_ = now + options_.flush_after;
  if (buffer_.size() >= kBlockBytes) Write();
}

CaptureTap::CaptureTap(PacketPort* inner, Capture* capture, std::string_view nic)
    : TapPort(inner), capture_(capture), interface_(capture->AddInterface(nic)) {}

void CaptureTap::WritePending() {
  if (!std::exchange(has_pending_, false)) return;
  capture_->OnReceived(pending_at_, interface_, pending_, received_note_);
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
  pending_at_ = now;
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

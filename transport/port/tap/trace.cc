#include "transport/port/tap/trace.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace verbena::transport::tap {
namespace {

constexpr uint32_t kMissedLineBytesMax = 48;

}  // namespace

void Trace::Add(Instant now, std::string_view line) {
  char time[32];
  const int64_t ns = (now + options_.wall_offset).ns;
  const int time_bytes = std::snprintf(time, sizeof time, "%" PRId64 ".%09" PRId64 " ",
                                       ns / 1'000'000'000, ns % 1'000'000'000);
  const uint64_t bytes = static_cast<uint64_t>(time_bytes) + line.size() + 1;
  if (!TakeRoom(bytes + kMissedLineBytesMax)) return;
  const size_t before = text_.size();
  if (const uint64_t missed = TakeMissed(); missed != 0) {
    text_ += "(" + std::to_string(missed) + " packets are missing here)\n";
  }
  text_.append(time).append(line).append("\n");
  OnAdded(now, static_cast<uint32_t>(text_.size() - before));
}

void Trace::Take(uint32_t count) {
  const std::string_view taken(text_.data() + taken_, count);
  const size_t end = taken.rfind('\n');
  torn_ = end == std::string_view::npos ? torn_ + count : count - static_cast<uint32_t>(end) - 1;
  taken_ += count;
  // A slow reader is no reason to move the rest each time.
  if (taken_ != text_.size() && HasRoom()) return;
  text_.erase(0, taken_);
  taken_ = 0;
}

void TraceTap::Print(Instant now, const wire::PacketAddress& address, const std::byte* bytes,
                     uint32_t length, bool is_sent) {
  text_.assign(nic_).append(is_sent ? " out " : " in ");
  text_.append(wire::AddressText(address.source))
      .append(" > ")
      .append(wire::AddressText(address.destination));
  Pdu pdu;
  const wire::DecodeError wrong = wire::Decode(bytes, length, &pdu);
  if (wrong == wire::DecodeError::kNone) {
    text_.append(" ").append(wire::Describe(pdu));
    if (comment_) text_.append(" (").append(comment_(address, pdu, is_sent)).append(")");
  } else {
    text_.append(" not decoded: ").append(wire::NameOf(wrong));
  }
  trace_->Add(now, text_);
}

bool TraceTap::Send(Instant now, const OutPacket& packet) {
  // Decode counts on an ICRC, which the packet does not have yet. Copied before it is out of hand.
  const uint32_t length = packet.length + wire::kIcrcBytes;
  const bool fits = length <= decode_room_.size();
  if (fits) std::memcpy(decode_room_.data(), packet.bytes, packet.length);
  if (!inner()->Send(now, packet)) return false;
  if (fits) Print(now, packet.address, decode_room_.data(), length, true);
  return true;
}

bool TraceTap::Receive(Instant now, InPacket* out) {
  if (!inner()->Receive(now, out)) return false;
  Print(out->received_at, out->address, out->bytes, out->length, false);
  return true;
}

Instant TraceTap::PollTimeout() const {
  return std::min(inner()->PollTimeout(), trace_->PollTimeout());
}

void TraceTap::OnTimeout(Instant now) {
  inner()->OnTimeout(now);
  trace_->OnTimeout(now);
}

}  // namespace verbena::transport::tap

#include "transport/port/tap/trace.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace verbena::transport::tap {

std::string AddressText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (gid.IsIpv4Mapped()) {
    inet_ntop(AF_INET, gid.raw.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.raw.data(), text, sizeof text);
  }
  return text;
}

void TraceTap::Print(Instant now, const wire::PacketAddress& address, const std::byte* bytes,
                     uint32_t length, bool is_sent) {
  char time[32];
  std::snprintf(time, sizeof time, "%" PRId64 ".%09" PRId64, now.ns / 1'000'000'000,
                now.ns % 1'000'000'000);
  text_.assign(time).append(" ").append(nic_).append(is_sent ? " > " : " < ");
  text_.append(AddressText(is_sent ? address.destination : address.source)).append(" ");
  Pdu pdu;
  const wire::DecodeError wrong = wire::Decode(bytes, length, &pdu);
  if (wrong == wire::DecodeError::kNone) {
    text_ += wire::Describe(pdu);
  } else {
    text_.append("not decoded: ").append(wire::NameOf(wrong));
  }
  line_(text_);
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
  Print(now, out->address, out->bytes, out->length, false);
  return true;
}

}  // namespace verbena::transport::tap

// One line per packet, for people who watch a run. No tap, no cost.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "transport/port/tap/tap_port.h"

namespace verbena::transport::tap {

class TraceTap : public TapPort {
 public:
  using Line = std::function<void(std::string_view)>;
  TraceTap(PacketPort* inner, std::string_view nic, Line line)
      : TapPort(inner), nic_(nic), line_(std::move(line)) {}

  bool Send(Instant now, const OutPacket& packet) override;
  bool Receive(Instant now, InPacket* out) override;

 private:
  void Print(Instant now, const wire::PacketAddress& address, const std::byte* bytes,
             uint32_t length, bool is_sent);

  std::string nic_;
  Line line_;
  std::string text_;
  std::array<std::byte, wire::kPacketBytesMax> decode_room_{};
};

// "10.0.0.2" or "fe80::1".
std::string AddressText(const Gid& gid);

}  // namespace verbena::transport::tap

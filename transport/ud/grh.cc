#include "transport/ud/grh.h"

#include <cstring>

namespace verbena::transport {
namespace {

constexpr uint32_t kUdpHeaderBytes = 8;
constexpr uint32_t kBthBytes = 12;
constexpr uint32_t kDethBytes = 8;
constexpr uint32_t kImmBytes = 4;
constexpr uint32_t kIcrcBytes = 4;
constexpr uint32_t kIpv4HeaderBytes = 20;
constexpr uint8_t kIpProtocolUdp = 17;
constexpr uint8_t kIpv4VersionAndLength = 0x45;  // version 4, five words
constexpr uint8_t kIpv4DontFragment = 0x40;      // high byte of flags and offset
constexpr uint8_t kDefaultHopLimit = 64;         // what the network stack takes for 0

void PutBe16(std::byte* out, uint32_t value) {
  out[0] = static_cast<std::byte>(value >> 8);
  out[1] = static_cast<std::byte>(value);
}
void PutBe32(std::byte* out, uint32_t value) {
  PutBe16(out, value >> 16);
  PutBe16(out + 2, value);
}

// Spec: RFC 1071.
uint32_t InternetChecksum(const std::byte* bytes, uint32_t count) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; i += 2) {
    sum += static_cast<uint32_t>(bytes[i]) << 8 | static_cast<uint32_t>(bytes[i + 1]);
  }
  while ((sum >> 16) != 0) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

void WriteIpv4(const Path& path, uint32_t udp_bytes, uint8_t hop_limit, std::byte* out) {
  out[0] = std::byte{kIpv4VersionAndLength};
  out[1] = std::byte{path.traffic_class};
  PutBe16(out + 2, kIpv4HeaderBytes + udp_bytes);
  PutBe16(out + 4, path.ip_id);
  out[6] = std::byte{kIpv4DontFragment};
  out[8] = std::byte{hop_limit};
  out[9] = std::byte{kIpProtocolUdp};
  std::memcpy(out + 12, path.sgid.raw.data() + 12, 4);
  std::memcpy(out + 16, path.dgid.raw.data() + 12, 4);
  PutBe16(out + 10, InternetChecksum(out, kIpv4HeaderBytes));
}

void WriteIpv6(const Path& path, uint32_t udp_bytes, uint8_t hop_limit, std::byte* out) {
  PutBe32(out, 6u << 28 | uint32_t{path.traffic_class} << 20 | (path.flow_label & 0x000f'ffff));
  PutBe16(out + 4, udp_bytes);
  out[6] = std::byte{kIpProtocolUdp};
  out[7] = std::byte{hop_limit};
  std::memcpy(out + 8, path.sgid.raw.data(), 16);
  std::memcpy(out + 24, path.dgid.raw.data(), 16);
}

}  // namespace

void WriteGrh(const Path& path, uint32_t payload_bytes, bool has_imm, std::byte out[kGrhBytes]) {
  std::memset(out, 0, kGrhBytes);
  uint32_t padded_bytes = (payload_bytes + 3) / 4 * 4;
  uint32_t udp_bytes = kUdpHeaderBytes + kBthBytes + kDethBytes + (has_imm ? kImmBytes : 0) +
                       padded_bytes + kIcrcBytes;
  uint8_t hop_limit = path.hop_limit != 0 ? path.hop_limit : kDefaultHopLimit;
  if (path.sgid.IsIpv4Mapped()) {
    WriteIpv4(path, udp_bytes, hop_limit, out + kGrhBytes - kIpv4HeaderBytes);
  } else {
    WriteIpv6(path, udp_bytes, hop_limit, out);
  }
}

uint8_t ServiceLevelOf(const Path& path) { return path.sgid.IsIpv4Mapped() ? 10 : 9; }

}  // namespace verbena::transport

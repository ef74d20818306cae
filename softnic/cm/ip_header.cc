#include "softnic/cm/ip_header.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstring>

namespace verbena::softnic {
namespace {

using shm::CmAddress;

// Bytes: version, IP version (its upper half), port, source, destination. An IPv4 address is the
// last four bytes of its field.
constexpr std::byte kVersion{0};
constexpr uint32_t kIpVersionAt = 1, kPortAt = 2, kSourceAt = 4, kDestinationAt = 20;
constexpr uint32_t kIpv4Offset = 12;

void Store(const CmAddress& address, std::byte* field) {
  if (address.family == AF_INET) {
    std::memcpy(field + kIpv4Offset, address.addr, 4);
  } else {
    std::memcpy(field, address.addr, 16);
  }
}

CmAddress Load(uint16_t family, const std::byte* field) {
  CmAddress address{};
  address.family = family;
  if (family == AF_INET) {
    std::memcpy(address.addr, field + kIpv4Offset, 4);
  } else {
    std::memcpy(address.addr, field, 16);
  }
  return address;
}

}  // namespace

void EncodeIpHeader(const IpHeader& header, std::byte* out) {
  std::memset(out, 0, kIpHeaderBytes);
  out[0] = kVersion;
  out[kIpVersionAt] = header.source.family == AF_INET ? std::byte{0x40} : std::byte{0x60};
  std::memcpy(out + kPortAt, &header.source.port, 2);
  Store(header.source, out + kSourceAt);
  Store(header.destination, out + kDestinationAt);
}

bool DecodeIpHeader(const std::byte* bytes, IpHeader* out) {
  const std::byte ip_version = bytes[kIpVersionAt] >> 4;
  if (bytes[0] != kVersion) return false;
  if (ip_version != std::byte{4} && ip_version != std::byte{6}) return false;
  const uint16_t family = ip_version == std::byte{4} ? AF_INET : AF_INET6;
  out->source = Load(family, bytes + kSourceAt);
  out->destination = Load(family, bytes + kDestinationAt);
  std::memcpy(&out->source.port, bytes + kPortAt, 2);
  return true;
}

transport::cm::ServiceId ServiceIdOf(uint16_t port_space, uint16_t port) {
  return transport::cm::ServiceId{uint64_t{port_space} << 16 | ntohs(port)};
}

uint16_t PortOf(transport::cm::ServiceId service) {
  return htons(static_cast<uint16_t>(service.value));
}

}  // namespace verbena::softnic

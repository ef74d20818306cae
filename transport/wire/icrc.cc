#include "transport/wire/icrc.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/byte_order.h"
#include "transport/wire/crc32.h"
#include "transport/wire/gf32.h"
#include "transport/wire/packet.h"

namespace verbena::transport::wire {
namespace {

// In place of the link's local route header, which RoCEv2 does not have.  Spec: IBTA A17.3.
constexpr uint32_t kMaskedLrhBytes = 8;
constexpr uint32_t kIpv4HeaderBytes = 20;
constexpr uint32_t kIpv6HeaderBytes = 40;
constexpr uint32_t kUdpHeaderBytes = 8;
constexpr uint8_t kIpProtocolUdp = 17;
constexpr uint16_t kDontFragment = 0x4000;
// IPv4: bytes from the identification, itself included, to the end of the UDP header.
constexpr uint32_t kIdToUdpEndBytes = 16 + kUdpHeaderBytes;
constexpr uint32_t kIpv4PacketBytesMax = 0xffff;

constexpr std::byte kOnes{0xff};  // a field that routers may change

std::byte* AppendIpv4(const PacketAddress& address, uint16_t ip_id, uint32_t udp_bytes,
                      std::byte* out) {
  std::fill_n(out, kIpv4HeaderBytes, kOnes);  // TOS, TTL, header checksum stay so
  out[0] = std::byte{0x45};                   // version, header length in words
  StoreBe16(static_cast<uint16_t>(kIpv4HeaderBytes + udp_bytes), out + 2);
  StoreBe16(ip_id, out + 4);
  StoreBe16(kDontFragment, out + 6);
  out[9] = std::byte{kIpProtocolUdp};
  std::memcpy(out + 12, address.source.raw.data() + 12, 4);
  std::memcpy(out + 16, address.destination.raw.data() + 12, 4);
  return out + kIpv4HeaderBytes;
}

std::byte* AppendIpv6(const PacketAddress& address, uint32_t udp_bytes, std::byte* out) {
  std::fill_n(out, kIpv6HeaderBytes, kOnes);  // traffic class, flow label, hop limit stay so
  out[0] = std::byte{0x6f};                   // version
  StoreBe16(static_cast<uint16_t>(udp_bytes), out + 4);
  out[6] = std::byte{kIpProtocolUdp};
  std::memcpy(out + 8, address.source.raw.data(), 16);
  std::memcpy(out + 24, address.destination.raw.data(), 16);
  return out + kIpv6HeaderBytes;
}

std::byte* AppendUdp(const PacketAddress& address, uint32_t udp_bytes, std::byte* out) {
  StoreBe16(address.source_port, out);
  StoreBe16(address.destination_port, out + 2);
  StoreBe16(static_cast<uint16_t>(udp_bytes), out + 4);
  out[6] = out[7] = kOnes;  // checksum
  return out + kUdpHeaderBytes;
}

// x^-8 to the powers i and 256 i: what takes i, or 256 i, zero bytes back out of a register.
constexpr Powers MakeStepsBack() {
  uint32_t back = kGf32One;
  for (int bit = 0; bit < 8; ++bit) back = DivideByX(back);
  return PowersOf(back, kGf32One);
}
constexpr Powers kStepsBack = MakeStepsBack();

// Whether two CRCs differ as they do when only the identifications differ; if so, stores the
// difference (XOR) of those.
//
// The difference of two CRCs is the register that the difference of the messages leaves, started
// from zero. It stays zero up to the identification. Two bytes d fed to a zero register leave what
// the register d would become over two zero bytes; after those come only zero bytes. Taking all of
// them back must so give a register in whose low 16 bits all of it lies, and they are d.
bool SolveId(uint32_t crc_difference, uint32_t bytes_from_id, uint16_t* id_difference) {
  uint32_t before = Multiply(Multiply(crc_difference, kStepsBack.near[bytes_from_id & 0xff]),
                             kStepsBack.far[bytes_from_id >> 8 & 0xff]);
  if (before > 0xffff) return false;
  *id_difference = __builtin_bswap16(static_cast<uint16_t>(before));
  return true;
}

// All that comes before a packet, as the ICRC has it.
std::byte* AppendHeaders(const PacketAddress& address, uint16_t ip_id, uint32_t udp_bytes,
                         std::byte* out) {
  out = std::fill_n(out, kMaskedLrhBytes, kOnes);
  out = address.IsIpv4() ? AppendIpv4(address, ip_id, udp_bytes, out)
                         : AppendIpv6(address, udp_bytes, out);
  return AppendUdp(address, udp_bytes, out);
}

// The register after that and the packet's BTH.
uint32_t CrcToBth(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                  uint32_t length) {
  std::byte headers[kMaskedLrhBytes + kIpv6HeaderBytes + kUdpHeaderBytes + kBthBytes];
  std::byte* end = AppendHeaders(address, ip_id, kUdpHeaderBytes + length + kIcrcBytes, headers);
  uint32_t bth_bytes = std::min(length, kBthBytes);
  std::copy_n(bytes, bth_bytes, end);
  if (bth_bytes > 4) end[4] = kOnes;  // FECN, BECN and the reserved bits beside them
  end += bth_bytes;
  return UpdateCrc32(kCrc32Start, headers, static_cast<size_t>(end - headers));
}

// Packets of up to so many bytes are put together with their headers: one pass is faster than two.
constexpr uint32_t kOnePassBytes = 128;

uint32_t CrcInOnePass(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                      uint32_t length) {
  std::byte all[kMaskedLrhBytes + kIpv6HeaderBytes + kUdpHeaderBytes + kOnePassBytes];
  std::byte* bth = AppendHeaders(address, ip_id, kUdpHeaderBytes + length + kIcrcBytes, all);
  std::memcpy(bth, bytes, length);
  bth[4] = kOnes;
  return UpdateCrc32(kCrc32Start, all, static_cast<size_t>(bth + length - all));
}

}  // namespace

uint32_t ComputeIcrc(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                     uint32_t length) {
  if (length >= kBthBytes && length <= kOnePassBytes) {
    return ~CrcInOnePass(address, ip_id, bytes, length);
  }
  uint32_t bth_bytes = std::min(length, kBthBytes);
  uint32_t crc = CrcToBth(address, ip_id, bytes, length);
  return ~UpdateCrc32(crc, bytes + bth_bytes, length - bth_bytes);
}

uint32_t ComputeIcrc(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                     uint32_t length, const KnownPayload& payload) {
  if (payload.header_bytes == 0) return ComputeIcrc(address, ip_id, bytes, length);
  uint32_t crc = CrcToBth(address, ip_id, bytes, length);
  crc = UpdateCrc32(crc, bytes + kBthBytes, payload.header_bytes - kBthBytes);
  crc = AdvanceCrc32(crc, payload.bytes) ^ payload.crc;
  const uint32_t covered = payload.header_bytes + payload.bytes;
  return ~UpdateCrc32(crc, bytes + covered, length - covered);
}

void StoreIcrc(uint32_t icrc, std::byte* out) {
  for (uint32_t i = 0; i < kIcrcBytes; ++i) out[i] = static_cast<std::byte>(icrc >> (8 * i));
}

IcrcCheck VerifyIcrc(const PacketAddress& address, uint16_t expected_ip_id, const std::byte* bytes,
                     uint32_t length, uint16_t* ip_id) {
  uint32_t covered = length - kIcrcBytes;
  uint32_t received = 0;
  for (uint32_t i = 0; i < kIcrcBytes; ++i) {
    received |= std::to_integer<uint32_t>(bytes[covered + i]) << (8 * i);
  }
  uint32_t difference = received ^ ComputeIcrc(address, expected_ip_id, bytes, covered);
  *ip_id = expected_ip_id;
  if (difference == 0) return IcrcCheck::kExact;
  if (!address.IsIpv4() || length > kIpv4PacketBytesMax - kIpv4HeaderBytes - kUdpHeaderBytes) {
    return IcrcCheck::kWrong;
  }
  uint16_t id_difference;
  if (!SolveId(difference, kIdToUdpEndBytes + covered, &id_difference)) return IcrcCheck::kWrong;
  *ip_id = expected_ip_id ^ id_difference;
  return IcrcCheck::kSolved;
}

}  // namespace verbena::transport::wire

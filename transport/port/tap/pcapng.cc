#include "transport/port/tap/pcapng.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace verbena::transport::tap {
namespace {

// pcapng's numbers are in the writer's byte order, which the section header tells.
constexpr uint32_t kSectionHeaderBlock = 0x0a0d'0d0a;
constexpr uint32_t kByteOrderMagic = 0x1a2b'3c4d;
constexpr uint32_t kInterfaceBlock = 1;
constexpr uint32_t kPacketBlock = 6;
constexpr uint32_t kPacketHeaderBytes = 28;
constexpr uint16_t kLinkTypeRaw = 101;

constexpr uint16_t kOptionEnd = 0;
constexpr uint16_t kOptionComment = 1;
constexpr uint16_t kOptionUserApplication = 4;  // section header
constexpr uint16_t kOptionInterfaceName = 2;
constexpr uint16_t kOptionInterfaceDescription = 3;
constexpr uint16_t kOptionTimestampResolution = 9;
constexpr uint16_t kOptionPacketFlags = 2;
constexpr uint16_t kOptionDropCount = 4;

constexpr uint32_t kUdpBytes = 8;
constexpr uint8_t kUdpProtocol = 17;

void Store16(uint16_t value, std::byte* out) {
  out[0] = static_cast<std::byte>(value >> 8);
  out[1] = static_cast<std::byte>(value);
}

// One's complement sum of big-endian 16-bit words, a last odd byte counting as a high one; folded
// to 16 bits. The sum does not care for byte order or word size as long as carries come round
// again, so whole words are added as they lie in memory (RFC 1071).
uint16_t Sum(const std::byte* bytes, uint32_t length) {
  uint64_t sum = 0;
  uint64_t carries = 0;
  for (; length >= 8; bytes += 8, length -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, 8);
    sum += word;
    carries += sum < word;
  }
  uint64_t rest = 0;
  if (length != 0) std::memcpy(&rest, bytes, length);
  sum += rest;
  carries += sum < rest;
  uint64_t folded = (sum >> 32) + (sum & 0xffff'ffff) + carries;
  while (folded >> 16 != 0) folded = (folded & 0xffff) + (folded >> 16);
  const auto native = static_cast<uint16_t>(folded);
  return std::endian::native == std::endian::little
             ? static_cast<uint16_t>(native << 8 | native >> 8)
             : native;
}

uint16_t Fold(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

uint32_t Padded(uint32_t length) { return (length + 3) / 4 * 4; }

// Cuts text to at most `bytes`, never within a UTF-8 character.
std::string_view Cut(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace

uint32_t IpUdpHeaderBytes(const wire::PacketAddress& address) {
  return (address.IsIpv4() ? 20 : 40) + kUdpBytes;
}

uint32_t WriteIpUdpHeaders(const wire::PacketAddress& address, uint16_t ip_id,
                           const std::byte* payload, uint32_t length, std::byte* out) {
  const auto udp_length = static_cast<uint16_t>(length + kUdpBytes);
  std::byte* udp = out + (address.IsIpv4() ? 20 : 40);
  uint64_t pseudo = uint64_t{kUdpProtocol} + udp_length;
  std::memset(out, 0, IpUdpHeaderBytes(address));
  if (address.IsIpv4()) {
    out[0] = std::byte{0x45};
    out[1] = std::byte{address.traffic_class};
    Store16(static_cast<uint16_t>(udp_length + 20), out + 2);
    Store16(ip_id, out + 4);
    out[6] = std::byte{0x40};  // don't fragment
    out[8] = std::byte{address.hop_limit};
    out[9] = std::byte{kUdpProtocol};
    std::memcpy(out + 12, address.source.raw.data() + 12, 4);
    std::memcpy(out + 16, address.destination.raw.data() + 12, 4);
    Store16(Fold(Sum(out, 20)), out + 10);
    pseudo += Sum(out + 12, 8);
  } else {
    const uint32_t first =
        6u << 28 | uint32_t{address.traffic_class} << 20 | (address.flow_label & 0xf'ffff);
    Store16(static_cast<uint16_t>(first >> 16), out);
    Store16(static_cast<uint16_t>(first), out + 2);
    Store16(udp_length, out + 4);
    out[6] = std::byte{kUdpProtocol};
    out[7] = std::byte{address.hop_limit};
    std::memcpy(out + 8, address.source.raw.data(), 16);
    std::memcpy(out + 24, address.destination.raw.data(), 16);
    pseudo += Sum(out + 8, 32);
  }
  Store16(address.source_port, udp);
  Store16(address.destination_port, udp + 2);
  Store16(udp_length, udp + 4);
  const uint16_t checksum = Fold(pseudo + Sum(udp, kUdpBytes) + Sum(payload, length));
  Store16(checksum == 0 ? 0xffff : checksum, udp + 6);  // 0 would mean: none
  return IpUdpHeaderBytes(address);
}

PcapngBuffer::PcapngBuffer(uint32_t capacity_bytes)
    : capacity_(std::max(capacity_bytes, 2 * kPacketBlockBytesMax)) {
  bytes_.resize(capacity_);
}

// Room for `length` more bytes, not cleared.
std::byte* PcapngBuffer::Grow(size_t length) {
  if (size_ + length > bytes_.size()) bytes_.resize(size_ + length);
  size_ += length;
  return bytes_.data() + size_ - length;
}

void PcapngBuffer::Put32(uint32_t value) { std::memcpy(Grow(4), &value, 4); }

void PcapngBuffer::PutOption(uint16_t code, const void* value, uint32_t length) {
  const auto short_length = static_cast<uint16_t>(length);
  std::byte* out = Grow(4 + Padded(length));
  std::memcpy(out, &code, 2);
  std::memcpy(out + 2, &short_length, 2);
  std::memset(out + 4, 0, Padded(length));
  if (length != 0) std::memcpy(out + 4, value, length);
}

void PcapngBuffer::PutOption(uint16_t code, std::string_view value) {
  PutOption(code, value.data(), static_cast<uint32_t>(value.size()));
}

void PcapngBuffer::BeginBlock(uint32_t type) {
  block_ = size_;
  Put32(type);
  Put32(0);  // length, known at its end
}

uint32_t PcapngBuffer::EndBlock() {
  const auto length = static_cast<uint32_t>(size_ - block_ + 4);
  Put32(length);
  std::memcpy(bytes_.data() + block_ + 4, &length, 4);
  return length;
}

void PcapngBuffer::AddSectionHeader(std::string_view application) {
  BeginBlock(kSectionHeaderBlock);
  Put32(kByteOrderMagic);
  const uint16_t version[2] = {1, 0};
  Put32(std::bit_cast<uint32_t>(version));
  Put32(~0u);  // section length: not told
  Put32(~0u);
  PutOption(kOptionUserApplication, Cut(application, kCommentBytesMax));
  PutOption(kOptionEnd, {});
  EndBlock();
}

void PcapngBuffer::AddInterface(std::string_view name, std::string_view description) {
  BeginBlock(kInterfaceBlock);
  const uint16_t link_type[2] = {kLinkTypeRaw, 0};
  Put32(std::bit_cast<uint32_t>(link_type));
  Put32(0);  // packets are not cut
  PutOption(kOptionInterfaceName, Cut(name, kCommentBytesMax));
  if (!description.empty()) {
    PutOption(kOptionInterfaceDescription, Cut(description, kCommentBytesMax));
  }
  const uint8_t nanoseconds = 9;
  PutOption(kOptionTimestampResolution, &nanoseconds, 1);
  PutOption(kOptionEnd, {});
  EndBlock();
}

std::byte* PcapngBuffer::PacketRoom(const wire::PacketAddress& address, uint32_t length) {
  block_ = size_;
  std::byte* payload = Grow(kPacketHeaderBytes + IpUdpHeaderBytes(address) + Padded(length)) +
                       kPacketHeaderBytes + IpUdpHeaderBytes(address);
  std::memset(payload + length, 0, Padded(length) - length);
  return payload;
}

uint32_t PcapngBuffer::AddPacket(const PacketRecord& record, uint32_t length) {
  const uint32_t headers = IpUdpHeaderBytes(record.address);
  std::byte* block = bytes_.data() + block_;
  std::byte* frame = block + kPacketHeaderBytes;
  WriteIpUdpHeaders(record.address, record.ip_id, frame + headers, length, frame);
  const uint32_t fields[7] = {kPacketBlock,
                              0,
                              record.interface,
                              static_cast<uint32_t>(record.wall_ns >> 32),
                              static_cast<uint32_t>(record.wall_ns),
                              headers + length,
                              headers + length};
  std::memcpy(block, fields, sizeof fields);
  if (!record.comment.empty()) PutOption(kOptionComment, Cut(record.comment, kCommentBytesMax));
  const uint32_t flags = record.is_sent ? 2 : 1;
  PutOption(kOptionPacketFlags, &flags, sizeof flags);
  if (record.missed != 0) PutOption(kOptionDropCount, &record.missed, sizeof record.missed);
  PutOption(kOptionEnd, {});
  return EndBlock();
}

void PcapngBuffer::Take(uint32_t count) {
  taken_ += count;
  if (taken_ == size_) {
    size_ = taken_ = 0;
    return;
  }
  // What is left moves to the front only for want of room: a slow reader is no reason to copy.
  if (HasRoom()) return;
  const uint32_t whole = taken_ - TornBytes();
  std::memmove(bytes_.data(), bytes_.data() + whole, size_ - whole);
  size_ -= whole;
  taken_ -= whole;
}

uint32_t PcapngBuffer::TornBytes() const {
  uint32_t block = 0;
  while (block < taken_) {
    uint32_t length = 0;
    std::memcpy(&length, bytes_.data() + block + 4, 4);
    if (length > taken_ - block) return taken_ - block;
    block += length;
  }
  return 0;
}

}  // namespace verbena::transport::tap

// pcapng as bytes: section header, one interface per NIC, and RoCEv2 packets under IP and UDP
// headers rebuilt from what the port knows of them. Fills memory, nothing else.
//
// Spec: IETF draft-ietf-opsawg-pcapng; link type RAW (the packet begins with its IP header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/wire/address.h"

namespace verbena::transport::tap {

inline constexpr uint32_t kIpUdpBytesMax = 40 + 8;
inline constexpr uint32_t kUdpPayloadBytesMax = 65'535 - 20 - 8;
inline constexpr uint32_t kCommentBytesMax = 500;
// The most a packet takes in the file besides its own bytes: block header, IP and UDP, padding,
// options (comment, flags, drop count, end), block length.
inline constexpr uint32_t kPacketOverheadBytesMax =
    28 + kIpUdpBytesMax + 3 + (4 + kCommentBytesMax + 3) + 8 + 12 + 4 + 4;
inline constexpr uint32_t kPacketBlockBytesMax = kPacketOverheadBytesMax + kUdpPayloadBytesMax;

// Writes IP and UDP header to `out` (room for kIpUdpBytesMax) and returns how many bytes. Checksums
// are right for `payload`. IPv4: DF is set. Precondition: length <= kUdpPayloadBytesMax.
uint32_t IpUdpHeaderBytes(const wire::PacketAddress& address);
uint32_t WriteIpUdpHeaders(const wire::PacketAddress& address, uint16_t ip_id,
                           const std::byte* payload, uint32_t length, std::byte* out);

// What is written about a packet besides its bytes.
struct PacketRecord {
  wire::PacketAddress address;
  uint16_t ip_id = 0;
  uint32_t interface = 0;
  uint64_t wall_ns = 0;
  bool is_sent = false;
  uint64_t missed = 0;  // packets between the one before and this that could not be written
  std::string_view comment;
};

// Blocks in a buffer that keeps its memory.
class PcapngBuffer {
 public:
  explicit PcapngBuffer(uint32_t capacity_bytes);

  void AddSectionHeader(std::string_view application);
  void AddInterface(std::string_view name, std::string_view description);
  // A packet in two steps, so that its bytes are copied once: where to put the UDP payload of
  // `length` bytes; then its record. Precondition: HasRoom(). Returns the block's bytes.
  std::byte* PacketRoom(const wire::PacketAddress& address, uint32_t length);
  uint32_t AddPacket(const PacketRecord& record, uint32_t length);

  bool HasRoom() const { return size_ + kPacketBlockBytesMax <= capacity_; }
  const std::byte* data() const { return bytes_.data() + taken_; }
  uint32_t size() const { return static_cast<uint32_t>(size_) - taken_; }
  // The first `count` bytes of data() have been written.
  void Take(uint32_t count);
  // Bytes of a block begun but not taken to its end: what a file that can't grow has too much.
  uint32_t TornBytes() const;

 private:
  std::byte* Grow(size_t length);
  void Put32(uint32_t value);
  void PutOption(uint16_t code, std::string_view value);
  void PutOption(uint16_t code, const void* value, uint32_t length);
  void BeginBlock(uint32_t type);
  uint32_t EndBlock();

  size_t capacity_;
  std::vector<std::byte> bytes_;  // the first size_ count; they begin with a block
  size_t size_ = 0;
  uint32_t taken_ = 0;
  size_t block_ = 0;  // where the open block begins
};

}  // namespace verbena::transport::tap

// Memory of packets on their way to a network.
//
// The packets of a PDU lie back to back in one block, each with room for its ICRC: the DMA engine
// reads payload to where a socket takes it from, and a batch is one piece (docs/adr/0010). A block
// is in use until the last of its packets is dropped, or given back by the port it was lent to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/port/packet_port.h"
#include "transport/qp_transport.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

// Packets that are made of one PDU: a batch for the port.
inline constexpr uint32_t kPduPacketsMax = 60;
// Their payload: what of a message is one PDU until it leaves as packets; a quarter of the smallest
// window.
inline constexpr uint32_t kPduPayloadBytesMax = 56 * 1024;
// What a packet has beside its payload, at most: headers, pad, ICRC.
inline constexpr uint32_t kTxOverheadBytes =
    transport::wire::kHeaderBytesMax + 4 + transport::wire::kIcrcBytes;

struct TxBlock {
  std::byte* bytes = nullptr;
  TxBlock* next = nullptr;
  uint32_t users = 0;  // packets
  uint8_t size = 0;    // which of TxPool's
};

struct TxPacket {
  transport::wire::PacketAddress address;
  TxBlock* block = nullptr;
  std::byte* bytes = nullptr;
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;
  transport::PieceCrc crc;  // of the payload
  bool is_ready = false;    // nothing is to be added any more
  bool is_void = false;     // its payload could not be read: it is not sent
  bool is_orphan = false;   // its QP is gone; whoever adds to it gives it back
  TxPacket* next = nullptr;
  TxPacket* next_of_pdu = nullptr;  // made of the same PDU

  uint32_t length() const {
    return header_bytes + payload_bytes + transport::wire::PadBytes(payload_bytes);
  }
  // The payload is there: adds the pad.
  void Finish() {
    std::byte* end = bytes + header_bytes + payload_bytes;
    for (uint32_t i = 0; i < transport::wire::PadBytes(payload_bytes); ++i) end[i] = std::byte{0};
    is_ready = true;
  }
};

// Packets of an instance; memory grows with need up to a bound, and is kept.
class TxPool final : public transport::PacketLender {
 public:
  static constexpr uint32_t kPacketsMax = 4096;

  TxPool() = default;
  TxPool(const TxPool&) = delete;
  TxPool& operator=(const TxPool&) = delete;

  // Whether a PDU of so many packets, `bytes` with headers and ICRCs, can be had.
  bool Has(uint32_t packets, uint32_t bytes) const;
  // Whether any can.
  bool HasForAny() const { return Has(kPduPacketsMax, kPduBytesMax); }
  // Precondition: Has(…, bytes).
  TxBlock* TakeBlock(uint32_t bytes);
  // A packet `offset` bytes into the block.   Precondition: Has(1, …).
  TxPacket* Take(TxBlock* block, uint32_t offset);
  uint32_t packets_in_use() const {
    return static_cast<uint32_t>(packets_.size()) * kChunkPackets - free_packet_count_;
  }
  void Give(TxPacket* packet);
  // Whether a port may keep the packet: half of the blocks of each size stay for packets that are
  // being made, so that it is a port without room that holds up its QPs, and not this memory.
  bool MayLend(const TxPacket& packet) const {
    const Blocks& blocks = blocks_[packet.block->size];
    const uint32_t blocks_max = kSizes[packet.block->size].blocks_max;
    return packet.length() >= kLendBytesMin &&
           blocks.free_count + (blocks_max - blocks.made) >= blocks_max / 2;
  }
  // The packet is gone, and its part of the block lent: it comes back by TakeBack.
  void GiveLent(TxPacket* packet);
  void TakeBack(void* block) override;

 private:
  // A shorter packet is copied by the port sooner than lent.
  static constexpr uint32_t kLendBytesMin = 512;
  static constexpr uint32_t kPduBytesMax = kPduPayloadBytesMax + kPduPacketsMax * kTxOverheadBytes;
  // Blocks by size. A PDU takes the smallest that holds it and is to be had.
  struct Size {
    uint32_t bytes;
    uint32_t blocks_max;
  };
  static constexpr std::array<Size, 4> kSizes{
      {{256, 4096}, {4'096 + kTxOverheadBytes, 4096}, {16 * 1024, 512}, {kPduBytesMax, 256}}};
  static constexpr uint32_t kChunkBlocks = 16;
  static constexpr uint32_t kChunkPackets = 64;

  struct Blocks {
    TxBlock* free = nullptr;
    uint32_t free_count = 0;
    uint32_t made = 0;
    std::vector<std::unique_ptr<std::byte[]>> memory;
    std::vector<std::unique_ptr<TxBlock[]>> blocks;
  };

  bool HasBlock(size_t size) const {
    return blocks_[size].free_count != 0 || blocks_[size].made != kSizes[size].blocks_max;
  }
  void GrowBlocks(size_t size);
  void GrowPackets();

  std::array<Blocks, kSizes.size()> blocks_;
  std::vector<std::unique_ptr<TxPacket[]>> packets_;
  TxPacket* free_packets_ = nullptr;
  uint32_t free_packet_count_ = 0;
};

}  // namespace verbena::softnic

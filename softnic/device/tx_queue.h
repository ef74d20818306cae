// Packets on their way to a network: made from a PDU at once, payload added when it has been read
// out of the client's memory, sent in the order in which they were made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

// Packets that are made of one PDU: a batch for the port.
inline constexpr uint32_t kPduPacketsMax = 60;

struct TxPacket {
  transport::wire::PacketAddress address;
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;
  bool is_ready = false;   // nothing is to be added any more
  bool is_void = false;    // its payload could not be read: it is not sent
  bool is_orphan = false;  // its QP is gone; whoever adds to it gives it back
  TxPacket* next = nullptr;
  TxPacket* next_of_pdu = nullptr;  // made of the same PDU
  std::byte bytes[transport::wire::kPacketBytesMax];

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
class TxPool {
 public:
  static constexpr uint32_t kPacketsMax = 4096;  // 17 MB

  bool Has(uint32_t packets) const {
    return free_count_ + (kChunksMax - chunks_.size()) * kChunkPackets >= packets;
  }
  // Precondition: Has(1).
  TxPacket* Take() {
    if (free_ == nullptr) Grow();
    TxPacket* packet = std::exchange(free_, free_->next);
    packet->is_ready = packet->is_void = packet->is_orphan = false;
    packet->next = packet->next_of_pdu = nullptr;
    --free_count_;
    return packet;
  }
  void Give(TxPacket* packet) {
    packet->next = free_;
    free_ = packet;
    ++free_count_;
  }

 private:
  static constexpr uint32_t kChunkPackets = 64;
  static constexpr uint32_t kChunksMax = kPacketsMax / kChunkPackets;
  using Chunk = std::array<TxPacket, kChunkPackets>;

  void Grow() {
    VERBENA_CHECK(chunks_.size() < kChunksMax);
    chunks_.push_back(std::make_unique<Chunk>());
    for (TxPacket& packet : *chunks_.back()) Give(&packet);
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  TxPacket* free_ = nullptr;
  size_t free_count_ = 0;
};

// One QP's packets of one direction of talk (requests, or responses), oldest first.
class TxQueue {
 public:
  TxPacket* front() const { return first_; }
  uint32_t size() const { return size_; }
  void Push(TxPacket* packet) {
    (first_ == nullptr ? first_ : last_->next) = packet;
    last_ = packet;
    ++size_;
  }
  TxPacket* Pop() {
    VERBENA_CHECK(first_ != nullptr);
    TxPacket* packet = std::exchange(first_, first_->next);
    packet->next = nullptr;
    --size_;
    return packet;
  }

 private:
  TxPacket* first_ = nullptr;
  TxPacket* last_ = nullptr;
  uint32_t size_ = 0;
};

}  // namespace verbena::softnic

#include "softnic/device/tx_pool.h"

#include <utility>

#include "core/base/check.h"

namespace verbena::softnic {

bool TxPool::Has(uint32_t packets, uint32_t bytes) const {
  const auto made = static_cast<uint32_t>(packets_.size()) * kChunkPackets;
  if (free_packet_count_ + (kPacketsMax - made) < packets) return false;
  for (size_t size = kSizes.size(); size-- > 0 && kSizes[size].bytes >= bytes;) {
    if (HasBlock(size)) return true;
  }
  return false;
}

TxBlock* TxPool::TakeBlock(uint32_t bytes) {
  size_t size = 0;
  while (kSizes[size].bytes < bytes || !HasBlock(size)) {
    ++size;
    VERBENA_CHECK(size < kSizes.size());
  }
  Blocks& blocks = blocks_[size];
  if (blocks.free == nullptr) GrowBlocks(size);
  TxBlock* block = std::exchange(blocks.free, blocks.free->next);
  --blocks.free_count;
  return block;
}

TxPacket* TxPool::Take(TxBlock* block, uint32_t offset) {
  if (free_packets_ == nullptr) GrowPackets();
  TxPacket* packet = std::exchange(free_packets_, free_packets_->next);
  --free_packet_count_;
  packet->is_ready = packet->is_void = packet->is_orphan = false;
  packet->next = packet->next_of_pdu = nullptr;
  packet->crc = {};
  packet->block = block;
  packet->bytes = block->bytes + offset;
  ++block->users;
  return packet;
}

void TxPool::Give(TxPacket* packet) {
  TakeBack(packet->block);
  GiveLent(packet);
}

void TxPool::GiveLent(TxPacket* packet) {
  packet->next = free_packets_;
  free_packets_ = packet;
  ++free_packet_count_;
}

void TxPool::TakeBack(void* given) {
  auto* block = static_cast<TxBlock*>(given);
  VERBENA_CHECK(block->users != 0);
  if (--block->users != 0) return;
  Blocks& blocks = blocks_[block->size];
  block->next = blocks.free;
  blocks.free = block;
  ++blocks.free_count;
}

void TxPool::GrowBlocks(size_t size) {
  Blocks& blocks = blocks_[size];
  VERBENA_CHECK(blocks.made + kChunkBlocks <= kSizes[size].blocks_max);
  // Not initialised: pages that no packet fills are never touched.
  blocks.memory.emplace_back(new std::byte[size_t{kSizes[size].bytes} * kChunkBlocks]);
  blocks.blocks.push_back(std::make_unique<TxBlock[]>(kChunkBlocks));
  blocks.made += kChunkBlocks;
  for (uint32_t i = 0; i < kChunkBlocks; ++i) {
    TxBlock& block = blocks.blocks.back()[i];
    block.bytes = blocks.memory.back().get() + size_t{kSizes[size].bytes} * i;
    block.size = static_cast<uint8_t>(size);
    block.next = blocks.free;
    blocks.free = &block;
  }
  blocks.free_count += kChunkBlocks;
}

void TxPool::GrowPackets() {
  VERBENA_CHECK(packets_.size() * kChunkPackets < kPacketsMax);
  packets_.push_back(std::make_unique<TxPacket[]>(kChunkPackets));
  for (uint32_t i = 0; i < kChunkPackets; ++i) GiveLent(&packets_.back()[i]);
}

}  // namespace verbena::softnic

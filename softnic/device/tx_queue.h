// Packets on their way to a network: made from a PDU at once, payload added when it has been read
// out of the client's memory, sent in the order in which they were made.
#pragma once

#include <cstdint>
#include <utility>

#include "core/base/check.h"
#include "softnic/device/tx_pool.h"

namespace verbena::softnic {

// How a PDU becomes packets.
struct PduCut {
  uint32_t packets;
  uint32_t mtu_bytes;
  bool asks;  // the last one, for an acknowledgement
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

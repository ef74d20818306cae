// How fast a NIC sends what nobody acknowledges (UC and UD): as a link of 10 Gb/s would, and in
// portions that a receiver takes. Without it a sender fills the receiving socket and loses the
// rest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

class UnackedPace {
 public:
  // Those a QP places in one turn (transport::ReceiveQueue::kMaxPlacements): where both ends are
  // one thread, it sends no more than it takes.
  static constexpr uint32_t kPacketsPerTurn = 16;
  // After so many bytes it rests until half of them may be sent again: the wake-ups stay few.
  static constexpr int64_t kBurstBytes = 128 * 1024;
  static constexpr int64_t kRestBytes = kBurstBytes / 2;
  // Of the receiver's time and memory, a packet costs that beside its bytes.
  static constexpr int64_t kPacketBytes = 1024;

  void BeginTurn(Instant now) {
    int64_t elapsed_ns = std::clamp<int64_t>((now - last_).ns, 0, NsFor(kBurstBytes));
    last_ = now;
    allowance_bytes_ = std::min(allowance_bytes_ + elapsed_ns * 5 / 4, kBurstBytes);
    is_resting_ = is_resting_ && allowance_bytes_ < kRestBytes;
    packets_left_ = kPacketsPerTurn;
  }

  void OnPacket(uint32_t bytes) {
    packets_left_ -= std::min(packets_left_, 1u);
    allowance_bytes_ -= bytes + kPacketBytes;
    is_resting_ = is_resting_ || allowance_bytes_ <= 0;
  }

  bool HasRoom() const { return packets_left_ != 0 && !is_resting_; }
  bool IsResting() const { return is_resting_; }
  // When the rest is over.
  Instant PollTimeout() const {
    return is_resting_ ? last_ + Duration{NsFor(kRestBytes - allowance_bytes_)} : Instant::Never();
  }

 private:
  // 1.25 bytes a nanosecond; rounded up.
  static constexpr int64_t NsFor(int64_t bytes) { return (bytes * 4 + 4) / 5; }

  Instant last_;
  int64_t allowance_bytes_ = kBurstBytes;
  uint32_t packets_left_ = kPacketsPerTurn;
  bool is_resting_ = false;
};

}  // namespace verbena::softnic

// How fast a QP may send, if its program set a limit (IBV_QP_RATE_LIMIT): so many bits a second on
// the average, with bursts. What counts is what its requests take on a wire, headers included.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

class RateLimit {
 public:
  // Ethernet, IPv4, UDP, BTH and ICRC of each packet.
  static constexpr uint32_t kPacketOverheadBytes = 58;
  // A burst where the program says nothing: what keeps the rate up though timers come late.
  static constexpr uint32_t kBurstBytesMin = 16 * 1024;
  static constexpr int64_t kBurstNsMin = 1'000'000;

  // 0 kb/s: no limit. 0 bytes of burst: what is right for the rate.
  void Set(uint32_t kbps, uint32_t burst_bytes) {
    kbps_ = kbps;
    burst_ns_ = 0;
    if (kbps == 0) return;
    burst_ns_ =
        burst_bytes != 0 ? TimeOf(burst_bytes) : std::max(TimeOf(kBurstBytesMin), kBurstNsMin);
  }
  bool IsSet() const { return kbps_ != 0; }
  // A request goes out. When the next one may.
  Instant OnSent(Instant now, uint64_t payload_bytes, uint64_t packets) {
    paid_until_ = std::max(paid_until_, now);
    paid_until_.ns += TimeOf(payload_bytes + packets * kPacketOverheadBytes);
    return {paid_until_.ns - burst_ns_};
  }

 private:
  int64_t TimeOf(uint64_t bytes) const {
    return static_cast<int64_t>(bytes * 8'000'000 / kbps_);  // a message has 1 GB at most
  }

  uint32_t kbps_ = 0;
  int64_t burst_ns_ = 0;
  Instant paid_until_;
};

}  // namespace verbena::softnic

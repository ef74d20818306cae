// When the shard, while it is awake, looks at its networks.
//
// Each look is a system call for each network, a microsecond where those are slow: as long as a
// message of 8 bytes between two clients takes altogether. Where nothing has come or gone for a
// while it looks now and then; and what it does to share CPUs with other hosts' NICs it leaves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

class NetworkLooks {
 public:
  static constexpr Duration kQuietAfter = Milliseconds(1);
  static constexpr Duration kQuietInterval = Microseconds(20);  // for each network

  // `packets`: all that were ever sent or received. Once a turn.
  void OnTurn(Instant now, uint64_t packets) {
    if (packets == packets_) return;
    packets_ = packets;
    last_packet_ = now;
  }
  bool IsQuiet(Instant now) const { return now - last_packet_ >= kQuietAfter; }
  bool IsDue(Instant now, size_t networks) const {
    return is_due_ || !IsQuiet(now) ||
           now - last_look_ >= kQuietInterval * static_cast<int64_t>(networks);
  }
  void OnLook(Instant now) {
    last_look_ = now;
    is_due_ = false;
  }
  // Something may be there, whatever the time: epoll says so, or a timer has fired.
  void MakeDue() { is_due_ = true; }

 private:
  uint64_t packets_ = 0;
  Instant last_packet_{0}, last_look_{0};
  bool is_due_ = true;
};

}  // namespace verbena::softnic

// How long an endpoint that ends waits for what it has posted to send.
#pragma once

#include <cstdint>

#include "core/shm/command.h"

namespace verbena::fi {

// Of one QP. A packet that was lost is sent again only by a QP that is there, and of an injected
// message no program waits for a completion: so what ends waits a while. No clock of its own.
class Linger {
 public:
  // What the NIC has said of the QP just now. Whether it is worth asking again: something is
  // unfinished, and may still get to the peer. Once false, for ever.
  bool Waits(int64_t now_ms, const shm::QueryQpReply& reply);
  bool is_over() const { return is_over_; }

  // A peer that says nothing. A QP of ours sends again what nobody has acknowledged for 1.07 s
  // (twice the ACK timeout of rdma_cm's connections): two losses in a row are mended.
  static constexpr int64_t kSilenceMs = 2'500;
  // One that has refused the oldest message, for want of a receive, and nothing else since.
  static constexpr int64_t kRefusedMs = 100;
  // However little by little it goes on.
  static constexpr int64_t kLimitMs = 30'000;

 private:
  bool is_over_ = false;
  bool is_refused_ = false;
  int64_t begin_ms_ = -1;  // -1: not asked yet
  int64_t progress_ms_ = 0;
  uint32_t unacked_psn_ = 0;
};

// Between two looks at what is waited for: a little longer each time.
class LingerPause {
 public:
  void Sleep();

 private:
  int64_t next_ns_ = 20'000;
};

}  // namespace verbena::fi

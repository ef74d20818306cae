// How what was posted to send gets to its peers before an endpoint goes.
#pragma once

#include <cstdint>

#include "fi_shim/hw_qp.h"

namespace verbena::fi {

// A packet that was lost is sent again only by a QP that is there, and of an injected message no
// program waits for a completion. So an endpoint that ends waits, with one of these.
class Linger {
 public:
  Linger();
  // Whether to ask again, having waited for a moment if it was asked before: something posted to
  // `qp` is unfinished, and its peer has not been silent, since this was made, for as long as it
  // takes to mend two losses in a row. A peer that has no receive has less time.
  bool Waits(const HwQp& qp);

 private:
  const int64_t begin_ms_;
  shm::Handle asked_ = 0;
  uint32_t unacked_psn_ = 0;
  int64_t progress_ms_ = 0;
  bool is_refused_ = false;  // for want of a receive, since there was progress
  int64_t pause_ns_ = 0;
};

}  // namespace verbena::fi

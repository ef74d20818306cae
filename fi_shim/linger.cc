#include "fi_shim/linger.h"

#include <time.h>

#include <algorithm>

#include "core/base/types.h"

namespace verbena::fi {

bool Linger::Waits(int64_t now_ms, const shm::QueryQpReply& reply) {
  if (is_over_) return false;
  const auto state = static_cast<QpState>(reply.attr.qp_state);
  const bool may_send = state == QpState::kRts || state == QpState::kInit;  // or will be connected
  if (begin_ms_ < 0) begin_ms_ = progress_ms_ = now_ms;
  if (reply.unacked_psn != unacked_psn_) {
    unacked_psn_ = reply.unacked_psn;
    progress_ms_ = now_ms;
    is_refused_ = false;
  }
  is_refused_ = is_refused_ || reply.awaits_receive != 0;
  is_over_ = reply.has_unfinished == 0 || !may_send || now_ms - begin_ms_ >= kLimitMs ||
             now_ms - progress_ms_ >= (is_refused_ ? kRefusedMs : kSilenceMs);
  return !is_over_;
}

void LingerPause::Sleep() {
  constexpr int64_t kMaxNs = 1'000'000;
  const timespec pause = {.tv_sec = 0, .tv_nsec = next_ns_};
  nanosleep(&pause, nullptr);
  next_ns_ = std::min(2 * next_ns_, kMaxNs);
}

}  // namespace verbena::fi

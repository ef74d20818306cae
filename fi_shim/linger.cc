#include "fi_shim/linger.h"

#include <time.h>

#include <algorithm>

#include "core/clock/monotonic_clock.h"

namespace verbena::fi {
namespace {

// A QP of ours sends again what nobody has acknowledged for 1.07 s (twice the ACK timeout of
// rdma_cm's connections).
constexpr int64_t kSilenceMs = 2'500;
constexpr int64_t kRefusedMs = 100;
constexpr int64_t kFirstPauseNs = 20'000, kLastPauseNs = 1'000'000;

int64_t NowMs() { return ReadMonotonicClock().ns / 1'000'000; }

}  // namespace

Linger::Linger() : begin_ms_(NowMs()) {}

bool Linger::Waits(const HwQp& qp) {
  if (pause_ns_ != 0) {
    const timespec pause = {.tv_sec = 0, .tv_nsec = pause_ns_};
    nanosleep(&pause, nullptr);
  }
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLastPauseNs);
  shm::QueryQpReply now = {};
  if (QueryHwQp(qp, &now) != 0 || now.has_unfinished == 0) return false;
  const auto state = static_cast<QpState>(now.attr.qp_state);
  const bool may_send = state == QpState::kRts || state == QpState::kInit;  // or will be connected
  if (!may_send) return false;
  const bool is_new = qp.handle != asked_;
  if (is_new || now.unacked_psn != unacked_psn_) {
    asked_ = qp.handle;
    unacked_psn_ = now.unacked_psn;
    progress_ms_ = is_new ? begin_ms_ : NowMs();
    is_refused_ = false;
  }
  is_refused_ = is_refused_ || now.awaits_receive != 0;
  return NowMs() - progress_ms_ < (is_refused_ ? kRefusedMs : kSilenceMs);
}

}  // namespace verbena::fi

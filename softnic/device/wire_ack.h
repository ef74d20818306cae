// Whether an RC QP's acknowledgement waits for the request that its client answers with. Both leave
// in one batch then, which saves both hosts of a ping-pong a system call and a datagram.
//
// Learnt, not guessed: a QP whose client answered the last few messages soon after their
// acknowledgements holds the next one back, for kWait at most. Each that waited in vain makes it
// harder to believe again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/base/instant.h"
#include "softnic/device/objects.h"

namespace verbena::softnic {

class AckHold {
 public:
  // A client that spins answers within 1 to 2 µs; one that shares its CPU, as most do where there
  // are two, when it has it again. Counted from the turn after the one that took in what is
  // answered: before that no client can have seen it.
  static constexpr Duration kWait = Microseconds(20);
  // An answer to an acknowledgement that was sent: that takes a system call, 8 µs on some machines,
  // which is what waiting saves. Or one of the turn after it, however long turns are.
  static constexpr Duration kSoon = Microseconds(40);
  static constexpr uint32_t kAnswersToTrust = 8;
  static constexpr uint32_t kAnswersToTrustMax = 8192;

  // The QP has an acknowledgement to send. True: it waits.
  bool OnAck(Instant now) {
    acked_at_ = now;
    is_holding_ = is_trusting();
    return is_holding_;
  }
  // The QP has a request to send.
  void OnRequest(Instant now, Instant turn_before) {
    const bool is_answer = is_holding_ || acked_at_ >= turn_before || now - acked_at_ <= kSoon;
    answers_ = is_answer ? std::min(answers_ + 1, needed_) : 0;
    if (is_holding_) needed_ = std::max(needed_ - 1, kAnswersToTrust);
  }
  // It goes out: with an answer, or because something else is to follow it.
  void LetGo() { is_holding_ = false; }
  // It goes out because no answer came.
  void GiveUp() {
    is_holding_ = false;
    answers_ = 0;
    needed_ = std::min(needed_ * 4, kAnswersToTrustMax);
  }

  // The next acknowledgement waits.
  bool is_trusting() const { return answers_ >= needed_; }
  bool is_holding() const { return is_holding_; }
  Instant acked_at() const { return acked_at_; }

 private:
  Instant acked_at_{std::numeric_limits<int64_t>::min() / 2};
  uint32_t answers_ = 0;  // one soon after the other
  uint32_t needed_ = kAnswersToTrust;
  bool is_holding_ = false;
};

// One that waits.
struct HeldAck {
  Instant due() const { return (waits_from.IsNever() ? made : waits_from) + AckHold::kWait; }

  QpRef qp;
  Instant made;
  Instant waits_from = Instant::Never();  // the turn after that
};

}  // namespace verbena::softnic

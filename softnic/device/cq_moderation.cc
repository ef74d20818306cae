// Moderation: an event of an armed CQ waits until so many completions came, or so much time has
// passed since the first of them. As on mlx5, either number being 0 turns it off, and it is the
// same for CQs armed for any completion and for solicited ones: those that the CQ is not armed for
// count, but start no waiting.
#include <cerrno>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

int DeviceCore::ModifyCq(Command& command) {
  auto request = command.Request<shm::ModifyCqRequest>();
  Cq* cq = command.session->cqs.Find(request.cq);
  if (cq == nullptr || request.period_us > kCqModerationPeriodMaxUs) return EINVAL;
  cq->event_count = request.count;
  cq->event_period_us = request.period_us;
  // What is held back goes by the new numbers, its time from now on.
  if (cq->event_timer.IsSet()) {
    event_timers_.Remove(cq->event_timer);
    if (!HoldsEvent(*cq)) FireHeld(*cq);
  }
  return 0;
}

bool DeviceCore::HoldsEvent(Cq& cq) {
  if (cq.event_count == 0 || cq.event_period_us == 0) return false;
  if (cq.unannounced >= cq.event_count) return false;
  if (!cq.event_timer.IsSet()) {
    event_timers_.Set(cq.event_timer, now_ + Microseconds(cq.event_period_us));
  }
  return true;
}

// The client may have armed the CQ again meanwhile, and have seen all: one event too many is
// harmless, one too few is not.
void DeviceCore::FireHeld(Cq& cq) {
  const uint32_t sequence = cq.ring.LoadArm() >> shm::kArmSequenceShift;
  if (sequence != cq.fired_arm) Fire(cq, sequence);
}

void DeviceCore::FireDueHeld() {
  while (const Timer* timer = event_timers_.TakeDue(now_)) {
    FireHeld(*static_cast<Cq*>(timer->owner));
  }
}

}  // namespace verbena::softnic

// Rate limits of QPs: after a request that uses its allowance up, a QP rests.
#include <cerrno>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

// The size of a typical packet is for hardware that paces by guess: here packets cost what they
// are.
int DeviceCore::CheckRate(const shm::ModifyQpRequest& request) {
  const bool has_rate =
      (request.mask & shm::qp_mask::kRateLimit) != 0 && request.attr.rate_limit != 0;
  const bool has_shape = request.max_burst_bytes != 0 || request.typical_packet_bytes != 0;
  return has_shape && !has_rate ? EINVAL : 0;
}

// 0 kb/s: none from now on, nor a rest that the last one takes.
void DeviceCore::SetRate(DeviceQp& qp, uint32_t kbps, uint32_t burst_bytes) {
  if (kbps == 0) {
    if (qp.IsResting()) rate_timers_.Remove(qp.rate->rest);
    qp.rate.reset();
    return;
  }
  if (qp.rate == nullptr) qp.rate = std::make_unique<RateControl>(&qp);
  qp.rate->limit.Set(kbps, burst_bytes);
}

void DeviceCore::CountRate(DeviceQp& qp, transport::Pdu& pdu) {
  const bool has_packets = pdu.payload.length != 0;  // a READ's PSNs are its peer's to send
  const uint64_t packets = has_packets ? static_cast<uint64_t>(pdu.psn_count.value) : 1;
  const Instant next = qp.rate->limit.OnSent(now_, pdu.payload.length, packets);
  if (next <= now_) return;
  rate_timers_.Set(qp.rate->rest, next);
  // What is not acknowledged before the next request would be taken for lost.
  if (qp.service() == Service::kRc) pdu.ack_request = true;
}

void DeviceCore::EndRests() {
  while (const Timer* timer = rate_timers_.TakeDue(now_)) {
    MarkForDrain(*static_cast<DeviceQp*>(timer->owner));
  }
}

}  // namespace verbena::softnic

#include "transport/port/tap/held_packets.h"

namespace verbena::transport::tap {

bool HeldPackets::Add(Instant due, uint32_t hold_packets, HeldPacket packet) {
  const uint64_t cost = packet.bytes.size() + kOverheadBytes;
  if (bytes_ + cost > bytes_max_) return false;
  bytes_ += cost;
  const Key key{due, sequence_++};
  Entry entry{hold_packets == 0 ? 0 : passed_ + hold_packets, std::move(packet)};
  if (entry.passed != 0) by_passed_.insert({entry.passed, key});
  by_time_.emplace(key, std::move(entry));
  return true;
}

void HeldPackets::OnPassed(Instant now) {
  ++passed_;
  while (!by_passed_.empty() && by_passed_.begin()->first <= passed_) {
    const Key key = by_passed_.begin()->second;
    by_passed_.erase(by_passed_.begin());
    auto node = by_time_.extract(key);
    node.mapped().passed = 0;
    if (now < key.first) node.key().first = now;
    by_time_.insert(std::move(node));
  }
}

Instant HeldPackets::NextDue() const {
  return by_time_.empty() ? Instant::Never() : by_time_.begin()->first.first;
}

bool HeldPackets::PopDue(Instant now, HeldPacket* out) {
  if (by_time_.empty() || now < by_time_.begin()->first.first) return false;
  auto first = by_time_.begin();
  if (first->second.passed != 0) by_passed_.erase({first->second.passed, first->first});
  bytes_ -= first->second.packet.bytes.size() + kOverheadBytes;
  *out = std::move(first->second.packet);
  by_time_.erase(first);
  return true;
}

}  // namespace verbena::transport::tap

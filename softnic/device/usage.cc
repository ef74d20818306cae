// What is in use of what is bounded.
#include <algorithm>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

DeviceUsage DeviceCore::Usage() const {
  DeviceUsage usage;
  usage.held_packets = held_packets_;
  usage.rc_qp_held_packets_max = kHeldPerQp;
  usage.tx_packets = tx_pool_.packets_in_use();
  usage.tx_packets_max = TxPool::kPacketsMax;
  for (const auto& [address, peer] : wire_peers_) {
    usage.peers.push_back({peer.bytes, 0, peer.room_bytes, peer.users, 0});
  }
  for (const QpSlot& slot : qp_slots_) {
    const DeviceQp* qp = slot.qp;
    if (qp == nullptr) continue;
    const auto held = static_cast<uint64_t>(
        std::count_if(qp->waiting.begin(), qp->waiting.end(),
                      [](const Waiting& waiting) { return waiting.is_from_wire; }));
    usage.qp_held_packets += held;
    if (qp->service() == Service::kRc) {
      usage.rc_qp_held_packets_most = std::max(usage.rc_qp_held_packets_most, held);
    }
    if (qp->wire.peer == nullptr) continue;
    size_t index = 0;  // of its peer, in the map's order
    for (const auto& [address, peer] : wire_peers_) {
      if (&peer == qp->wire.peer) break;
      ++index;
    }
    usage.peers[index].qp_bytes += qp->wire.bytes;
    ++usage.peers[index].qps;
  }
  return usage;
}

}  // namespace verbena::softnic

// What must be true at any time, looked at every so many steps.
#include <algorithm>

#include "tests/simulation/world.h"

namespace verbena::simulation {
namespace {

constexpr uint32_t kPacketOverheadBytes = 1024;  // that a packet counts, beside its payload

}  // namespace

void World::CheckNow() {
  checked_steps_ = stats_.steps;
  for (auto& end : ends_) {
    if (end->client_state->is_crashed) continue;
    end->flow->CheckMemoryNow();
    if (end->own_receiver != nullptr) end->own_receiver->CheckGuards();
  }
  for (auto& state : clients_) {
    CheckShared(*state);
    if (state->srq_receiver != nullptr && !state->is_crashed) state->srq_receiver->CheckGuards();
  }
  for (auto& host : hosts_) CheckUsage(*host);
}

// A device keeps to its bounds, and its sums are those of its QPs.
void World::CheckUsage(const Host& host) {
  const softnic::DeviceUsage usage = host.device.Usage();
  auto check = [this, &host](const char* what, uint64_t used, uint64_t most) {
    if (used <= most) return;
    Violate("host " + std::to_string(host.index) + ": " + std::to_string(used) + " " + what +
            ", of " + std::to_string(most));
  };
  check("packets held for one RC QP", usage.rc_qp_held_packets_most, usage.rc_qp_held_packets_max);
  check("packets being made", usage.tx_packets, usage.tx_packets_max);
  if (usage.held_packets != usage.qp_held_packets) {
    Violate("held packets are counted wrong: " + std::to_string(usage.held_packets) +
            ", in queues " + std::to_string(usage.qp_held_packets));
  }
  // The request that exceeds the room still goes, and who has nothing under way may send one.
  uint64_t request_bytes = 0;
  for (const auto& end : ends_) {
    const uint32_t packets = end->message_bytes_max / end->mtu_bytes + 1;
    request_bytes =
        std::max<uint64_t>(request_bytes, end->message_bytes_max + packets * kPacketOverheadBytes);
  }
  const uint64_t room_bytes = WireWatch::RoomBytes(plan_);
  for (const auto& peer : usage.peers) {
    check("bytes under way to an address", peer.bytes, room_bytes + peer.users * request_bytes);
    if (peer.bytes != peer.qp_bytes || peer.users != peer.qps) {
      Violate("what is under way to an address is counted wrong: " + std::to_string(peer.bytes) +
              " bytes, its QPs have " + std::to_string(peer.qp_bytes));
    }
  }
}

}  // namespace verbena::simulation

// The judge of how much connections have under way. It asks no device: what leaves a port and what
// reaches one tell it. A requester may know less than has arrived, never more, so what it has
// outstanding is as much as is counted here, or more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "core/base/psn.h"
#include "core/base/types.h"
#include "tests/simulation/plan.h"
#include "transport/pdu.h"
#include "transport/port/sim/sim_network.h"

namespace verbena::simulation {

class World;
struct End;

class WireWatch {
 public:
  explicit WireWatch(World* world) : world_(world) {}

  // How much may be under way to one address.
  static uint32_t RoomBytes(const Plan& plan);

  // A connected end, whose packets come to its QP at `own`.
  void Add(const End& end, const Gid& own);
  void OnPacket(transport::sim::SimPacketFate fate, const transport::sim::SimPacket& packet);

 private:
  struct Requester {
    const End* end = nullptr;
    int32_t window_psns = 0;
    Psn sent, acked;          // one past the newest sent; oldest that may be unacknowledged
    std::deque<Psn> awaited;  // last PSN of each READ, atomic and FLUSH not answered yet
  };
  using Key = std::pair<Gid, uint32_t>;

  void OnRequest(Requester& requester, const transport::Pdu& pdu);
  static void OnResponse(Requester& requester, const transport::Pdu& pdu);

  World* const world_;
  std::map<Key, Requester> requesters_;  // by where they are answered
  std::map<const End*, Requester*> by_end_;
};

}  // namespace verbena::simulation

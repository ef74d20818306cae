// What a seed stands for: hosts, connections, work and faults of one run.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/instant.h"
#include "core/base/types.h"
#include "tests/simulation/dma.h"
#include "transport/port/sim/sim_network.h"

namespace verbena::simulation {

struct HostPlan {
  uint32_t nics = 1;
  bool is_wire_only = false;  // NICs of the same host talk over the network too
  SimDma::Options dma;
};

struct ClientPlan {
  uint32_t host = 0;
  uint32_t nic = 0;
  bool is_lazy = false;  // polls now and then
};

struct EndPlan {
  uint32_t client = 0;
  uint32_t sq_psn = 0;
  uint32_t sq_depth = 16;
  uint32_t rq_depth = 16;
  bool has_srq = false;
  bool starves = false;  // posts receives late and few: RNR NAKs, dropped datagrams
  bool sq_sig_all = false;
  uint8_t timeout_exp = 8;
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  uint8_t min_rnr_timer_code = 1;
  uint8_t max_rd_atomic = 4;
  uint32_t ops = 0;  // that it sends
  bool ends_badly = false;
  bool is_deep = false;  // keeps as many short READs and atomics under way as a QP can
  // Unreliable services: this receive has room for next to nothing. ~0: none.
  uint32_t short_receive = ~0u;
};

struct PairPlan {
  Service service = Service::kRc;
  uint32_t path_mtu_code = 3;
  bool is_ipv6 = false;
  uint32_t message_bytes_max = 4096;
  EndPlan ends[2];
};

// A UD QP; its datagrams go to itself, all others, and the group if there is one.
struct DatagramPlan {
  EndPlan end;
  bool is_ipv6 = false;
  bool is_member = false;  // of the group
};

struct PausePlan {
  uint32_t host = 0;
  Instant begin, end;
};
struct PortDownPlan {
  uint32_t host = 0, nic = 0;
  Instant begin, end;
};

enum class FaultLevel : uint8_t { kNone, kSome, kAll };

struct Plan {
  uint64_t seed = 0;
  FaultLevel level = FaultLevel::kAll;
  std::vector<HostPlan> hosts;
  std::vector<ClientPlan> clients;
  std::vector<PairPlan> pairs;
  std::vector<DatagramPlan> datagrams;
  bool has_group = false;
  bool group_is_ipv6 = false;
  transport::sim::SimNetworkOptions network;
  Instant quiet_at;  // faults have stopped
  std::vector<PausePlan> pauses;
  std::vector<PortDownPlan> ports_down;
  bool has_crash = false;
  uint32_t crashed_client = 0;
  Instant crash_at;
  bool has_stop = false;  // a program moves a QP to the error state in the middle of its work
  uint32_t stopped_end = 0;
  Instant stop_at;

  // Packets may be lost, or late enough to look lost.
  bool MayLose() const { return level != FaultLevel::kNone; }
  bool MayReorder() const {
    return network.reorder_per_mille != 0 || network.duplicate_per_mille != 0 ||
           network.jitter.ns != 0;
  }
};

// In which a connection whose packets are not lost any more makes progress, or gives up.
Duration RetryBound(const EndPlan& end);
// All that may happen after the faults have stopped.
Duration LivenessBound(const Plan& plan);

inline constexpr uint32_t kQpsMin = 8;
inline constexpr uint32_t kWqesMin = 1000;

Plan MakePlan(uint64_t seed);
// The same work without faults: all NICs of one host and local, or each on a host of its own.
Plan MakeQuietPlan(uint64_t seed, bool is_local);

}  // namespace verbena::simulation

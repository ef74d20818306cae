#include "tests/simulation/plan.h"

#include <algorithm>
#include <span>

#include "transport/qp_attributes.h"

namespace verbena::simulation {
namespace {

using transport::RnrDelay;
using transport::sim::IpIdMode;
using transport::sim::SimNetworkOptions;
using transport::sim::SimRandom;

constexpr uint32_t kClientsMin = 3;
// Longest virtual time in which faults happen; retries of the shortest timeouts end well inside.
constexpr int64_t kFaultyUsMax = 60'000;
// More than a QP's window has records, a few times over.
constexpr uint32_t kDeepOps = 400;

// A program that starves its peers looks at its queue after 8 us at the latest, and posts in one of
// five or six looks.
constexpr Duration kReceiveWait = Microseconds(200);
// For the work itself.
constexpr Duration kWorkBound = Milliseconds(100);

uint32_t Between(SimRandom& random, uint32_t low, uint32_t high) {
  return low + random.Below(high - low + 1);
}

// Small numbers are likelier: most networks lose little.
uint32_t Skewed(SimRandom& random, uint32_t max) { return random.Below(random.Below(max + 1) + 1); }

void PlanHosts(SimRandom& random, Plan& plan) {
  const uint32_t host_count = Between(random, 1, 3);
  for (uint32_t i = 0; i < host_count; ++i) {
    HostPlan host;
    host.nics = host_count == 1 ? 2 : Between(random, 1, 2);
    host.is_wire_only = host_count == 1 || random.Chance(300);
    if (random.Chance(400)) host.dma.delay_max = Nanoseconds(Between(random, 100, 20'000));
    plan.hosts.push_back(host);
  }
  const uint32_t client_count = std::max(kClientsMin, host_count + random.Below(3));
  for (uint32_t i = 0; i < client_count; ++i) {
    ClientPlan client;
    client.host = i % host_count;
    client.nic = random.Below(plan.hosts[client.host].nics);
    client.is_lazy = random.Chance(200);
    plan.clients.push_back(client);
  }
}

uint32_t PlanPsn(SimRandom& random) {
  if (random.Chance(400)) return (0xff'ffff - random.Below(100)) & 0xff'ffff;
  return static_cast<uint32_t>(random.Next()) & 0xff'ffff;
}

EndPlan PlanEnd(SimRandom& random, const Plan& plan, uint32_t client) {
  EndPlan end;
  end.client = client;
  end.sq_psn = PlanPsn(random);
  end.sq_depth = 4u << random.Below(4);
  end.rq_depth = 4u << random.Below(3);
  end.has_srq = random.Chance(250);
  end.starves = random.Chance(200);
  end.sq_sig_all = random.Chance(150);
  end.timeout_exp = static_cast<uint8_t>(Between(random, 3, 12));
  end.retry_count = static_cast<uint8_t>(random.Chance(700) ? 7 : random.Below(7));
  end.rnr_retry_count = static_cast<uint8_t>(random.Chance(800) ? 7 : random.Below(7));
  end.min_rnr_timer_code = static_cast<uint8_t>(Between(random, 1, 14));
  end.max_rd_atomic = static_cast<uint8_t>(Between(random, 1, 16));
  end.ends_badly = random.Chance(80);
  return end;
}

void PlanShortReceive(SimRandom& random, EndPlan& end) {
  if (random.Chance(80) && !end.has_srq) end.short_receive = random.Below(60);
}

uint32_t MessageBytesMax(SimRandom& random, uint32_t path_mtu_code) {
  const uint32_t mtu_bytes = 128u << path_mtu_code;
  if (random.Chance(60)) return mtu_bytes * (mtu_bytes <= 512 ? 24 : 6);
  return mtu_bytes * (mtu_bytes <= 512 ? 6 : mtu_bytes == 1024 ? 4 : 2) + 3;
}

// All that a QP may have under way is, which fences, pieces and short queues prevent elsewhere.
void PlanDeep(SimRandom& random, Plan& plan) {
  if (!random.Chance(150)) return;
  PairPlan& pair = plan.pairs[random.Below(3)];  // the first that are RC
  EndPlan& end = pair.ends[random.Below(2)];
  end.is_deep = true;
  end.sq_depth = 256;
  end.ops += kDeepOps;
  for (EndPlan& each : pair.ends) each.max_rd_atomic = 128;
}

void PlanConnections(SimRandom& random, Plan& plan) {
  const uint32_t clients = static_cast<uint32_t>(plan.clients.size());
  const uint32_t pair_count = Between(random, 4, 6);
  for (uint32_t i = 0; i < pair_count; ++i) {
    PairPlan pair;
    pair.service = i % 4 == 3 ? Service::kUc : Service::kRc;
    pair.path_mtu_code = Between(random, 1, 5);
    pair.is_ipv6 = random.Chance(300);
    pair.message_bytes_max = MessageBytesMax(random, pair.path_mtu_code);
    const uint32_t a = i % clients;
    const uint32_t b = random.Below(clients);
    pair.ends[0] = PlanEnd(random, plan, a);
    pair.ends[1] = PlanEnd(random, plan, b);
    for (EndPlan& end : pair.ends) {
      if (pair.service == Service::kUc) PlanShortReceive(random, end);
    }
    plan.pairs.push_back(pair);
  }
  const uint32_t datagram_count = Between(random, 2, 3);
  for (uint32_t i = 0; i < datagram_count; ++i) {
    DatagramPlan datagram;
    datagram.end = PlanEnd(random, plan, (i + 1) % clients);
    datagram.is_ipv6 = random.Chance(400);
    PlanShortReceive(random, datagram.end);
    plan.datagrams.push_back(datagram);
  }
}

// Shares the work out: more than kWqesMin in all, since what dies early posts less.
void PlanWork(SimRandom& random, Plan& plan) {
  std::vector<EndPlan*> ends;
  for (PairPlan& pair : plan.pairs) {
    for (EndPlan& end : pair.ends) ends.push_back(&end);
  }
  for (DatagramPlan& datagram : plan.datagrams) ends.push_back(&datagram.end);
  const uint32_t each = (kWqesMin + 250) / static_cast<uint32_t>(ends.size()) + 1;
  for (EndPlan* end : ends) end->ops = each;
  for (size_t i = 0; i + 1 < ends.size(); i += 2) {
    const uint32_t moved = random.Below(each / 2);
    ends[i]->ops += moved;
    ends[i + 1]->ops -= moved;
  }
}

// Of all programs the one whose death ends least work.
uint32_t IdlestClient(const Plan& plan) {
  std::vector<uint32_t> ops(plan.clients.size());
  for (const PairPlan& pair : plan.pairs) {
    for (const EndPlan& end : pair.ends) ops[end.client] += pair.ends[0].ops + pair.ends[1].ops;
  }
  for (const DatagramPlan& datagram : plan.datagrams) {
    ops[datagram.end.client] += datagram.end.ops;
  }
  for (uint32_t& count : ops) {
    if (count == 0) count = ~0u;  // its death ends nothing
  }
  return static_cast<uint32_t>(std::min_element(ops.begin(), ops.end()) - ops.begin());
}

Instant Within(SimRandom& random, Instant end) {
  return Instant{static_cast<int64_t>(random.Next() % static_cast<uint64_t>(end.ns))};
}

void PlanNetwork(SimRandom& random, Plan& plan) {
  SimNetworkOptions& network = plan.network;
  network.delay = Nanoseconds(Between(random, 200, 5'000));
  network.quantum = Nanoseconds(int64_t{1} << random.Below(12));
  network.ip_id_mode = static_cast<IpIdMode>(random.Below(4));
  if (plan.level == FaultLevel::kNone) return;
  // All kinds in one run, or some.
  auto has = [&] { return plan.level == FaultLevel::kAll || random.Chance(350); };
  if (has()) network.loss_per_mille = 1 + Skewed(random, random.Chance(50) ? 200 : 30);
  if (has()) network.corrupt_per_mille = 1 + Skewed(random, 20);
  if (has()) network.duplicate_per_mille = 1 + Skewed(random, 50);
  if (has()) network.reorder_per_mille = 1 + Skewed(random, 50);
  if (has()) network.jitter = Nanoseconds(random.Below(random.Chance(200) ? 5'000 : 200));
  network.reorder_delay = Microseconds(Between(random, 1, 200));
  network.duplicate_delay = Microseconds(Between(random, 1, 400));
  if (has()) network.wire_ps_per_byte = Between(random, 20, 800);
  if (has()) network.queue_max = Microseconds(Between(random, 20, 500));
  if (has()) network.inbox_packets_max = Between(random, 16, 256);
  if (has()) network.room_packets = Between(random, 1, 64);
  if (has()) network.no_room_per_mille = 1 + Skewed(random, 100);
}

void PlanIncidents(SimRandom& random, Plan& plan) {
  if (plan.level == FaultLevel::kNone) return;
  auto has = [&] { return plan.level == FaultLevel::kAll || random.Chance(350); };
  const uint32_t hosts = static_cast<uint32_t>(plan.hosts.size());
  uint32_t ports = 0;
  for (const HostPlan& host : plan.hosts) ports += host.nics;
  // Most work is done early in the time in which faults may happen.
  const Instant early{plan.quiet_at.ns / 4};
  auto length = [&] { return Microseconds(Between(random, 1, random.Chance(100) ? 8'000 : 300)); };
  if (has()) {
    transport::sim::PortPartition cut;
    cut.a = random.Below(ports);
    cut.b = random.Chance(500) ? transport::sim::PortPartition::kAllPorts : random.Below(ports);
    cut.begin = Within(random, early);
    cut.end = std::min(cut.begin + length(), plan.quiet_at);
    plan.network.partitions.push_back(cut);
  }
  if (has()) {
    PausePlan pause;
    pause.host = random.Below(hosts);
    pause.begin = Within(random, early);
    pause.end = std::min(pause.begin + length(), plan.quiet_at);
    plan.pauses.push_back(pause);
  }
  if (has()) {
    PortDownPlan down;
    down.host = random.Below(hosts);
    down.nic = random.Below(plan.hosts[down.host].nics);
    down.begin = Within(random, early);
    down.end = std::min(down.begin + length(), plan.quiet_at);
    plan.ports_down.push_back(down);
  }
  if (has()) {
    plan.has_stop = true;
    plan.stopped_end = random.Below(static_cast<uint32_t>(2 * plan.pairs.size()));
    plan.stop_at = Within(random, Instant{early.ns / 2});
  }
  if (has()) {
    plan.has_crash = true;
    plan.crashed_client = IdlestClient(plan);
    plan.crash_at = Within(random, plan.quiet_at);
  }
}

// Of a random sequence of its own: seeds mean what they did but for this.
void PlanGroup(Plan& plan) {
  SimRandom random(plan.seed ^ 0x6d63'6173);
  plan.has_group = random.Chance(500);
  plan.group_is_ipv6 = random.Chance(500);
  for (DatagramPlan& datagram : plan.datagrams) {
    datagram.is_member = plan.has_group && random.Chance(700);
  }
}

// Receives for all that may come at once.
void Provide(std::span<EndPlan> ends) {
  for (EndPlan& end : ends) {
    end.has_srq = false;
    end.rq_depth = 16;
    end.short_receive = ~0u;
  }
}

}  // namespace

// Each try lasts 4 T at most.  Spec: IBTA 9.7.6.1.3 (T is 4.096 us * 2^timeout).
Duration RetryBound(const EndPlan& end) {
  return Nanoseconds(4 * (int64_t{4096} << end.timeout_exp) * (1 + end.retry_count));
}

Duration LivenessBound(const Plan& plan) {
  int64_t most_ns = 0;
  for (const PairPlan& pair : plan.pairs) {
    if (pair.service != Service::kRc) continue;
    int64_t ns = 0;
    for (const EndPlan& end : pair.ends) {
      const EndPlan& other = &end == &pair.ends[0] ? pair.ends[1] : pair.ends[0];
      // What was lost is sent again; then one end gives up, and so the other; and each message may
      // find no receive at a peer that gives them one by one.
      ns += RetryBound(end).ns + end.ops * (RnrDelay(other.min_rnr_timer_code) + kReceiveWait).ns;
    }
    most_ns = std::max(most_ns, ns);
  }
  return Nanoseconds(most_ns) + kWorkBound;
}

Plan MakePlan(uint64_t seed) {
  SimRandom random(seed);
  Plan plan;
  plan.seed = seed;
  const uint32_t level = random.Below(1000);
  plan.level = level < 80 ? FaultLevel::kNone : level < 250 ? FaultLevel::kSome : FaultLevel::kAll;
  plan.quiet_at = Instant{Microseconds(200 + Skewed(random, kFaultyUsMax)).ns};
  PlanHosts(random, plan);
  PlanConnections(random, plan);
  PlanWork(random, plan);
  PlanDeep(random, plan);
  PlanNetwork(random, plan);
  PlanIncidents(random, plan);
  PlanGroup(plan);
  plan.network.batches = seed % 2 == 1;
  plan.network.receive_buffer_bytes = seed % 4 < 2 ? 0 : 8 << 20;
  for (HostPlan& host : plan.hosts) host.dma.moves_now = seed % 8 >= 4;
  if (plan.level != FaultLevel::kNone) return plan;
  // Nothing is lost, and nothing may look lost.
  for (PairPlan& pair : plan.pairs) {
    for (EndPlan& end : pair.ends) end.timeout_exp = 14;
  }
  return plan;
}

Plan MakeQuietPlan(uint64_t seed, bool is_local) {
  SimRandom random(seed);
  Plan plan;
  plan.seed = seed;
  plan.level = FaultLevel::kNone;
  PlanHosts(random, plan);
  const uint32_t nics = static_cast<uint32_t>(plan.clients.size());
  plan.hosts.assign(is_local ? 1 : nics, HostPlan{is_local ? nics : 1, false, {}});
  for (uint32_t i = 0; i < nics; ++i) {
    plan.clients[i] = {is_local ? 0 : i, is_local ? i : 0, plan.clients[i].is_lazy};
  }
  PlanConnections(random, plan);
  PlanWork(random, plan);
  PlanDeep(random, plan);
  for (PairPlan& pair : plan.pairs) {
    for (EndPlan& end : pair.ends) {
      end.rnr_retry_count = end.retry_count = 7;
      end.timeout_exp = 14;
    }
    pair.ends[1].ends_badly = false;  // two would race
    if (pair.service == Service::kUc) Provide(pair.ends);
  }
  for (DatagramPlan& datagram : plan.datagrams) Provide({&datagram.end, 1});
  return plan;
}

}  // namespace verbena::simulation

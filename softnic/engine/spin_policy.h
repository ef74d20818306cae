// How long the shard spins for more work before it sleeps.
//
// Measured on two cores with two spinning clients: a NIC that always spins costs 8 ms per round
// trip, because a client that shares its CPU can't run meanwhile; one that sleeps costs a few µs.
// With a free core, spinning costs 0.1 to 0.5 µs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

// All follow from what a remote wake-up costs on this machine (wakeup_cost.h).
struct SpinTimes {
  static constexpr Duration kAloneMin = Microseconds(50);
  static constexpr Duration kAloneMax = Microseconds(200);
  static constexpr Duration kForPacketsMin = Microseconds(20);
  static constexpr Duration kForPacketsMax = Microseconds(80);
  static constexpr Duration kForAnswerMin = Nanoseconds(2'500);
  static constexpr Duration kForAnswerMax = Microseconds(25);
  static constexpr Duration kOfFastCpus = Microseconds(50);

  // Nobody else wants this CPU.
  Duration alone = kAloneMin;
  // Packets are due, and no client has a part in that: worth as much waiting as a sleep and a
  // remote wake-up cost.
  Duration for_packets = kForPacketsMin;
  // What a peer that spins on another CPU needs to see our copy and to post its answer, and some: 1
  // µs where the CPUs are near, up to 2 µs where a cache line takes 0.3 µs between them, 10 to 20
  // µs where they are emulated, and a wake-up takes 60 to 200 µs. Wake-ups of up to 50 µs say
  // nothing of how slow a CPU is that is awake.
  Duration for_answer = kForAnswerMin;

  static SpinTimes ForWakeup(Duration cost) {
    return {{std::clamp(3 * cost.ns, kAloneMin.ns, kAloneMax.ns)},
            {std::clamp(cost.ns, kForPacketsMin.ns, kForPacketsMax.ns)},
            {std::clamp((cost - kOfFastCpus).ns / 2, kForAnswerMin.ns, kForAnswerMax.ns)}};
  }
};

// Where the clients that were active just now last ran. The words are the clients' and may lie:
// then the shard sleeps early, or spins for SpinTimes::alone at most.
//
// A client that the shard wakes need not run where it rang. Schedulers of virtual machines that
// keep few CPUs busy put it behind the shard that woke it. There it runs once the shard sleeps, and
// the shard, woken by its next doorbell, finds itself on the other CPU, and so on by turns.
class SpinPolicy {
 public:
  explicit SpinPolicy(uint32_t own_cpu, const SpinTimes& times = {})
      : own_cpu_(own_cpu), times_(times) {}

  // `rang_last`: of all clients, this one was served last.
  void AddClient(uint32_t last_cpu, bool rang_last) {
    bool is_here = last_cpu == own_cpu_;
    someone_here_ |= is_here;
    someone_elsewhere_ |= !is_here;
    last_is_here_ |= is_here && rang_last;
  }

  // Who rang last did so from the CPU that the shard had left when it slept last: it waited for us.
  void ExpectLastToFollow() { last_follows_ = true; }
  void ExpectPackets() { expects_packets_ = true; }
  // Somebody else waits for this CPU (cpu_contention.h).
  void MakeRoom() { makes_room_ = true; }

  bool SharesCpu() const { return someone_here_ || last_follows_ || makes_room_; }
  // Before a sleep.
  Duration Limit() const {
    if (makes_room_) return {0};
    if (!SharesCpu()) return times_.alone;
    if (expects_packets_) return times_.for_packets;
    return ForAnswer();
  }

  // Before a sleep where the shard gives its CPU away while it waits (yield_policy.h): nobody has
  // to wait for the sleep then. But who waits here for an answer that is late may well poll memory,
  // and keep the CPU; the answer wakes a shard that sleeps.
  Duration YieldingLimit() const { return ForAnswer().ns != 0 ? Limit() : times_.alone; }
  // For how long it keeps the CPU even then. With networks each look for work is a system call
  // already.
  Duration QuietLimit(bool has_networks) const {
    if (makes_room_ || (has_networks && expects_packets_)) return {0};
    if (SharesCpu()) return ForAnswer();
    return has_networks ? Duration{0} : times_.alone;
  }

 private:
  // Who rang last waits for an answer. If it waits here, the answer comes from elsewhere, and to
  // wait for it is cheaper than two context switches. If it waits elsewhere, the answer is due from
  // the client that can't run while we do.
  Duration ForAnswer() const {
    return last_is_here_ && someone_elsewhere_ ? times_.for_answer : Duration{0};
  }

  uint32_t own_cpu_;
  SpinTimes times_;
  bool someone_here_ = false;
  bool someone_elsewhere_ = false;
  bool last_is_here_ = false;
  bool last_follows_ = false;
  bool expects_packets_ = false;
  bool makes_room_ = false;
};

}  // namespace verbena::softnic

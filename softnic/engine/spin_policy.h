// How long the shard spins for more work before it sleeps.
//
// Measured on two cores with two spinning clients: a NIC that always spins costs 8 ms per round
// trip, because a client that shares its CPU can't run meanwhile; one that sleeps costs a few µs.
// With a free core, spinning costs 0.1 to 0.5 µs.
#pragma once

#include <cstdint>

#include "core/base/instant.h"

namespace verbena::softnic {

inline constexpr Duration kSpinMax = Microseconds(50);  // 3x a remote wake-up (13 to 18 µs)
// What a peer that spins on another CPU needs to see our copy and to post its answer, and some: 1
// µs where the CPUs are near, up to 2 µs where a cache line takes 0.3 µs between them.
inline constexpr Duration kSpinForAnswer = Nanoseconds(2'500);
// Amid a message a peer's next batch is due, or its acknowledgement, and no client has a part in
// that: worth as much waiting as a sleep and a remote wake-up cost.
inline constexpr Duration kSpinForPackets = Microseconds(20);

// Where the clients that were active just now last ran. The words are the clients' and may lie:
// then the shard sleeps early, or spins for 50 µs at most.
//
// A client that the shard wakes need not run where it rang. Schedulers of virtual machines that
// keep few CPUs busy put it behind the shard that woke it. There it runs once the shard sleeps, and
// the shard, woken by its next doorbell, finds itself on the other CPU, and so on by turns.
class SpinPolicy {
 public:
  explicit SpinPolicy(uint32_t own_cpu) : own_cpu_(own_cpu) {}

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

  bool SharesCpu() const { return someone_here_ || last_follows_; }
  Duration Limit() const {
    if (!someone_here_ && !last_follows_) return kSpinMax;
    if (expects_packets_) return kSpinForPackets;
    // Who rang last waits for an answer. If it waits here, the answer comes from elsewhere, and to
    // wait for it is cheaper than two context switches. If it waits elsewhere, the answer is due
    // from the client that can't run while we do.
    return last_is_here_ && someone_elsewhere_ ? kSpinForAnswer : Duration{0};
  }

 private:
  uint32_t own_cpu_;
  bool someone_here_ = false;
  bool someone_elsewhere_ = false;
  bool last_is_here_ = false;
  bool last_follows_ = false;
  bool expects_packets_ = false;
};

}  // namespace verbena::softnic

// A receive queue, of one QP or shared, as a program keeps it filled; and the judge of what comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/ring/work_queue.h"
#include "core/shm/layout.h"
#include "tests/simulation/host.h"
#include "transport/port/sim/sim_random.h"

namespace verbena::simulation {

class World;
struct End;
struct Op;

class Receiver {
 public:
  static constexpr uint32_t kMarginBytes = 16;
  static constexpr uint32_t kSlotsMax = 64;

  static constexpr uint32_t kNeverStarves = ~0u;
  // `end`: whose queue it is, nullptr for a shared one. `outstanding_max`: a program that is slow
  // to give receives has no more out.
  Receiver(World* world, End* end, Client* client, WorkQueueProducer* ring, uint32_t slots,
           uint32_t slot_bytes, uint64_t seed, uint32_t outstanding_max);

  bool MayPost() const;
  // Posts some of what may be posted; returns how many.
  uint32_t Post(Instant now);
  void OnCompletion(End& end, const shm::Cqe& cqe);
  void CheckGuards();
  void Stop() { is_stopped_ = true; }  // its QP is dead, or its program has all it needs
  uint64_t posted() const { return next_sequence_; }
  uint32_t outstanding() const { return outstanding_; }
  // Taken out of the ring and not completed.
  uint32_t Held() const {
    return outstanding_ - (ring_->producer_index() - ring_->ConsumerIndex());
  }
  End* end() const { return end_; }

 private:
  struct Slot {
    bool is_posted = false;
    uint64_t sequence = 0;
    uint32_t bytes = 0;
    uint32_t split = 0;
    bool is_short = false;    // on purpose
    bool is_swapped = false;  // the second piece lies first
  };

  std::byte* SlotStart(uint32_t slot) const {
    return region_.memory + slot * (slot_bytes_ + 2 * kMarginBytes) + kMarginBytes;
  }
  bool IsGuarded(uint32_t index) const;
  void OnMessage(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe);
  void OnReliable(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe);
  void OnUnreliable(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe);
  void OnDatagram(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe);
  // The first `bytes` received, in one piece.
  const std::byte* Gather(const Slot& slot, uint32_t index, uint32_t bytes);
  void CheckFields(End& end, const Op& op, const shm::Cqe& cqe, uint32_t imm);
  void CheckGrh(End& end, const End& sender, bool is_group, const std::byte* grh);
  void Wrong(const End& end, const char* what);

  World* const world_;
  End* const end_;
  Client* const client_;
  WorkQueueProducer* const ring_;
  const uint32_t slot_bytes_;
  transport::sim::SimRandom random_;
  const uint32_t outstanding_max_;
  bool is_stopped_ = false;
  Region region_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
  uint64_t next_sequence_ = 0;
  uint64_t oldest_sequence_ = 0;  // of a queue of one QP: completes next
  uint32_t outstanding_ = 0;
};

}  // namespace verbena::simulation

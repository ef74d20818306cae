// The DMA engine of a simulated host: copies within this process, at once or after a time drawn
// from the seed. Submissions of one stream keep their order; those of different streams don't.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/instant.h"
#include "softnic/device/device.h"
#include "transport/port/sim/sim_random.h"

namespace verbena::simulation {

class SimDma final : public softnic::DmaEngine {
 public:
  struct Options {
    // Results come at once if zero; else each request is carried out up to so much later.
    Duration delay_max;
    // MoveNow and ReadNow may, where nothing is under way: as a NIC that maps its clients' memory.
    bool moves_now = false;
  };

  SimDma(uint64_t seed, const Options& options) : options_(options), random_(seed) {}

  int AddRegion(softnic::SessionId session, const softnic::RegionSpec& spec,
                transport::MemoryId* out) override;
  int CopyRegion(transport::MemoryId region, transport::MemoryId* out) override {
    const Region copied = regions_[region - 1];
    return AddRegion(0, {copied.addr, copied.length, 0, nullptr, 0}, out);
  }
  void RemoveRegion(transport::MemoryId region) override;
  const char* BackendName(transport::MemoryId region) const override { return "simulated"; }
  void Submit(uint64_t stream, uint64_t cookie, const transport::DmaRequest& request) override;
  bool MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
               uint32_t destination_count) override;
  bool ReadNow(const transport::Payload& source, std::byte* to) override;
  void Fence(softnic::SessionId session, uint64_t cookie) override;

  void set_now(Instant now) { now_ = now; }
  Instant NextDue() const { return heap_.empty() ? Instant::Never() : heap_.front().due; }
  // Carries out and reports what is due, or with `everything` all there is. False: nothing.
  template <typename AnyDevice>  // Device, or the DeviceCore within
  bool Step(AnyDevice& device, Instant now, bool everything = false) {
    const Job* job = TakeDue(now, everything);
    if (job == nullptr) return false;
    // Copied: the device may submit from inside the calls, and the job's place is free for that.
    const uint64_t cookie = job->cookie, original = job->original;
    const transport::DmaStatus status = job->status;
    if (job->is_fence) {
      device.OnDmaFence(now, cookie);
    } else {
      device.OnDmaDone(now, cookie, status, original);
    }
    return true;
  }
  bool IsIdle() const { return heap_.empty(); }
  uint32_t live_regions() const { return live_regions_; }
  // What the device did that it may not; empty: nothing.
  const std::string& violation() const { return violation_; }

 private:
  static constexpr uint32_t kSegmentsMax = 32;
  struct Region {
    uint64_t addr = 0, length = 0;
    bool is_live = false;
  };
  struct Job {
    uint64_t cookie = 0;
    bool is_fence = false;
    bool is_done = false;  // only the result is to be reported
    transport::DmaStatus status = transport::DmaStatus::kOk;
    uint64_t original = 0;
    transport::DmaRequest request;
    uint16_t source_count = 0;
    transport::DmaSegment source[kSegmentsMax];
    transport::DmaSegment destination[kSegmentsMax];
    std::vector<transport::LocalPiece> local_pieces;
    std::vector<std::byte> bytes;
  };
  struct Due {
    Instant due;
    uint64_t sequence;
    uint32_t job;
    bool operator>(const Due& other) const {
      return due != other.due ? due > other.due : sequence > other.sequence;
    }
  };
  struct StreamEnd {
    uint64_t stream;
    Instant due;
  };

  uint32_t AllocateJob();
  // The next job that is due, carried out; good until the next Submit. nullptr: none.
  const Job* TakeDue(Instant now, bool everything);
  void Schedule(Instant due, uint32_t job);
  bool IsReachable(const transport::DmaSegment& segment, uint64_t from, uint64_t bytes) const;
  bool MayMoveNow() const { return options_.moves_now && heap_.empty(); }
  void CarryOut(const transport::DmaRequest& request, transport::DmaStatus* status,
                uint64_t* original);
  transport::DmaStatus Copy(const transport::DmaRequest& request);

  Options options_;
  transport::sim::SimRandom random_;
  Instant now_;
  std::vector<Region> regions_;  // by id - 1
  uint32_t live_regions_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<uint32_t> free_jobs_;
  std::vector<Due> heap_;
  uint64_t sequence_ = 0;
  std::vector<StreamEnd> stream_ends_;
  Instant last_due_;
  std::vector<std::byte> bounce_;
  std::string violation_;
};

}  // namespace verbena::simulation

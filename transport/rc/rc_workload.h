// A random workload between two QPs and the oracles that judge it.
//
// Each side works on its own area of the peer's memory, in order; a model executes the same work
// one by one. Whatever the network did, the program must not be able to tell the two apart.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {

struct WorkloadOptions {
  uint32_t wqes_per_side = 40;
  uint32_t message_bytes_max = 6000;
  uint32_t receives_ahead_max = 4;  // few: receivers are often not ready
};

class RcWorkload {
 public:
  RcWorkload(uint64_t seed, const RcPairOptions& pair_options, const WorkloadOptions& options);

  // Runs with the link's faults for a while, then without. Returns what went wrong, or "".
  std::string Run(Duration faulty_time);
  // Completions, events and memory as text, to compare forms of the same run.
  std::string Outcome();
  RcPair& pair() { return pair_; }

 private:
  struct Side {
    MemoryId source = 0;  // what its WRITEs and SENDs carry
    MemoryId area = 0;    // in the peer: target of its WRITEs, READs and atomics
    MemoryId result = 0;  // where its READs and atomics land
    MemoryId inbox = 0;   // where its receives land
    std::vector<std::byte> area_model;
    std::vector<std::byte> result_model;
    std::vector<std::byte> inbox_model;
    uint32_t result_used = 0;
    uint32_t inbox_used = 0;  // by receives posted
    uint32_t receives_posted = 0;
    uint32_t receives_needed = 0;
    bool has_read_since_fence = false;
    std::vector<uint64_t> expected_sends;  // wr_ids that complete, in order
    std::vector<sim::SimCompletion> expected_receives;
    std::vector<sim::SimCompletion> sends, receives;  // as they came
  };

  void MakeWork(uint32_t side);
  void AddWrite(uint32_t side, uint64_t wr_id, bool with_imm);
  void AddRead(uint32_t side, uint64_t wr_id);
  void AddAtomic(uint32_t side, uint64_t wr_id);
  void AddAtomicWrite(uint32_t side, uint64_t wr_id);
  void AddFlush(uint32_t side, uint64_t wr_id);
  void AddSend(uint32_t side, uint64_t wr_id);
  void Push(uint32_t side, SendWork work);
  void ExpectReceive(uint32_t side, uint32_t bytes, uint32_t imm, uint16_t flags,
                     shm::WcOpcode opcode);
  std::vector<shm::Sge> RandomSges(MemoryId region, uint32_t offset, uint32_t length);
  void PostSome(uint32_t side);
  void CollectCompletions(uint32_t side);
  std::string Judge(uint32_t side);

  static constexpr uint32_t kAreaBytes = 16'384;
  static constexpr uint32_t kAtomicWords = 4;  // at the area's start
  WorkloadOptions options_;
  sim::SimRandom random_;
  RcPair pair_;
  Side sides_[2];
  std::deque<SendWork> to_post_[2];
};

}  // namespace verbena::transport::rc

// The DMA engine over process_vm_readv/writev: batches what may be batched, keeps each stream in
// order, and keeps clients whose memory hangs away from all others.
//
// Life of an operation: Submit puts it in a lane; RunBatch takes a unit of operations out of the
// lanes, round-robin, and carries it out on the leading thread. If the thread hangs, another one
// leads on (see crew.h): the process at fault is marked slow, the unit's streams are held back
// until it is done, and operations that touch a slow process go to a worker, one at a time per
// process.
//
// Thread: the leader, but for the counters.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "softnic/device/services.h"
#include "softnic/dma/assistant.h"
#include "softnic/dma/crew.h"
#include "softnic/dma/move_bytes.h"
#include "softnic/dma/payload_file.h"

namespace verbena::softnic {

// One session's side of the engine.
struct DmaSession {
  SessionId id = 0;
  TargetProcess* process = nullptr;
  bool reachable = false;
  // Operations in flight by fence epoch: each fence closes the epoch that was open.
  struct Epoch {
    uint64_t outstanding = 0;
    uint64_t fence_cookie = 0;
  };
  std::deque<Epoch> epochs{1};
  uint64_t first_epoch = 0;
  uint64_t outstanding = 0;
  uint32_t first_region = 0;  // index; 0: there is none
  std::shared_ptr<PayloadFile> payload;
  std::unique_ptr<Assistant> assistant;  // once opened, until the session is detached
};

class ProcessDma final : public DmaEngine {
 public:
  explicit ProcessDma(CopyCrew* crew);
  ~ProcessDma() override;

  // --- sessions ---------------------------------------------------------------------------------
  void AttachSession(SessionId session, pid_t pid);
  // The session's process has ended; its pid may be anybody's soon. Any thread may have learnt it.
  void MarkProcessDead(SessionId session);
  void SetReachable(SessionId session, bool reachable);
  // The session closes: nobody waits for its helper any more.
  void EndAssistance(SessionId session);
  bool IsIdle() const;                    // nothing is in flight
  bool IsIdle(SessionId session) const;   // nothing in flight touches it
  void DetachSession(SessionId session);  // precondition: IsIdle

  // Reads the first and the last byte of a range, without ever making the caller wait: whether the
  // memory is there is known when the probe is done. With `bytes` of 8 at most reads all of it.
  // `by_helper`: as AddRegion shall reach the range.
  void SubmitProbe(SessionId session, uint64_t addr, uint64_t bytes, uint64_t cookie,
                   bool by_helper = false);
  // Outcome for the AddRegion that the next command makes; AddRegion does not touch memory itself.
  void SetProbed(int error) { probed_error_ = error; }

  // --- DmaEngine --------------------------------------------------------------------------------
  int OpenPayload(SessionId session, const uint64_t* known, uint32_t known_count, uint64_t* out,
                  int* fd) override;
  int OpenAssist(SessionId session, int* file, int* socket) override;
  int AddRegion(SessionId session, const RegionSpec& spec, transport::MemoryId* out) override;
  int CopyRegion(transport::MemoryId region, transport::MemoryId* out) override;
  void RemoveRegion(transport::MemoryId region) override;
  void RelaxOrder(transport::MemoryId region) override;
  const char* BackendName(transport::MemoryId region) const override;
  void Submit(uint64_t stream, uint64_t cookie, const transport::DmaRequest& request) override;
  void ExpectMove(transport::MemoryId memory, uint64_t addr) override;
  bool MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
               uint32_t destination_count) override;
  bool ReadNow(const transport::Payload& source, std::byte* to) override;
  void Fence(SessionId session, uint64_t cookie) override;

  // --- progress ---------------------------------------------------------------------------------
  enum class Batch { kIdle, kWorked, kDeposed };
  // Carries out operations up to `budget_bytes` (and one unit's worth more). kDeposed: the calling
  // thread leads no more and must return without touching anything.
  Batch RunBatch(CopyThread& me, uint64_t budget_bytes);
  // Whether RunBatch would find something to do now.
  bool HasWork() const {
    return lane_mask_ != 0 || running_ != nullptr || attention_due_ || crew_->HasFinished();
  }
  // Enough waits for RunBatch to fill its units. Submit takes more, which only waits longer, and
  // in memory that has gone cold when its turn comes. What waits for a slow process is not counted.
  bool IsFull() const { return queued_ >= kQueuedMax; }
  static constexpr uint32_t kQueuedMax = 16 * kUnitOpsMax;
  // Whether PollDone or PollFence would: what was mapped may be done as soon as it was submitted,
  // and a fence that has nothing to wait for is.
  bool HasDone() const { return !done_.empty() || !fences_.empty(); }
  // Some copy hangs: the next RunBatch shall look after slow processes.
  void RequestAttention() { attention_due_ = !slow_.empty(); }

  struct Done {
    uint64_t cookie;
    transport::DmaStatus status;
    uint64_t atomic_original;
    DmaFault fault;
  };
  struct ProbeDone {
    uint64_t cookie;
    int error;
    uint64_t word;
  };
  bool PollDone(Done* out);
  bool PollFence(uint64_t* cookie);
  bool PollProbe(ProbeDone* out);

  uint64_t process_bytes() const { return crew_->bytes_moved(); }
  uint64_t assisted_bytes() const { return crew_->assisted_bytes(); }
  uint64_t mapped_bytes() const { return mapped_bytes_.load(std::memory_order_relaxed); }
  uint64_t operations() const { return operations_; }
  uint64_t units() const { return units_executed_; }
  // How many operations have waited for RunBatch at once.
  uint32_t queued_most() const { return queued_most_; }
  uint32_t slow_processes() const { return static_cast<uint32_t>(slow_.size()); }

 private:
  static constexpr uint32_t kLanes = 64;  // one bit each in lane_mask_
  static constexpr uint32_t kStreakMax = 1u << 14;
  // What moves within Submit before results are taken: some microseconds, as a turn's copies by
  // system calls take. The rest goes by turns.
  static constexpr uint64_t kAtOnceBytesMax = 256 * 1024;
  static uint32_t LaneOf(uint64_t stream) {
    static_assert(kLanes == 64, "six bits are kept");
    // Fibonacci hashing: neighbouring stream numbers land in different lanes.
    return static_cast<uint32_t>((stream * 0x9e37'79b9'7f4a'7c15ull) >> 58);
  }

  // Client memory that is mapped here, too.
  struct MappedPart {
    uint64_t addr = 0;
    uint64_t bytes = 0;
    std::byte* base = nullptr;
    PayloadWindow* window = nullptr;
  };
  struct Region {
    DmaSession* session = nullptr;
    uint64_t addr = 0;
    uint64_t length = 0;
    uint8_t generation = 0;
    Assistant* assistant = nullptr;     // who reaches what is not in the parts; the session's
    std::shared_ptr<PayloadFile> file;  // of the parts
    std::vector<MappedPart> parts;      // ascending
    bool is_relaxed = false;            // RelaxOrder
    // Indices of the session's others; 0: there are no more. A session's end costs what it has.
    uint32_t next = 0;
    uint32_t previous = 0;
  };
  struct Lane {
    DmaOp* first = nullptr;
    DmaOp* last = nullptr;
  };
  struct BlockedStream {
    uint32_t held = 0;           // operations out of the leader's hands
    std::deque<DmaOp*> waiting;  // later ones, in order
  };

  // process_dma.cc
  DmaSession* FindSession(SessionId session) const;
  static Assistant* AssistantFor(const DmaSession& session, bool by_helper);
  const Region* FindRegion(transport::MemoryId region) const;
  Region* NewRegion(transport::MemoryId* out);
  void GiveRegion(Region* region, DmaSession* session);
  int AddNicRegion(const RegionSpec& spec, transport::MemoryId* out);
  struct PieceList {
    std::vector<iovec>* pieces;
    std::vector<bool>* here;
    bool* is_mapped;
    MoveOrder* order;  // of writes there
    Assistant** assistant;
  };
  bool ResolvePieces(const transport::DmaSegment* segments, uint32_t count, uint64_t offset,
                     uint64_t length, const PieceList& out, DmaSession** session,
                     bool* uses_nic_memory);
  void ResolveCopy(const transport::DmaRequest& request, DmaOp* op);
  void ResolveAtomic(const transport::DmaRequest& request, DmaOp* op);
  DmaOp* NewOp();
  void FreeOp(DmaOp* op);
  void HoldSession(DmaOp* op, int slot, DmaSession* session);
  void ReleaseHolds(DmaOp* op);
  void ReleaseHold(DmaOp::Hold* hold);
  void CountQueued();
  void Enqueue(DmaOp* op);
  void PushFront(DmaOp* op);
  void Report(DmaOp* op);

  // mapped_path.cc
  int MapParts(const RegionSpec& spec, DmaSession* session, Region* region);
  static void UnmapParts(Region* region);
  bool FindMapped(const Region& region, uint64_t addr, uint64_t bytes);
  bool FindMapped(const transport::DmaSegment* segments, uint32_t count, uint64_t bytes,
                  MoveOrder* order);
  bool MayMoveNow() const { return !HasWork() && blocked_.empty() && done_.empty(); }
  bool MoveToMapped(const transport::Payload& source, MoveOrder order);
  bool MovesAtOnce(const DmaOp& op) const;
  void MoveMapped(DmaOp* op, uint64_t bytes_max);
  void RunMapped(uint32_t lane, uint64_t* bytes);

  // batch.cc
  CopyUnit* NewUnit();
  DmaOp* PopLane(uint32_t lane);
  bool BuildUnit(CopyUnit* unit, uint64_t* mapped_bytes);
  bool TakeFromLane(uint32_t lane, CopyUnit* unit, uint64_t* bytes, uint32_t* reads,
                    uint32_t* writes);
  bool Fits(const CopyUnit& unit, const DmaOp& op) const;
  void RetireUnit(CopyUnit* unit);

  // slow_path.cc
  void AdoptHungUnit();
  void MarkSlow(TargetProcess* process);
  bool HasProvenFast(const TargetProcess& process) const;
  bool DivertIfHeldBack(uint32_t lane);
  void CollectFinished();
  void RunSlow();
  bool StartSlow(TargetProcess* process);
  void ReleaseHungCharges();
  bool MayHang(const TargetProcess& process) const;
  void RevokeForFences();
  void RevokeQueued(DmaOp* op);
  void ReportRevoked(TargetProcess* process);
  void RevokeUnit(CopyUnit* unit);
  void RevokeBehind(uint64_t stream);
  void Unblock(uint64_t stream);

  CopyCrew* crew_;
  DmaSession* nic_session_ = nullptr;  // whose memory is no process's
  std::unordered_map<SessionId, std::unique_ptr<DmaSession>> sessions_;
  std::vector<std::unique_ptr<TargetProcess>> processes_;
  std::vector<Region> regions_;  // index 0 is never used
  std::vector<uint32_t> free_regions_;
  int probed_error_ = 0;

  std::deque<DmaOp> op_storage_;
  DmaOp* free_ops_ = nullptr;
  std::array<Lane, kLanes> lanes_;
  uint64_t lane_mask_ = 0;  // lanes with operations
  uint32_t next_lane_ = 0;
  uint32_t queued_ = 0;  // in all lanes
  uint32_t queued_most_ = 0;

  std::deque<CopyUnit> unit_storage_;
  std::vector<CopyUnit*> free_units_;
  CopyUnit* running_ = nullptr;       // in the leader's hands; survives its being deposed
  std::vector<CopyUnit*> out_units_;  // in others' hands
  std::vector<CopyUnit*> finished_;
  std::unordered_map<uint64_t, BlockedStream> blocked_;
  std::vector<TargetProcess*> slow_;
  bool attention_due_ = false;
  uint32_t waiting_fences_ = 0;

  std::deque<Done> done_;
  std::deque<uint64_t> fences_;
  std::deque<ProbeDone> probes_;
  uint64_t operations_ = 0;
  uint64_t units_executed_ = 0;
  std::vector<iovec> mapped_pieces_;  // of the list being resolved, in our addresses
  uint64_t at_once_bytes_ = 0;        // moved within Submit since there was no result to take
  std::atomic<uint64_t> mapped_bytes_{0};
};

}  // namespace verbena::softnic

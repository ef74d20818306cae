// One run: hosts on a network in virtual time, programs that work by a plan, and the judge of all
// that they see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/simulation/flow.h"
#include "tests/simulation/host.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/receiver.h"
#include "tests/simulation/wire_watch.h"
#include "transport/port/sim/sim_network.h"

namespace verbena::simulation {

// Memory of the simulated programs, taken again by each run.
class Arena {
 public:
  explicit Arena(uint64_t bytes) : bytes_(bytes), memory_(new std::byte[bytes]) {}
  std::byte* Take(uint64_t bytes);
  void Reset() { used_ = 0; }
  uint64_t used() const { return used_; }

 private:
  uint64_t bytes_;
  uint64_t used_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

// What outlives a run for the sake of its memory.
struct Stage {
  transport::sim::SimNetwork network{0, {}};
  Arena arena{128u << 20};
};

struct SharedWord {
  std::vector<bool> seen;  // originals that successful requests were told
  uint64_t succeeded = 0;
  uint64_t tried = 0;
};

struct ClientState {
  Client* client = nullptr;
  bool is_lazy = false;
  Region shared;  // words for atomics of all peers
  std::vector<SharedWord> words;
  std::vector<End*> ends;
  std::unique_ptr<Receiver> srq_receiver;
  shm::Handle srq = 0;
  bool is_crashed = false;
  bool is_poisoned = false;  // its memory, since nothing may touch it any more
};

struct Destination {
  shm::Handle ah = 0;
  End* end = nullptr;  // nullptr: the group
};

// A QP and all that belongs to it.
struct End {
  uint32_t number = 0;
  Service service = Service::kRc;
  uint32_t mtu_bytes = 0;
  bool has_srq = false;
  bool sq_sig_all = false;
  bool is_member = false;  // of the group
  EndPlan plan;
  uint32_t message_bytes_max = 0;
  ClientState* client_state = nullptr;
  Client* client = nullptr;
  QueuePair qp;
  End* peer = nullptr;  // connected services
  std::vector<Destination> destinations;
  std::unique_ptr<Flow> flow;  // what it sends
  std::unique_ptr<Receiver> own_receiver;
  Receiver* receiver = nullptr;
  bool has_failed = false;                           // its QP left the states in which it works
  bool must_fail = false;                            // it was flushed before anything told why
  bool has_reason = false;                           // something told why
  std::unordered_map<uint32_t, uint32_t> datagrams;  // how often each came, by Flow::ImmOf
  std::vector<std::string> send_outcome, receive_outcome;  // if the world keeps outcomes

  Flow* incoming() const { return peer == nullptr ? nullptr : peer->flow.get(); }
  // What the peer was told to send wrong is reason enough to fail.
  bool HasFaultyPeer() const { return peer != nullptr && peer->flow->bad_is_posted(); }
};

struct RunStats {
  uint64_t qps = 0, wqes = 0, succeeded = 0, completions = 0, receives = 0, failed_ends = 0,
           steps = 0;
  uint64_t receive_wqes = 0;  // wqes: of send queues
  transport::sim::SimNetworkCounters network;
  uint64_t icrc_errors = 0;
  Instant end;
};

class World {
 public:
  static constexpr uint32_t kInlineBytes = 128;
  static constexpr uint32_t kSharedWords = 4;
  static constexpr uint32_t kQkey = 0x1234;
  static constexpr int kPoison = 0xdd;
  static constexpr uint32_t kDatagramBytesMax = 2048;
  // Memory and limits are looked at so often.
  static constexpr uint64_t kStepsPerCheck = 512;

  struct Options {
    bool keeps_trace = false;
    bool keeps_outcomes = false;
    bool is_paced = false;  // unreliable messages go one by one, so that none is lost
  };

  World(const Plan& plan, Stage* stage, const Options& options);
  ~World();

  // False: something is wrong, see violation().
  bool Run();
  const std::string& violation() const { return violation_; }
  uint64_t digest() const { return digest_; }
  const std::deque<std::string>& trace() const { return trace_; }
  const RunStats& stats() const { return stats_; }
  std::string Outcome() const;

  // --- for flows and receivers ------------------------------------------------------------------
  const Plan& plan() const { return plan_; }
  bool is_paced() const { return options_.is_paced; }
  Instant now() const { return now_; }
  void Violate(const std::string& what);
  std::byte* scratch() { return scratch_.data(); }
  std::byte* Allocate(uint32_t bytes) { return stage_->arena.Take(bytes); }
  Flow* FindFlow(uint32_t id) const { return id < flows_.size() ? flows_[id] : nullptr; }
  Gid GidOf(const End& end, bool is_ipv6) const {
    return GidOf(plan_.clients[end.plan.client], is_ipv6);
  }
  Gid GroupGid() const;
  void NoteShared(End* end, uint32_t word, uint64_t original);
  void OnEndFailed(End* end);
  bool IsLossy(const End& end) const;

 private:
  void BuildHosts();
  void BuildClients();
  void BuildEnds();
  void AddEnd(const EndPlan& plan, Service service, uint32_t mtu_bytes, uint32_t message_bytes_max);
  void BringUp(End& end, const PairPlan* pair, const Gid& dgid);
  void SetUpReceivers(ClientState& state);
  Gid GidOf(const ClientPlan& client, bool is_ipv6) const;

  bool Advance();
  void DriveHost(Host& host);
  bool DriveClients(Host& host);
  bool PollCq(ClientState& state);
  void OnCqe(ClientState& state, const shm::Cqe& cqe);
  void CheckEvents(ClientState& state);
  bool PostWork(ClientState& state);
  bool WantsToPost(const ClientState& state) const;
  void ApplyIncidents();
  Instant NextIncident() const;
  void Crash(ClientState& state);
  void Stop(End& end);
  void PoisonCrashed();
  void CheckHeld(ClientState& state);
  void CheckPoison(const ClientState& state);
  bool LacksReason(const End& end) const;
  bool IsFinished() const;
  std::string Unfinished() const;
  void CheckEnd();
  void CheckNow();
  void CheckUsage(const Host& host);
  void CheckShared(ClientState& state);
  void NoteOutcome(End& end, const shm::Cqe& cqe);
  void CloseAll();
  void Trace(const std::string& line);
  void ObservePackets();
  void TracePacket(transport::sim::SimPacketFate fate, const transport::sim::SimPacket& packet,
                   uint32_t to);

  const Plan plan_;
  const Options options_;
  Stage* const stage_;
  transport::sim::SimRandom random_;
  Instant now_{1'000};
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<ClientState>> clients_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<Flow*> flows_;
  std::vector<std::unique_ptr<WorkQueueProducer>> srq_rings_;
  std::vector<std::byte> scratch_;
  WireWatch wire_watch_{this};
  uint64_t checked_steps_ = 0;
  bool is_quiet_ = false;
  bool has_crashed_ = false;
  uint32_t incidents_done_ = 0;
  struct Incident {
    Instant at;
    enum class Kind : uint8_t { kQuiet, kPause, kResume, kPortDown, kPortUp, kStop, kCrash } kind;
    uint32_t host = 0, nic = 0;
    Instant until;
  };
  std::vector<Incident> incidents_;  // in order

  std::string violation_;
  uint64_t digest_ = 0;
  std::deque<std::string> trace_;
  RunStats stats_;
};

}  // namespace verbena::simulation

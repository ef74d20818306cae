// A device with clients in plain memory: what the daemon, the shims and the processes would do,
// step by step and in one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/ring/completion_queue.h"
#include "core/ring/work_queue.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic::testing {

// An engine that waits to be told: nothing happens inside Submit.
class SteppedDma : public DmaEngine {
 public:
  // Carries out and reports the oldest request or due fence. False: nothing, or it is held.
  virtual bool Step(DeviceCore& device, Instant now) = 0;
};

// Copies between addresses of this process; Step() passes over requests that are held.
class FakeDma final : public SteppedDma {
 public:
  struct Region {
    SessionId session;
    uint64_t addr, length;
    bool is_relaxed = false;
  };

  int AddRegion(SessionId session, const RegionSpec& spec, transport::MemoryId* out) override;
  int CopyRegion(transport::MemoryId region, transport::MemoryId* out) override;
  void RemoveRegion(transport::MemoryId region) override { regions.erase(region); }
  void RelaxOrder(transport::MemoryId region) override { regions.at(region).is_relaxed = true; }
  const char* BackendName(transport::MemoryId region) const override { return "fake"; }
  void Submit(uint64_t stream, uint64_t cookie, const transport::DmaRequest& request) override;
  void ExpectMove(transport::MemoryId memory, uint64_t addr) override { expected.push_back(addr); }
  bool MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
               uint32_t destination_count) override;
  bool ReadNow(const transport::Payload& source, std::byte* to) override;
  void Fence(SessionId session, uint64_t cookie) override;

  bool Step(DeviceCore& device, Instant now) override;

  std::map<transport::MemoryId, Region> regions;
  bool is_held = false;                                       // requests wait (a slow client)
  SessionId held_session = 0;                                 // only those that touch it wait
  int add_error = 0;                                          // what AddRegion says
  std::function<bool(SessionId, const RegionSpec&)> may_add;  // if set; else EFAULT
  uint64_t bad_addr = 0;                                      // a page that is gone
  DmaFault fault = DmaFault::kMemory;                         // ... why
  uint32_t revoked = 0;                                       // so many of the next requests are
  std::vector<uint64_t> streams;                              // of all submissions
  bool moves_now = false;                                     // MoveNow and ReadNow may
  uint64_t moved_now = 0;                                     // how often it did
  std::vector<uint64_t> expected;                             // what ExpectMove was told
  std::function<void()> on_submit, on_move_now;               // if set

 private:
  struct Job {
    bool is_fence = false;
    SessionId fence_session = 0;
    uint64_t cookie = 0;
    transport::DmaRequest request;
    std::vector<transport::DmaSegment> source, destination;
    std::vector<transport::LocalPiece> local_pieces;
    std::vector<std::byte> bytes;
  };
  static Job JobOf(const transport::DmaRequest& request);
  bool Touches(const Job& job, SessionId session) const;
  // Copies out of, or into, a segment list. False: a fault.
  bool Gather(const Job& job, std::vector<std::byte>* out) const;
  bool Scatter(const Job& job, const std::vector<std::byte>& bytes) const;
  bool IsReachable(transport::MemoryId memory, uint64_t addr, uint64_t length) const;
  void CarryOut(const Job& job, DeviceCore& device, Instant now);

  std::deque<Job> jobs_;
};

struct Completed {
  int error = -1;  // -1: not finished
  std::vector<uint8_t> reply;
};

// A client's side of the daemon: heap memory for queues, lists for fds.
class FakeServices final : public SessionServices {
 public:
  ~FakeServices() override;
  int AllocateQueue(uint64_t bytes, QueueMemory* out) override;
  void FreeQueue(const QueueMemory& queue) override;
  void OpenDoorbells(uint32_t page, const QueueMemory& memory) override { pages.insert(page); }
  void CloseDoorbells(uint32_t page) override { pages.erase(page); }
  int OpenChannel(shm::Handle channel) override;
  void CloseChannel(shm::Handle channel) override { open_channels.erase(channel); }
  int SendPayload(int fd) override { return 0; }
  int MakeMemory(uint64_t bytes, std::shared_ptr<NicMemory>* out) override;
  int SendMemory(shm::Handle dm, const NicMemory& memory) override {
    sent_memory[dm] = memory.data;
    return send_error;
  }
  bool SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) override;
  bool SendAsyncEvent(const shm::AsyncEventMessage& event) override;
  void CompleteCommand(uint32_t slot, uint32_t submitted, int error, const void* payload,
                       uint32_t payload_bytes, uint32_t detail) override;

  struct Block {
    void* memory;
    uint64_t bytes;
  };
  std::map<uint64_t, Block> queues;  // by offset, which is the number of the allocation
  uint64_t next_queue = 1;
  int allocate_error = 0;
  uint32_t allocations_before_error = 0;  // that many succeed first
  std::set<uint32_t> pages;               // doorbell pages of thread domains
  std::map<shm::Handle, std::deque<shm::ChannelEvent>> open_channels;
  int open_error = 0;
  int send_error = 0;
  static inline int live_memories = 0;            // all clients have
  std::map<shm::Handle, std::byte*> sent_memory;  // what the client would map
  std::deque<shm::AsyncEventMessage> async_events;
  size_t fd_capacity = 1'000;               // messages an fd holds
  uint32_t refused_events = 0;              // that found their fd full
  std::map<uint32_t, Completed> completed;  // by slot
};

struct TestCq {
  shm::Handle handle = 0;
  CqConsumer ring;
};
struct TestSrq {
  shm::Handle handle = 0;
  shm::CreateSrqReply reply{};
  WorkQueueProducer ring;
};
struct TestQp {
  shm::Handle handle = 0;
  Qpn qpn;
  shm::CreateQpReply reply{};
  WorkQueueProducer sq;
  WorkQueueProducer rq;
};
struct TestMr {
  shm::Handle handle = 0;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
};
// A CQE as a value.
struct Wc {
  uint64_t wr_id = 0;
  WcStatus status = WcStatus::kSuccess;
  shm::WcOpcode opcode = shm::WcOpcode::kSend;
  uint32_t byte_len = 0, qpn = 0, src_qpn = 0, imm = 0, vendor_err = 0, qp_handle = 0, place = 0;
  uint16_t flags = 0;
  uint32_t recv_offset = 0;
  bool is_send = false;
  uint64_t timestamp_ns = 0;
};

// What the two ends of a connection agree on; as most tests have it, unless they say otherwise.
struct PathAttr {
  uint8_t path_mtu = 3;  // 1024 bytes
  uint32_t own_psn = 0x123456;
  uint32_t peer_psn = 0x123456;
  uint8_t min_rnr_timer = 1;
  uint8_t rnr_retry = 2;
};

class TestWorld;

// One session, with the steps a shim would take.
class TestClient {
 public:
  // With `joins` in its context.
  TestClient(TestWorld& world, uint32_t nic, SessionId joins = 0);

  // Runs a command to its end. Replies that are shorter than `Reply` leave the rest zero.
  template <typename Reply, typename Request>
  int Execute(shm::CommandOp op, const Request& request, Reply* reply) {
    return ExecuteRaw(op, &request, sizeof(request), reply, sizeof(*reply));
  }
  int ExecuteRaw(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
                 uint32_t reply_bytes);
  // Hands a command over without waiting; its result stands in services.completed[slot].
  uint32_t Begin(shm::CommandOp op, const void* request, uint32_t bytes);
  int DoHandle(shm::CommandOp op, shm::Handle handle) {
    shm::HandleRequest request{handle, 0};
    return ExecuteRaw(op, &request, sizeof(request), nullptr, 0);
  }
  bool IsDone(uint32_t slot) const {
    auto it = services.completed.find(slot);
    return it != services.completed.end() && it->second.error >= 0;
  }

  shm::Handle AllocPd();
  int RegMr(shm::Handle pd, void* addr, uint64_t length, uint32_t access, TestMr* out);
  TestMr MustRegMr(void* addr, uint64_t length, uint32_t access);
  shm::Handle CreateChannel();
  int CreateCq(uint32_t entries, shm::Handle channel, TestCq* out, uint32_t flags = 0);
  TestCq MustCreateCq(uint32_t entries = 64, shm::Handle channel = 0);
  int CreateSrq(uint32_t max_wr, uint32_t max_sge, TestSrq* out, uint32_t flags = 0);
  shm::CreateQpRequest QpRequest(Service service, shm::Handle cq) const;
  int CreateQp(const shm::CreateQpRequest& request, TestQp* out);
  TestQp MustCreateQp(Service service, const TestCq& cq);
  int Modify(const TestQp& qp, const shm::QpAttr& attr, uint32_t mask);
  int ToReset(TestQp& qp);
  int ToInit(const TestQp& qp, Service service);
  int ToRtr(const TestQp& qp, Service service, const Gid& dgid, Qpn remote,
            const PathAttr& path = {});
  int ToRts(const TestQp& qp, Service service, const PathAttr& path = {});
  int ToError(const TestQp& qp);
  QpState StateOf(const TestQp& qp);
  shm::Handle CreateAh(const Gid& dgid);

  void Post(TestQp& qp, const shm::SendWqe& wqe, const std::vector<shm::Sge>& sges);
  void PostInline(TestQp& qp, shm::SendWqe wqe, const std::string& bytes);
  // Fills and publishes without ringing.
  static void Fill(WorkQueueProducer& ring, uint64_t wr_id, const std::vector<shm::Sge>& sges);
  void PostRecv(TestQp& qp, uint64_t wr_id, const std::vector<shm::Sge>& sges);
  void PostSrqRecv(TestSrq& srq, uint64_t wr_id, const std::vector<shm::Sge>& sges);
  void Ring(const TestQp& qp);
  // One CQE, consumed.
  std::optional<Wc> Poll(TestCq& cq);
  std::vector<Wc> PollAll(TestCq& cq);
  std::vector<EventType> TakeAsyncEvents();
  std::byte* MapQueue(const shm::QueuePlace& place);

  TestWorld& world;
  uint32_t nic;
  FakeServices services;
  SessionId id = 0;
  shm::Handle pd = 0;  // made at start

 private:
  uint32_t next_slot_ = 0;
};

class TestWorld {
 public:
  // With `other_dma` the device has that engine, and `dma` is idle.
  explicit TestWorld(uint32_t nics = 2, DeviceLimits limits = {},
                     TransportFactory factory = MakeTransport, SteppedDma* other_dma = nullptr);
  ~TestWorld();

  // Runs the device and DMA until nothing moves (timers excepted).
  void Settle();
  // Lets time pass until the next timer. False: there is none.
  bool AdvanceToTimer();
  // Settles and advances until `done`, at most `limit` timers.
  template <typename Done>
  bool RunUntil(Done done, int limit = 200) {
    for (int i = 0; i < limit; ++i) {
      Settle();
      if (done()) return true;
      if (!AdvanceToTimer()) return done();
    }
    return false;
  }
  TestClient& AddClient(uint32_t nic = 0, SessionId joins = 0);
  void Close(TestClient& client);
  static Gid GidOf(uint32_t nic) { return Gid::FromIpv4(0x7f00'0001 + nic); }
  static NicConfig ConfigOf(uint32_t nic);

  Instant now{1'000};
  // What a clock shows when something completes: later than the turn began.
  static constexpr Duration kIntoTurn{7};
  FakeDma dma;
  SteppedDma* const engine;  // what the device has
  std::unique_ptr<DeviceCore> device;
  std::vector<std::unique_ptr<TestClient>> clients;
};

// Connects two QPs, and leaves both in RTS.
void Connect(TestClient& a, TestQp& qp_a, TestClient& b, TestQp& qp_b, Service service);

// Two sessions on two NICs with a QP each, connected to each other, and memory that outlives what
// DMA may be under way at the end.
template <size_t kBytes = 4'096>
struct TestPair {
  explicit TestPair(Service service = Service::kRc, uint32_t nics = 2)
      : world(nics),
        a(world.AddClient(0)),
        b(world.AddClient(1)),
        cq_a(a.MustCreateCq()),
        cq_b(b.MustCreateCq()),
        qp_a(a.MustCreateQp(service, cq_a)),
        qp_b(b.MustCreateQp(service, cq_b)) {
    Connect(a, qp_a, b, qp_b, service);
  }

  alignas(64) uint8_t memory_a[kBytes] = {};
  alignas(64) uint8_t memory_b[kBytes] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
};

// A work request with the fields all kinds share.
shm::SendWqe MakeWqe(shm::WrOpcode opcode, uint64_t wr_id, uint8_t flags = shm::kSendSignaled);
shm::Sge SgeOf(const void* addr, uint32_t length, uint32_t lkey);

}  // namespace verbena::softnic::testing

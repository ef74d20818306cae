// A simulated host: one device with its DMA engine and ports, and the programs that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ring/completion_queue.h"
#include "core/ring/work_queue.h"
#include "core/shm/command.h"
#include "softnic/device/device.h"
#include "tests/simulation/dma.h"
#include "transport/port/sim/sim_network.h"

namespace verbena::simulation {

struct Host;

struct Region {
  std::byte* memory = nullptr;
  uint32_t bytes = 0;
  uint64_t iova = 0;  // the same in each run, where addresses of this process are not
  uint32_t key = 0;   // lkey and rkey
};

struct QueuePair {
  shm::Handle handle = 0;
  Qpn qpn;
  uint32_t doorbell = 0;
  WorkQueueProducer sq, rq;
};

// One program: a session, its objects, and what the daemon would do for it.
class Client final : public softnic::SessionServices {
 public:
  Client(Host* host, uint32_t index, uint32_t nic, Instant now);
  ~Client() override;

  int Execute(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
              uint32_t reply_bytes);
  template <typename Reply, typename Request>
  Reply Must(shm::CommandOp op, const Request& request) {
    Reply reply{};
    MustRaw(op, &request, sizeof(request), &reply, sizeof(reply));
    return reply;
  }
  void MustRaw(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
               uint32_t reply_bytes);

  Region Register(std::byte* memory, uint32_t bytes, uint32_t access);
  shm::Handle CreateCq(uint32_t entries);
  shm::Handle CreateSrq(uint32_t max_wr, uint32_t max_sge, WorkQueueProducer* ring);
  QueuePair CreateQp(const shm::CreateQpRequest& request);
  void Modify(const QueuePair& qp, const shm::QpAttr& attr, uint32_t mask);
  void Attach(const QueuePair& qp, const Gid& group);
  shm::Handle CreateAh(const Gid& dgid, uint8_t sgid_index);
  void Ring(const QueuePair& qp, Instant now);
  void Close(Instant now);

  // --- softnic::SessionServices -----------------------------------------------------------------
  int AllocateQueue(uint64_t bytes, softnic::QueueMemory* out) override;
  void FreeQueue(const softnic::QueueMemory& queue) override;
  void OpenDoorbells(uint32_t, const softnic::QueueMemory&) override {}
  void CloseDoorbells(uint32_t) override {}
  int OpenChannel(shm::Handle channel) override { return 0; }
  void CloseChannel(shm::Handle channel) override {}
  int SendPayload(int fd) override { return 0; }
  bool SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) override {
    return true;
  }
  bool SendAsyncEvent(const shm::AsyncEventMessage& event) override {
    events.push_back(event);
    return true;
  }
  void CompleteCommand(uint32_t slot, uint32_t submitted, int error, const void* payload,
                       uint32_t payload_bytes, uint32_t detail) override;

  Host* const host;
  const uint32_t index;  // over all hosts
  const uint32_t nic;
  softnic::SessionId session = 0;
  bool is_closed = false;
  shm::Handle pd = 0;
  shm::Handle cq_handle = 0;
  CqConsumer cq;
  uint32_t cq_entries = 0;
  std::vector<shm::AsyncEventMessage> events;
  std::vector<Region> regions;  // all it has registered
  uint32_t live_queues = 0;

 private:
  struct Queue {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
  };
  std::vector<Queue> queues_;  // by offset
  uint64_t next_iova_;
  bool is_done_ = false;
  int error_ = 0;
  uint32_t reply_bytes_ = 0;
  uint8_t reply_[shm::kCommandPayloadBytes];
};

struct Host {
  Host(uint32_t host_index, const softnic::DeviceConfig& config, uint64_t seed,
       const SimDma::Options& dma_options)
      : index(host_index), dma(seed, dma_options), device(config, &dma) {}

  const uint32_t index;
  Instant now;
  SimDma dma;
  softnic::Device device;
  std::vector<transport::sim::SimNetworkPort*> ports;  // by NIC
  std::vector<std::unique_ptr<Client>> clients;
  Instant paused_until;
  Instant wake = Instant::Never();  // its programs want to do something
};

}  // namespace verbena::simulation

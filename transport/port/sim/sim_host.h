// Memory and queues of a simulated process: what a QP asks of its device, in plain containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/shm/layout.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"

namespace verbena::transport::sim {

// All memory of a simulation. A region's key serves as LKey and RKey; its MemoryId is its index.
class SimMemory {
 public:
  struct Region {
    uint64_t addr = 0;
    uint32_t access = 0;
    uint32_t key = 0;
    bool is_valid = true;  // false: deregistered or invalidated
    bool is_gone = false;  // valid, but its pages can't be reached
    std::vector<std::byte> bytes;
  };

  // Registers `length` zero bytes. Regions lie apart, so that a stray access hits none.
  MemoryId Register(uint32_t length, uint32_t access);
  Region& region(MemoryId id) { return regions_[id]; }
  uint32_t size() const { return static_cast<uint32_t>(regions_.size()); }
  Region* FindByKey(uint32_t key);
  shm::Sge SgeOf(MemoryId id, uint32_t offset, uint32_t length) const;

  // Bytes [offset, offset + length) of the segments' concatenation; false if some can't be reached.
  bool Read(const DmaSegment* segments, uint16_t count, uint64_t offset, uint32_t length,
            std::vector<std::byte>* out);
  bool Write(const DmaSegment* segments, uint16_t count, uint64_t offset, const std::byte* bytes,
             uint32_t length);
  // One atomic on the word at `target`; false if it can't be reached.
  bool Execute(const DmaRequest& request, const DmaSegment& target, uint64_t* original);

 private:
  std::byte* At(const DmaSegment& segment, uint64_t skip, uint64_t length);

  std::deque<Region> regions_;
};

class SimHost final : public QpHost {
 public:
  explicit SimHost(SimMemory* memory) : memory_(memory) {}

  FetchResult FetchSend(SendWork& out) override;
  FetchResult FetchRecv(RecvWork& out) override;
  bool HasRecv() override { return !recvs.empty(); }
  void ReleaseSend(uint32_t wqes) override { sends_released += wqes; }
  void ReleaseRecv(uint32_t wqes) override { recvs_released += wqes; }
  KeyFault ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                        DmaSegment* out, uint16_t* out_count) override;
  KeyFault ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                         DmaSegment* out) override;
  KeyFault CheckRemoteKey(RKey rkey, uint32_t access_needed) override;
  KeyFault Invalidate(RKey rkey) override;
  KeyFault BindWindow(const WindowBind& bind) override {
    binds.push_back(bind);
    return bind_fault;
  }
  bool SettleKeys(QpRole waiter) override { return keys_are_settled; }
  bool ResolveAh(uint32_t ah, Path* out) override { return false; }
  bool ResolveGid(GidIndex index, Gid* out) override;

  std::deque<SendWork> sends;
  std::deque<RecvWork> recvs;
  std::vector<WindowBind> binds;
  KeyFault bind_fault = KeyFault::kBadRKey;
  bool keys_are_settled = true;
  bool sq_lies = false;
  bool rq_lies = false;
  uint32_t sends_fetched = 0;
  uint32_t sends_released = 0;
  uint32_t recvs_fetched = 0;
  uint32_t recvs_released = 0;

 private:
  SimMemory* memory_;
};

}  // namespace verbena::transport::sim

// A QP's host for tests: work queues, memory regions and address handles in plain containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "transport/qp_host.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

// All memory of a test. A region's id is its MemoryId, its LKey and its RKey.
class ModelMemory {
 public:
  struct Region {
    uint64_t addr = 0;
    uint32_t access = 0;
    bool is_gone = false;  // registered, but the pages below are not there any more
    std::vector<std::byte> bytes;
  };

  // Registers `length` bytes at `addr`, all of value `fill`.
  uint32_t Register(uint64_t addr, uint32_t length, uint32_t access, uint8_t fill = 0);
  Region& region(uint32_t id) { return regions_.at(id); }
  Region* Find(uint32_t id);
  // Carries a copy out, as the DMA engine would.
  DmaStatus CarryOut(const DmaRequest& request);

 private:
  bool Read(const Payload& source, std::vector<std::byte>* out);

  std::map<uint32_t, Region> regions_;
  uint32_t next_id_ = 0x100;
};

class ModelHost final : public QpHost {
 public:
  explicit ModelHost(ModelMemory* memory) : memory_(memory) {}

  FetchResult FetchSend(SendWork& out) override;
  FetchResult FetchRecv(RecvWork& out) override;
  void ReleaseSend(uint32_t wqes) override { sends_released += wqes; }
  void ReleaseRecv(uint32_t wqes) override { recvs_released += wqes; }
  KeyFault ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                        DmaSegment* out, uint16_t* out_count) override;
  KeyFault ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                         DmaSegment* out) override;
  KeyFault Invalidate(RKey rkey) override {
    invalidated.push_back(rkey);
    return key_fault;
  }
  KeyFault BindWindow(const WindowBind& bind) override {
    binds.push_back(bind);
    return key_fault;
  }
  bool SettleKeys(QpRole waiter) override { return keys_are_settled; }
  bool ResolveAh(uint32_t ah, Path* out) override;
  bool ResolveGid(GidIndex index, Gid* out) override;

  std::deque<SendWork> sends;
  std::deque<RecvWork> recvs;
  std::map<uint32_t, Path> address_handles;
  std::vector<Gid> gids = {Gid::FromIpv4(0x7f00'0001)};
  // Of binds and invalidations: what is said to them, and those that came.
  KeyFault key_fault = KeyFault::kBadRKey;
  bool keys_are_settled = true;
  std::vector<WindowBind> binds;
  std::vector<RKey> invalidated;
  bool send_ring_lies = false;
  bool recv_ring_lies = false;
  uint32_t sends_released = 0;
  uint32_t recvs_released = 0;

 private:
  KeyFault Check(uint32_t key, uint64_t addr, uint64_t length, uint32_t access_needed,
                 DmaSegment* out) const;

  ModelMemory* memory_;
};

}  // namespace verbena::transport

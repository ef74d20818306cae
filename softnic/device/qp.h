// A QP as the device sees it: a transport, its two rings, and its place in the device's lists.
//
// Thread: the shard.   Trust: ring contents are the client's; each WQE is copied once, checked,
// and used from the copy.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/check.h"
#include "core/base/huge_page_pool.h"
#include "core/base/prefetch.h"
#include "core/ring/work_queue.h"
#include "softnic/device/intrusive_list.h"
#include "softnic/device/objects.h"
#include "softnic/device/qp_rate.h"
#include "softnic/device/services.h"
#include "softnic/device/tables.h"
#include "softnic/device/timer_heap.h"
#include "softnic/device/tx_queue.h"
#include "softnic/device/wire_ack.h"
#include "softnic/device/wire_peer.h"
#include "transport/port/local/held_pdu.h"
#include "transport/qp_transport.h"

namespace verbena::softnic {

class DeviceCore;
class Nic;

// A PDU that arrived when its destination could not take it.
struct Waiting {
  QpRef sender;
  bool blocks_sender = false;  // a request: its sender makes no further PDU until this one is taken
  bool is_from_wire = false;   // and has no sender here
  uint64_t use = 0;            // DeviceCore::PayloadUse
  transport::local::HeldPduPtr pdu;
};

// A move for a QP that was revoked, which its sender was not told; and what had been submitted when
// that was learnt.
struct RevokedMove {
  QpRef sender;
  transport::Opcode opcode = transport::Opcode::kSendOnly;
  Psn psn;
  uint64_t until = 0;  // DeviceQp::moves_submitted; 0: none was
};

// A rate limit, and the rests it takes.
struct RateControl {
  explicit RateControl(DeviceQp* qp) : rest(qp) {}

  RateLimit limit;
  Timer rest;  // set while the QP may send nothing
};

// Copies the next entry of a receive ring, which is there. False: it lies.
bool FetchRecvWork(WorkQueueConsumer& ring, uint32_t max_sge, transport::RecvWork* out);

class DeviceQp final : public transport::QpHost, public OnHugePages {
 public:
  explicit DeviceQp(DeviceCore* device_core)
      : device(device_core),
        ready_hook(this),
        send_cq_hook(this),
        recv_cq_hook(this),
        timer(this) {}

  // --- transport::QpHost ------------------------------------------------------------------------
  bool HasSend() override {
    return send_ring.Available() != WorkQueueConsumer::Peek::kEmpty || send_ring.is_staged();
  }
  transport::FetchResult FetchSend(transport::SendWork& out) override;
  transport::FetchResult FetchRecv(transport::RecvWork& out) override;
  bool HasRecv() override;
  void ReleaseSend(uint32_t wqes) override;
  void ReleaseRecv(uint32_t wqes) override;
  bool HasRoomToTell() override;
  void SettleRecv(const transport::RecvWork& work, uint64_t bytes) override;
  uint64_t ReopenRecv(const transport::RecvWork& work) override;
  void ReturnRecv(const transport::RecvWork& work) override;
  void OnPeerAccess(bool is_write, transport::MemoryId memory) override;
  transport::KeyFault ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                                   transport::DmaSegment* out, uint16_t* out_count) override;
  transport::KeyFault ResolveRemote(RKey rkey, uint64_t addr, uint64_t length,
                                    uint32_t access_needed, transport::DmaSegment* out) override;
  transport::KeyFault CheckRemoteKey(RKey rkey, uint32_t access_needed) override;
  transport::KeyFault Invalidate(RKey rkey) override;
  transport::KeyFault BindWindow(const transport::WindowBind& bind) override;
  bool SettleKeys(transport::QpRole waiter) override;
  bool ResolveDirect(const shm::Sge* sge, uint32_t num_sge, transport::DirectMove* move) override;
  bool MoveDirect(const transport::DirectMove& move, transport::QpHost& peer) override;
  bool ReadDirect(const transport::DirectMove& move, const shm::Sge* sge, uint32_t num_sge,
                  transport::QpHost& peer) override;
  bool ResolveAh(uint32_t ah, transport::Path* out) override;
  bool ResolveGid(GidIndex index, Gid* out) override;

  // Whether what peers do to memory is counted anywhere.
  bool CountsPeers() const { return counters.IsAny() || pd->counted_regions != 0; }
  // Ends a part of a receive that a completion is of, or was to be. Precondition: it has it.
  HeldReceive TakeHeld(uint64_t part_number);

  // Where receive WQEs come from: the SRQ's, if there is one.
  WorkQueueConsumer& receive_ring() { return srq != nullptr ? srq->ring : recv_ring; }
  EntryMemory& receive_entries() { return srq != nullptr ? srq->entries : recv_entries; }

  Service service() const { return config.service; }
  bool IsConnectedService() const { return config.service != Service::kUd; }
  // States in which packets for this QP are looked at at all.  Spec: IBTA 10.3.1.
  bool IsReceiving() const {
    QpState state = transport->state();
    return state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd ||
           state == QpState::kSqe;
  }

  // Events of one QP not yet given to the client; more are dropped, as nobody reads them.
  static constexpr uint32_t kMaxUndeliveredEvents = 8;

  // Asks for the lines of what a message in one step touches; of what others do besides.
  void Expect() const { PrefetchLines(this, &wire.bytes); }
  void ExpectRest() const { PrefetchLines(&recv_cq, &wire_epoch); }
  // For the line that its next message writes to first, if that is a WRITE. The client has it most
  // likely; a store would wait until it comes, and all stores after it.
  void ExpectMove(const DeviceQp& peer) const;
  // Of those of what a doorbell touches.
  void ExpectDoorbell() const {
    PrefetchForRead(this);
    PrefetchForRead(&transport);
    PrefetchForRead(&waiting);
    PrefetchForRead(&rate);
  }
  bool IsResting() const { return rate != nullptr && rate->rest.IsSet(); }

  // What a message touches comes first: with many QPs each of its lines comes from far away, and
  // costs as much as the work done on it (docs/bench.md, "What a QP costs").
  DeviceCore* const device;
  Session* session = nullptr;
  Nic* nic = nullptr;
  Pd* pd = nullptr;
  Cq* send_cq = nullptr;
  Place* place = nullptr;  // of a lane (core/shm/rdm.h): whose it is
  std::unique_ptr<transport::QpTransport> transport;
  ListHook<DeviceQp> ready_hook;
  QpRef self;
  Qpn qpn;
  bool is_in_drain = false;
  bool has_more_output = false;    // a drain stopped at its budget
  bool is_blocked = false;         // a request of this QP waits at its destination
  bool asks_for_receives = false;  // the client rings when it posts one: it is to be flushed
  std::list<Waiting> waiting;      // PDUs for this QP
  WorkQueueConsumer send_ring;
  PeerCounters counters;
  Instant last_used;  // of a lane: when a message came last
  // The peer of a connected QP, kept after a look-up as long as `peer_epoch` is the fabric's.
  QpRef peer;
  uint64_t peer_epoch = 0;
  std::unique_ptr<RateControl> rate;  // nullptr: it may send as fast as it can
  shm::Handle handle = 0;
  transport::QpConfig config;
  WireShare wire;

  // The rest.
  EntryMemory send_entries;
  Cq* recv_cq = nullptr;
  Srq* srq = nullptr;
  // DMA under way that reads what its requests and responses carry. In the error state nothing is
  // flushed before it is done: a program that has its buffer back may write to it.
  uint32_t reads_in_flight = 0;
  // DMA under way for its requests, or of its own placements.
  uint32_t moves_in_flight = 0;
  uint64_t stream = 0;                   // names this QP to the DMA engine; never reused
  uint64_t last_stream = 0;              // the connection's; 0: nothing moved yet
  uint64_t moves_submitted = 0;          // of its own placements, ever
  uint64_t counted_qkey_violations = 0;  // in the port's counter already
  uint64_t counted_access_disabled = 0;  // in the NIC's
  // As of the peer: it is at the other end of a network.
  uint64_t wire_epoch = 0;
  Td* td = nullptr;
  uint32_t doorbell = 0;
  uint64_t cookie = 0;
  uint32_t path_mtu_bytes = 0;    // of a connected QP, from RTR on
  std::vector<Gid> mcast_groups;  // attached to
  IntrusiveList<Mw> windows;      // of type 2, bound to it
  // The last bind or invalidation took a key away, to this session's memory.
  std::optional<SessionId> revoked_owner;
  // By QpRole: the fence it waits for after that.
  std::array<uint64_t, 2> settling{};
  uint32_t undelivered_events = 0;

  QueueMemory send_queue;
  QueueMemory recv_queue;
  WorkQueueConsumer recv_ring;
  EntryMemory recv_entries;

  TxQueue tx_requests;  // to the network
  TxQueue tx_responses;
  AckHold ack_hold;
  bool waits_for_tx = false;   // stopped making packets for want of room
  bool is_paced = false;       // in the device's list: has sent its part of this turn
  bool is_tx_stalled = false;  // in the device's list: its port had no room
  RevokedMove revoked;
  OtherOwners owners;                        // of what its DMA touched
  Instant held_up_since = Instant::Never();  // its ACK timer ran out, and is excused since then
  bool awaits_srq = false;                   // in the SRQ's list: PDUs wait for a WQE to be fetched
  bool has_lied = false;                     // counted once as a hostile act
  std::vector<HeldReceive> held;  // of a marked SRQ: parts of receives that its messages have
  // Of a lane: whose it is at the other end.
  LaneId lane = 0;
  uint32_t source = 0;

  ListHook<DeviceQp> send_cq_hook;
  ListHook<DeviceQp> recv_cq_hook;
  Timer timer;

 private:
  transport::KeyFault FindWindow(RKey rkey, const Mw** out) const;
  // What ResolveLocal, ResolveRemote and CheckRemoteKey say; they count what is refused.
  transport::KeyFault CheckLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                                 transport::DmaSegment* out, uint16_t* out_count) const;
  transport::KeyFault CheckRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                  transport::DmaSegment* out) const;
  transport::KeyFault CheckRights(RKey rkey, uint32_t access_needed) const;
  transport::KeyFault ResolveWindow(RKey rkey, uint64_t addr, uint64_t length,
                                    uint32_t access_needed, transport::DmaSegment* out) const;
  transport::FetchResult FetchFromRing(WorkQueueConsumer& ring, uint32_t max_sge,
                                       transport::RecvWork& out);
  transport::FetchResult FetchMarked(transport::RecvWork& out);
  HeldReceive* FindHeld(uint64_t part);
  const Mr* FindRegion(RKey rkey) const;
  // Nothing is available; more may be fetched from the program's memory, and is on its way then.
  transport::FetchResult Stage(EntryQueue queue);
  transport::FetchResult Lie();
};

// WRITEs in one step whose CQEs their client does not see yet (CqProducer::Hold). Their WQEs are
// released just before it does: what is neither completed nor released is flushed when the daemon
// dies.
struct HeldWrites {
  static constexpr uint32_t kMax = 8;
  Cq* cq = nullptr;  // of all of them; nullptr: none
  std::array<DeviceQp*, kMax> qps;
  uint32_t count = 0;

  void Add(Cq& its_cq, DeviceQp& qp) {
    VERBENA_CHECK(count < kMax);
    cq = &its_cq;
    qps[count++] = &qp;
  }
};

struct QpSlot {
  DeviceQp* qp = nullptr;
  uint32_t next_free = kNoIndex;
};

}  // namespace verbena::softnic

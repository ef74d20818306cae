// The device behind Device: its tables and the steps that work on them, one source file per object.
//
//   commands.cc  dispatch by CommandOp            fabric.cc   PDUs between QPs, the local port
//   pd mr mw cq srq ah channel mcast .cc  objects    schedule.cc turns, draining outputs, timers
//   qp_commands.cc  create, modify, destroy       events.cc   channel and asynchronous events
//   qp.cc  DeviceQp as its transport's host       show.cc     rows for `verbena show`
//   wire.cc  PDUs to packets and back             mcast.cc    multicast groups
//   entry_memory.cc  queues in memory of the program  gsi.cc  QP1
//   cq_moderation.cc  events that wait            qp_rate.cc  QPs that may not send fast
//   inject.cc  events on request          direct.cc  small messages in one step
//   rereg.cc dm.cc  other kinds of regions        sharing.cc  contexts of several sessions
//
// Invariants: every public call ends in Settle(), after which no QP has undrained outputs (but
// those marked has_more_output), no CQE is held, and no CQ has a completion whose arm word was not
// looked at. Thread: the shard.   Trust: commands, doorbells and rings are the client's.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "softnic/device/command.h"
#include "softnic/device/device.h"
#include "softnic/device/nic.h"
#include "softnic/device/objects.h"
#include "softnic/device/qp.h"
#include "softnic/device/services.h"
#include "softnic/device/session.h"
#include "softnic/device/tables.h"
#include "softnic/device/timer_heap.h"
#include "softnic/device/transports.h"
#include "softnic/device/tx_queue.h"
#include "transport/port/packet_port.h"

namespace verbena::softnic {

class DeviceCore {
 public:
  DeviceCore(DeviceConfig config, DmaEngine* dma, TransportFactory make_transport);
  ~DeviceCore();
  DeviceCore(const DeviceCore&) = delete;
  DeviceCore& operator=(const DeviceCore&) = delete;

  // --- Device's contract (device.h) -------------------------------------------------------------
  void AddNic(const NicConfig& config);
  std::vector<shm::NicInfo> ListNics() const;
  SessionId OpenSession(uint32_t nic, std::string program, int pid, SessionServices* services,
                        SessionId joins = 0);
  void AbandonSession(Instant now, SessionId session);
  void CloseSession(Instant now, SessionId session);
  bool SessionIsGone(SessionId session) const { return !sessions_.contains(session); }
  void OnCommand(Instant now, SessionId session, uint32_t slot, uint32_t submitted,
                 const shm::CommandRequest& request);
  bool OnDoorbell(Instant now, SessionId session, uint32_t doorbell);
  void ExpectDoorbell(SessionId session, uint32_t doorbell) const;
  uint32_t OnDoorbells(Instant now, SessionId session, const uint32_t* doorbells, uint32_t count);
  void OnDmaDone(Instant now, uint64_t cookie, transport::DmaStatus status,
                 uint64_t atomic_original, DmaFault fault = DmaFault::kMemory);
  void OnDmaFence(Instant now, uint64_t cookie);
  void OnTimeout(Instant now);
  void FlushEvents();
  bool Run(Instant now, uint32_t max_pdus);
  Instant PollTimeout() const;
  void AttachPort(uint32_t nic, transport::PacketPort* port);
  bool PollPorts(Instant now, uint32_t max_packets);
  bool FlushPorts(Instant now);
  bool ExpectsPackets() const { return is_mid_message_ || is_streaming_ || awaits_peer_room_; }
  bool PreparePortsToSleep();
  void SetMadHandler(MadHandler handler) { mad_handler_ = std::move(handler); }
  int SendMad(Instant now, uint32_t nic, const Gid& sgid, const Gid& dgid, const std::byte* bytes,
              size_t length);
  LaneAnswer MakeLane(Instant now, const LaneRequest& request);
  int ConnectSender(Instant now, const LaneSender& sender);
  void DropLane(Instant now, LaneId lane);
  void SetLaneEndHandler(LaneEndHandler handler) { lane_end_handler_ = std::move(handler); }
  void SetPortState(Instant now, uint32_t nic, bool is_up);
  void SetPortMtu(uint32_t nic, uint32_t mtu_bytes) { nics_[nic]->SetMtu(mtu_bytes); }
  std::vector<NicStatus> ListNicStatuses() const;
  std::string DescribePacket(uint32_t nic, const transport::wire::PacketAddress& address,
                             const transport::Pdu& pdu, bool is_sent) const;
  Qpn SourceQpnOf(uint32_t nic, const transport::wire::PacketAddress& address,
                  const transport::Pdu& pdu, bool is_sent) const;
  uint32_t InjectEvent(Instant now, const std::string& name, const EventTarget& target,
                       std::string* error);
  std::vector<ShowRow> Show(ShowKind kind) const;
  DeviceStats Stats() const;
  DeviceUsage Usage() const;

  // --- what DeviceQp calls back -----------------------------------------------------------------
  void CountHostileAct() { ++hostile_acts_; }
  void CountSendWqe() { ++send_wqes_; }
  Instant now() const { return now_; }
  // A receive WQE was taken out of `srq`.
  void OnSrqFetched(Srq& srq);
  void OnSrqLied(Srq& srq);
  // The QP's queue is empty here: entry_memory.cc.
  WorkQueueConsumer::Peek StageWqes(DeviceQp& qp, EntryQueue queue);
  void CountPeerAccess(DeviceQp& qp, bool is_write, transport::MemoryId memory);
  void ReturnReceive(Srq& srq, const Cq& cq, const HeldReceive& part);
  transport::KeyFault BindWindow(DeviceQp& qp, const transport::WindowBind& bind);
  transport::KeyFault Invalidate(DeviceQp& qp, RKey rkey);
  bool SettleKeys(DeviceQp& qp, transport::QpRole waiter);
  void ExpectMove(transport::MemoryId memory, uint64_t addr) { dma_->ExpectMove(memory, addr); }
  bool MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
               uint32_t destination_count) {
    if (source.length > kHeldBytesMax) PublishHeld();
    const bool is_moved = dma_->MoveNow(source, destination, destination_count);
    if (is_moved) payload_bytes_ += source.length;
    return is_moved;
  }

 private:
  // Who waits for a CQE that is held waits for moves of no more than this, each.
  static constexpr uint32_t kHeldBytesMax = 1024;

  // --- commands.cc ------------------------------------------------------------------------------
  using Handler = int (DeviceCore::*)(Command&);
  struct CommandRow {
    Handler handler;
    uint32_t payload_bytes;
  };
  static const CommandRow& RowOf(shm::CommandOp op);
  int Nop(Command& command);
  int QueryDevice(Command& command);
  int QueryPort(Command& command);
  int QueryGidTable(Command& command);
  int QueryPkey(Command& command);
  void Complete(Session& session, uint32_t slot, uint32_t submitted, int error, const void* payload,
                uint32_t payload_bytes);
  // The command completes, with the reply made so far, when no DMA in flight touches its session,
  // nor what else `retired` names; what is retired goes then.
  void FinishAfterFence(Command& command, Retired retired = {});
  void FinishAfterFenceOf(SessionId owner, Command& command, Retired retired);
  void Release(Session* session, Retired* retired);

  // --- objects ----------------------------------------------------------------------------------
  int AllocPd(Command& command);
  int DeallocPd(Command& command);
  int RegMr(Command& command);
  static bool HasMrRoom(const Session& session);
  int InstallMr(Command& command, std::unique_ptr<Mr> owned);
  int DeregMr(Command& command);
  int ReregMr(Command& command);  // and the next: rereg.cc
  int AllocNullMr(Command& command);
  int AllocDm(Command& command);  // and the next: dm.cc
  int FreeDm(Command& command);
  int RegDmMr(Command& command);
  int ImportPd(Command& command);  // and the next: sharing.cc
  int ImportMr(Command& command);
  int ImportDm(Command& command);
  // What needs the session's process goes; of regions it leaves the names.
  void EndProcessPart(Session& session);
  void EndSharedPart(Session& session);
  void Bequeath(Session& session, Session& heir);
  void RemoveAfterFence(SessionId owner, Retired retired);
  int AllocOwnKeyPd(Command& command);  // and the next: rdm_regions.cc
  int EnableMr(Command& command);
  static constexpr uint32_t kCountersPerSession = 16'384;
  int CreateCounter(Command& command);
  int DestroyCounter(Command& command);
  void RemoveCounter(Counter& counter);
  int BindMrCounter(Command& command);
  int BindQpCounter(Command& command);
  void SetRegionCounters(Mr& mr, const PeerCounters& counters);
  static int FindCounters(const Session& session, shm::Handle read, shm::Handle write,
                          PeerCounters* out);
  int CancelRecv(Command& command);  // and the next: marked_srq.cc
  static bool FetchAllMarked(Srq& srq);
  void FinishReceive(DeviceQp& qp, transport::Completion& completion);
  void ReturnHeld(DeviceQp& qp, Retired* retired);
  void ReturnParts(Session& session, const Retired::Receives& parts);
  bool PushReleases();
  int CreatePlace(Command& command);  // and the next: places.cc
  int DestroyPlace(Command& command);
  int NameSource(Command& command);
  int QuerySource(Command& command);
  int FindPlaceObjects(const Session& session, const shm::CreatePlaceRequest& request,
                       Place* place) const;
  void RemovePlace(Place& place, Retired* retired);
  shm::RdmRejectReason ConnectLane(Place& place, const LaneRequest& request, LaneAnswer* answer);
  DeviceQp* NewLane(Place& place);
  int OpenLane(DeviceQp& lane, const LaneRequest& request);
  void EndIdlestLane(Place& place, Retired* retired);
  void TellReceived(DeviceQp& lane);
  void ForgetLane(DeviceQp& lane);
  void EndLane(DeviceQp& lane, Retired* retired);
  int OpenPayload(Command& command);
  int OpenAssist(Command& command);
  int AllocTd(Command& command);
  int DeallocTd(Command& command);
  void RemoveTd(Session& session, Td& td);
  int AllocMw(Command& command);
  int DeallocMw(Command& command);
  int CreateChannel(Command& command);
  int DestroyChannel(Command& command);
  int CreateCq(Command& command);
  int ResizeCq(Command& command);
  int DestroyCq(Command& command);
  int CreateSrq(Command& command);
  int ModifySrq(Command& command);
  int QuerySrq(Command& command);
  int DestroySrq(Command& command);
  int CreateAh(Command& command);
  void ResolveLid(const Nic& own, shm::AhAttr* attr) const;
  int DestroyAh(Command& command);
  int AttachMcast(Command& command);
  int DetachMcast(Command& command);
  int CreateQp(Command& command);
  int ModifyQp(Command& command);
  int Modify(DeviceQp& qp, shm::ModifyQpRequest& request);
  int QueryQp(Command& command);
  int DestroyQp(Command& command);

  int FindQpObjects(Session& session, const shm::CreateQpRequest& request, DeviceQp* qp) const;
  int CheckQpLimits(const Nic& nic, const shm::CreateQpRequest& request) const;
  static void SetNicLimits(const Nic& nic, transport::QpConfig* config);
  int AllocateQpNumbers(DeviceQp* qp);
  int AllocateQpQueues(const shm::CreateQpRequest& request, DeviceQp* qp);
  void InstallQp(DeviceQp& qp);
  void ReplyCreated(Command& command, const DeviceQp& qp);
  // Takes the QP out of every table and list and deletes it.
  void RemoveQp(DeviceQp& qp, Retired* retired);
  // Back to the state after creation: rings at zero, results in flight forgotten.
  void ResetQp(DeviceQp& qp, Retired* retired);
  void RemoveMr(Mr& mr);
  void RemoveCq(Cq& cq, Retired* retired);
  void RemoveSrq(Srq& srq, Retired* retired);
  void RemoveMw(Mw& mw);
  void UnbindWindow(Mw& mw);
  transport::MemoryId NewWindowMemory();
  transport::KeyFault InvalidateRegion(DeviceQp& qp, Mr& mr);
  transport::KeyFault InvalidateWindow(DeviceQp& qp, RKey rkey);
  void OnKeysSettled(uint64_t cookie, QpRef waiting, transport::QpRole waiter);
  void RemoveAh(Ah& ah);
  void RemoveChannel(Channel& channel);
  void LeaveGroup(DeviceQp& qp, const Gid& gid);
  int ResizeSrq(Srq& srq, const shm::ModifySrqRequest& request, uint32_t limit,
                shm::ModifySrqReply* reply, Retired* retired);

  // --- entry_memory.cc --------------------------------------------------------------------------
  struct EntryMove {
    EntryQueue queue = EntryQueue::kSend;
    bool is_solicited = false;
    uint32_t count = 0;
    QpRef qp;
    SessionId session = 0;   // of an SRQ or a CQ
    shm::Handle object = 0;  // which
    uint64_t stream = 0;
  };
  // The memory of a queue that nobody has used.
  void Discard(const Session& session, const QueueMemory& queue, const EntryMemory& entries);
  int AllocateCq(const Session& session, uint32_t entries, shm::EntryAddress addr,
                 QueueMemory* queue, EntryMemory* memory);
  int UseEntries(const Session& session, shm::EntryAddress addr, uint64_t bytes, EntryMemory* out);
  int AllocateWorkQueue(const Session& session, uint32_t entries, uint32_t stride_bytes,
                        shm::EntryAddress addr, QueueMemory* queue, WorkQueueConsumer* ring,
                        EntryMemory* memory);
  // Queue and memory go: at once, or with the next fence if DMA may be at them.
  static void Retire(const Session& session, const QueueMemory& queue, const EntryMemory& entries,
                     Retired* retired);
  bool AwaitsReceive(DeviceQp& qp, const transport::Pdu& pdu);
  // QPs whose PDUs waited for a fetch to end ask anew.
  void EndAwaiting(Srq& srq);
  void SubmitMove(const EntryMove& move, const transport::DmaRequest& request);
  void WriteCqes(Cq& cq);
  void WriteUnwrittenCqes();
  void OnEntriesMoved(uint64_t cookie, bool is_ok, bool is_owner_gone);

  // --- cq.cc ------------------------------------------------------------------------------------
  // What was polled into blank_completion_. Of a direct write the WQE is still to be released.
  void PushCompletion(DeviceQp& qp, bool is_direct_write = false);
  void PushCqe(Cq& cq, transport::Completion& completion, DeviceQp* direct_writer = nullptr);
  void PublishHeld();
  void FailCq(Cq& cq);
  // The program can see CQEs it could not see before.
  void NoteCqes(Cq& cq, uint32_t count, bool is_solicited);
  // Reads the arm words of CQs that got completions, and fires their events.
  void FireArmedCqs();
  void FireIfArmed(Cq& cq);
  void Fire(Cq& cq, uint32_t arm_sequence);

  // --- cq_moderation.cc -------------------------------------------------------------------------
  int ModifyCq(Command& command);
  // Whether the event of a CQ that is armed for what it holds has to wait.
  bool HoldsEvent(Cq& cq);
  void FireHeld(Cq& cq);
  void FireDueHeld();

  // --- events.cc --------------------------------------------------------------------------------
  void PushChannelEvent(Cq& cq);
  void PushQpEvent(DeviceQp& qp, EventType event);
  void PushAsyncEvent(Session& session, EventSource source, EventType event, shm::Handle object,
                      uint64_t cookie);
  // False: some do not fit their fd.
  bool FlushSessionEvents(Session& session);
  bool FlushChannel(Channel& channel);
  bool FlushAsyncEvents(Session& session);

  // --- fabric.cc --------------------------------------------------------------------------------
  // Payload of one UC or UD request PDU, read by `users` (the step that delivers it, DMA in flight,
  // a queue where it waits).
  struct PayloadUse {
    QpRef sender;
    Psn psn;
    uint32_t users = 0;
    bool has_faulted = false;  // the sender was told by OnSourceFault
  };
  static constexpr uint64_t kNoUse = ~uint64_t{0};
  static constexpr uint64_t kNoMove = ~uint64_t{0};
  struct DmaRecord {
    QpRef qp;      // who placed it
    QpRef sender;  // whose PDU it was, if any
    transport::DmaToken token = 0;
    uint64_t number = 0;  // of the QP's
    transport::Opcode opcode = transport::Opcode::kSendOnly;
    Psn psn;
    uint64_t use = kNoUse;
    TxPacket* packet = nullptr;    // the payload goes into it and next_of_pdu, and to no QP
    bool is_counted_read = false;  // in sender's reads_in_flight
    bool reads_anothers = false, writes_anothers = false;  // ReachedMemory::is_anothers
    uint64_t entry_move = kNoMove;  // moves entries of a queue, and nothing else
  };
  // Whose PDU it is: a QP of this instance, or nobody's here (it came from a network).
  struct Origin {
    DeviceQp* sender;
  };
  Nic* FindNic(const Gid& gid) const;
  DeviceQp* FindQp(QpRef ref) const;
  // Whom the PDU reaches, or nullptr: nobody, or a QP that must not take it.
  DeviceQp* FindDestination(DeviceQp& sender, const transport::Pdu& pdu,
                            const transport::Path& path);
  DeviceQp* FindPeer(DeviceQp& sender, const transport::Pdu& pdu, const transport::Path& path);
  // PDUs of a network, or of multicasts, that may wait for one QP.
  static constexpr size_t kHeldPerQp = 128;
  // Whether the PDU may be handed over now; else it waits.
  bool MayTake(DeviceQp& qp, const transport::Pdu& pdu) {
    return qp.transport->CanAccept(pdu) && !AwaitsReceive(qp, pdu);
  }
  void Deliver(DeviceQp& sender, transport::Pdu& pdu);
  void Route(DeviceQp& sender, const transport::Pdu& pdu, uint64_t use);
  void DeliverMulticast(DeviceQp& sender, const transport::Pdu& pdu, const Gid& group,
                        uint64_t use);
  void HandOver(Origin origin, DeviceQp& destination, const transport::Pdu& pdu, uint64_t use);
  // The PDU a placement comes from.
  struct Cause {
    Origin origin;
    transport::Opcode opcode;
    Psn psn;
    uint64_t use;
  };
  void SubmitDmas(DeviceQp& qp, const Cause* cause);
  bool PlaceNow(DeviceQp& qp, const transport::DmaRequest& request);
  static bool PkeysMatch(PKey a, PKey b);
  // Segments of the same shape in no memory at all: the DMA engine reports them as a fault, in
  // order.
  static const transport::DmaSegment* Refuse(const transport::DmaSegment* segments, uint32_t count,
                                             std::array<transport::DmaSegment, shm::kMaxSge>& out);
  // What the DMA engine is to touch: the segments, those of windows with the regions behind them;
  // or nothing, unless all are in regions that are registered now in the user's context, and in
  // bound windows.
  ReachedMemory Reach(const transport::DmaSegment* segments, uint32_t count, DeviceQp& user,
                      std::array<transport::DmaSegment, shm::kMaxSge>& out) const;
  // Counts who still needs the payload of a UC or UD PDU: its sender hears of the last one's end.
  uint64_t BeginUse(const DeviceQp& sender, const transport::Pdu& pdu);
  void KeepUse(uint64_t use);
  void EndUse(uint64_t use);
  void ReportSourceFault(const DmaRecord& record);
  void CountRead(DeviceQp& sender, DmaRecord& record, const transport::Payload& source);
  void EndRead(const DmaRecord& record);
  // Tries again what waited for `qp`.
  void TakeWaiting(DeviceQp& qp);
  void DropWaiting(DeviceQp& qp);
  void Unblock(QpRef sender);

  // --- wire.cc ----------------------------------------------------------------------------------
  static void WantGrh(const Nic& nic);
  bool IsOnWire(const Nic& nic, const Gid& dgid) const;
  bool IsOnWire(DeviceQp& sender, const Gid& dgid) const;
  transport::PduLimits LimitsTo(const DeviceQp& qp, const Gid& dgid) const;
  bool HasTxRoom(const TxQueue& queue) const;
  // The QP's requests go to `dgid` from now on.
  void LeadTo(DeviceQp& qp, const Gid& dgid);
  void LeavePeer(DeviceQp& qp);
  static bool HasPeerRoom(const DeviceQp& qp);
  void WaitForPeer(DeviceQp& qp);
  void CountUnacked(DeviceQp& qp);
  bool CountSent(DeviceQp& qp, const transport::Pdu& pdu);
  // UC and UD, which nobody acknowledges.
  static bool HasPaceRoom(const DeviceQp& qp);
  void WaitForTxOrPace(DeviceQp& qp);
  void BeginPace();
  bool HasPacedWork();
  bool IsBacklogged(Nic& nic);
  bool MayHoldMore(const DeviceQp& qp) const;
  // The path of `path.dgid` leads to the network.
  void EmitPacket(DeviceQp& sender, const transport::Pdu& pdu, const transport::Path& path,
                  uint64_t use);
  bool ReadNow(DeviceQp& sender, const transport::Payload& payload, TxPacket* packet);
  TxPacket* MakePacket(const transport::Pdu& pdu, const transport::Path& path, TxBlock* block,
                       uint32_t offset);
  TxPacket* MakePackets(const transport::Pdu& pdu, const transport::Path& path, TxBlock* block,
                        const PduCut& cut, TxQueue& queue);
  void SubmitRead(DeviceQp& sender, const transport::Pdu& pdu, uint64_t use, TxPacket* first);
  void OnPayloadRead(const DmaRecord& record, transport::DmaStatus status);
  void CountMoves(const DmaRecord& record, int change);
  void NoteRevoked(DeviceQp& qp, const DmaRecord& record, transport::DmaStatus status,
                   bool is_revoked);
  bool IsHeldUp(DeviceQp& qp);
  void PumpTx(DeviceQp& qp);
  bool PumpStalled();
  bool HoldAck(DeviceQp& qp, const transport::Pdu& pdu);
  void LetAckGo(DeviceQp& qp);
  void BeginHolding();
  void GiveUpHeldAcks();
  bool PumpQueue(DeviceQp& qp, TxQueue& queue);
  void DropTx(DeviceQp& qp);
  void TakePacket(Nic& nic, const transport::InPacket& packet);
  DeviceQp* CheckPacket(Nic& nic, const transport::InPacket& packet, transport::Pdu* pdu,
                        transport::Path* path);
  void AcceptPdu(Nic& nic, DeviceQp& qp, const transport::Pdu& pdu);
  bool JoinMerge(const DeviceQp& qp, const transport::Pdu& pdu);
  void FlushMerge(Nic& nic);
  void NoteMessagePart(const transport::OpcodeInfo& info, bool is_received);
  Qpn FindConnectedQpn(uint32_t nic, const Gid& peer, Qpn remote) const;
  std::string DescribeOwner(uint32_t nic, Qpn qpn) const;
  std::string DescribeGroup(uint32_t nic, const Gid& gid) const;
  void TakeMulticast(Nic& nic, const transport::Pdu& pdu);

  // --- gsi.cc -----------------------------------------------------------------------------------
  void EmitMad(Nic& nic, const Gid& sgid, const Gid& dgid, const std::byte* bytes);
  void FlushMads(Nic& nic);
  void TakeMad(Nic& nic, const transport::Pdu& pdu);

  // --- schedule.cc ------------------------------------------------------------------------------
  void AdvanceTo(Instant now) { now_ = std::max(now_, now); }
  void BeginTurn(Instant now);
  bool OnRung(DeviceQp& qp);
  // After any input to `qp`: submits its DMA at once, and drains the rest in Settle.
  void AfterInput(DeviceQp& qp) {
    SubmitDmas(qp, nullptr);
    MarkForDrain(qp);
  }
  void MarkForDrain(DeviceQp& qp);
  static bool AskForReceives(DeviceQp& qp);
  void Drain(DeviceQp& qp);
  void DrainMarked();
  void Settle();
  void MakeReady(DeviceQp& qp);
  // Whether any NIC has a network: what only packets need is not asked otherwise.
  bool HasNetwork() const { return attached_ports_ != 0; }
  bool MaySend(DeviceQp& qp) const {
    return !qp.is_blocked && !qp.IsResting() &&
           (!HasNetwork() || (HasTxRoom(qp.tx_requests) && HasPeerRoom(qp) && HasPaceRoom(qp))) &&
           qp.transport->HasRequestWork();
  }
  void UpdateTimer(DeviceQp& qp);
  uint32_t RunTurn(DeviceQp& qp, uint32_t max_pdus);

  // --- direct.cc --------------------------------------------------------------------------------
  // Messages to a QP of this instance in one step each, until they have cost `max_steps`. Returns
  // what they cost, which may be more by the last one's size.
  uint32_t SendDirect(DeviceQp& qp, uint32_t max_steps);

  // --- qp_rate.cc -------------------------------------------------------------------------------
  static int CheckRate(const shm::ModifyQpRequest& request);
  void SetRate(DeviceQp& qp, uint32_t kbps, uint32_t burst_bytes);
  // A request of a QP with a rate limit goes out.
  void CountRate(DeviceQp& qp, transport::Pdu& pdu);
  void EndRests();

  // --- inject.cc --------------------------------------------------------------------------------
  // Whom it told; of the target `kind` and what names the object counts.
  uint32_t Inject(Nic& nic, EventType event, const EventTarget& target);

  // --- show.cc ----------------------------------------------------------------------------------
  void ShowCommands(std::vector<ShowRow>* rows) const;
  void ShowObjects(const Session& session, ShowKind kind, std::vector<ShowRow>* rows) const;

  Session* FindSession(SessionId id) const {
    auto it = sessions_.find(id);
    return it == sessions_.end() ? nullptr : it->second.get();
  }

  struct FenceRecord {
    SessionId session = 0;
    bool ends_session = false;
    bool ends_command = false;
    uint32_t slot = 0;
    uint32_t submitted = 0;
    uint64_t command_number = 0;
    uint32_t reply_bytes = 0;
    std::array<uint8_t, 64> reply{};
    Retired retired;
    // Instead of a command: a QP that has taken a key away.
    QpRef waiting_qp;
    transport::QpRole waiter = transport::QpRole::kRequester;
  };
  // Returns the fence's cookie: OnDmaFence has the record when no DMA touches `owner`'s memory.
  uint64_t BeginFence(SessionId owner, FenceRecord record);
  static constexpr size_t kHistoryCommands = 128;
  uint64_t RecordCommand(const Session& session, shm::CommandOp op);
  void RecordCommandEnd(uint64_t number, int error);

  class Lookahead;
  struct McastGroup {
    bool HasMemberOn(const Nic& nic) const;
    std::vector<DeviceQp*> members;
  };

  DeviceConfig config_;
  DmaEngine* const dma_;
  TransportFactory make_transport_;
  Instant now_;                 // the latest of the inputs: a packet has come after its turn began
  Instant turn_, turn_before_;  // when the turn began, and the one before

  std::vector<std::unique_ptr<Nic>> nics_;
  std::unordered_map<Gid, Nic*, GidHash> nic_by_gid_;  // looked up, never iterated
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  SessionId next_session_ = 1;
  uint32_t next_srqn_ = 1;

  std::vector<QpSlot> qp_slots_;
  FreeIndices<QpSlot> free_qp_slots_;
  uint64_t next_life_ = 1;
  uint64_t next_stream_ = 1;
  // Raised whenever the way to a peer may change: what is remembered expires.
  uint64_t path_epoch_ = 1;

  std::unordered_map<transport::MemoryId, RegionOwner> region_owners_;  // looked up, never iterated
  std::unordered_map<transport::MemoryId, Mr*> counted_regions_;        // looked up, never iterated
  // The region behind each binding of a window; looked up, never iterated.
  std::unordered_map<transport::MemoryId, transport::MemoryId> window_memory_;
  uint32_t next_window_memory_ = 0;
  std::array<transport::DmaSegment, shm::kMaxSge> reached_source_;
  std::array<transport::DmaSegment, shm::kMaxSge> reached_destination_;
  CookieTable<DmaRecord> dmas_;
  CookieTable<EntryMove> entry_moves_;
  CookieTable<PayloadUse> uses_;
  std::map<uint64_t, FenceRecord> fences_;
  uint64_t next_fence_ = 1;
  std::map<Gid, McastGroup> mcast_groups_;
  transport::local::HeldPduPool held_pdus_;
  MadHandler mad_handler_;
  std::map<PlaceToken, Place*> places_;
  std::unordered_map<LaneId, DeviceQp*> lanes_;  // looked up, never iterated
  LaneEndHandler lane_end_handler_;
  uint32_t attached_ports_ = 0;
  TxPool tx_pool_;
  std::vector<transport::LocalPiece> local_pieces_;  // of the PDU in hand
  // Packets of one message that came in one batch, on their way to becoming one PDU.
  struct Merge {
    DeviceQp* qp = nullptr;  // nullptr: none
    transport::Pdu pdu;
    transport::Path path;
  };
  Merge merge_;
  bool is_mid_message_ = false;  // of a network
  // Since the last message came from a network no client has posted; and then the next one came.
  bool may_be_streaming_ = false, is_streaming_ = false;
  bool awaits_peer_room_ = false;  // some QP of peer_waiters_ began to since the NIC slept last
  std::vector<QpRef> stalled_;     // their port had no room
  std::deque<HeldAck> held_acks_;  // oldest first; some have left meanwhile
  std::map<std::pair<uint32_t, Gid>, WirePeer> wire_peers_;  // by NIC and address
  // Found by FindConnectedQpn; checked before use.
  mutable std::map<std::pair<Gid, uint32_t>, QpRef> senders_seen_;
  std::deque<QpRef> peer_waiters_;  // QPs whose peer has no room
  size_t held_packets_ = 0;         // from the network, in the QPs' queues
  std::vector<QpRef> paced_;        // go on in the next turn
  std::vector<DeviceQp*> drain_;
  std::vector<ReceiveRelease> releases_;
  HeldWrites held_writes_;
  std::vector<Cq*> dirty_cqs_;
  std::vector<Cq*> unwritten_cqs_;  // with CQEs for memory of the program
  IntrusiveList<Session> ready_sessions_;
  IntrusiveList<Session> sessions_with_events_;
  TimerHeap timers_;
  TimerHeap event_timers_;  // of CQs
  TimerHeap rate_timers_;

  // What the QPs' outputs are polled into; blank between uses. Blanking new ones for each poll, of
  // which most find nothing, took a quarter of the time of a small message.
  transport::Pdu blank_request_;
  transport::Pdu blank_response_;
  transport::DmaRequest blank_dma_;
  transport::Completion blank_completion_{};

  std::deque<PastCommand> history_;
  uint64_t commands_ = 0, hostile_acts_ = 0, send_wqes_ = 0, pdus_ = 0;
  uint64_t outputs_ = 0;  // responses and completions drained
  uint64_t payload_bytes_ = 0;
};

}  // namespace verbena::softnic

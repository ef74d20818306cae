// The local port: PDUs of up to a whole message go from QP to QP within the instance, by
// destination GID, NIC and QPN.
//
// A PDU's pointers are good until the next input to the QP that made it. So its DMA is submitted
// (and copied) within the same step, and a PDU that has to wait is copied.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

using transport::Path;
using transport::Pdu;

namespace {

// More is for the DMA engine, which takes turns.
constexpr uint32_t kPlaceNowBytesMax = 4096;

bool IsRequest(const Pdu& pdu) {
  const transport::OpcodeInfo* info = transport::LookUpOpcode(pdu.opcode);
  return info != nullptr && info->is_request;
}

}  // namespace

// Spec: IBTA 10.9.3: keys match when their low 15 bits do and at least one is a full member.
bool DeviceCore::PkeysMatch(PKey a, PKey b) {
  return ((a.value ^ b.value) & 0x7fff) == 0 && ((a.value | b.value) & 0x8000) != 0;
}

const transport::DmaSegment* DeviceCore::Refuse(
    const transport::DmaSegment* segments, uint32_t count,
    std::array<transport::DmaSegment, shm::kMaxSge>& out) {
  VERBENA_CHECK(count <= out.size());
  for (uint32_t i = 0; i < count; ++i) out[i] = {kNoMemory, segments[i].length, 0};
  return out.data();
}

size_t GidHash::operator()(const Gid& gid) const {
  uint64_t high, low;
  std::memcpy(&high, gid.raw.data(), 8);
  std::memcpy(&low, gid.raw.data() + 8, 8);
  return (high * 31 + low) * 0x9e37'79b9'7f4a'7c15u >> 16;
}

Nic* DeviceCore::FindNic(const Gid& gid) const {
  auto it = nic_by_gid_.find(gid);
  return it == nic_by_gid_.end() ? nullptr : it->second;
}

DeviceQp* DeviceCore::FindQp(QpRef ref) const {
  if (ref.life == 0 || ref.slot >= qp_slots_.size()) return nullptr;
  DeviceQp* qp = qp_slots_[ref.slot].qp;
  return qp != nullptr && qp->self.life == ref.life ? qp : nullptr;
}

DeviceQp* DeviceCore::FindDestination(DeviceQp& sender, const Pdu& pdu, const Path& path) {
  if (sender.IsConnectedService()) return FindPeer(sender, pdu, path);
  Nic* nic = FindNic(path.dgid);
  if (nic == nullptr) return nullptr;
  DeviceQp* qp = nic->qpns.Find(pdu.dest_qpn);
  return qp != nullptr && qp->service() == sender.service() && qp->IsReceiving() ? qp : nullptr;
}

// A connected QP takes only what its peer sends: on the wire it goes by PSN and P_Key alone; here
// the sender is known.
DeviceQp* DeviceCore::FindPeer(DeviceQp& sender, const Pdu& pdu, const Path& path) {
  if (sender.peer_epoch == path_epoch_) {
    DeviceQp* peer = FindQp(sender.peer);
    if (peer != nullptr && peer->qpn == pdu.dest_qpn) return peer->IsReceiving() ? peer : nullptr;
  }
  Nic* nic = FindNic(path.dgid);
  if (nic == nullptr) return nullptr;
  DeviceQp* qp = nic->qpns.Find(pdu.dest_qpn);
  if (qp == nullptr || qp->service() != sender.service() || !qp->IsReceiving()) return nullptr;
  if (qp->transport->remote_qpn() != sender.qpn) return nullptr;
  if (FindNic(qp->transport->path().dgid) != sender.nic) return nullptr;
  sender.peer = qp->self;
  sender.peer_epoch = path_epoch_;
  return qp;
}

void DeviceCore::Deliver(DeviceQp& sender, Pdu& pdu) {
  ++pdus_;
  payload_bytes_ += pdu.payload.length;
  pdu.src_qpn = sender.qpn;
  if (sender.rate != nullptr && IsRequest(pdu)) CountRate(sender, pdu);
  uint64_t use = BeginUse(sender, pdu);
  Route(sender, pdu, use);
  EndUse(use);
}

void DeviceCore::Route(DeviceQp& sender, const Pdu& pdu, uint64_t use) {
  const Path& path = pdu.path != nullptr ? *pdu.path : sender.transport->path();
  if (!PkeysMatch(pdu.pkey, kDefaultPkey)) return;
  if (path.dgid.IsMulticast()) {
    if (!sender.IsConnectedService()) DeliverMulticast(sender, pdu, path.dgid, use);
    return;
  }
  if (HasNetwork() && IsOnWire(sender, path.dgid)) return EmitPacket(sender, pdu, path, use);
  DeviceQp* destination = FindDestination(sender, pdu, path);
  if (destination == nullptr) return;
  // What came before it and waits goes first.
  if (!destination->waiting.empty() || !MayTake(*destination, pdu)) {
    bool blocks_sender = IsRequest(pdu);
    sender.is_blocked |= blocks_sender;
    KeepUse(use);
    destination->waiting.push_back({sender.self, blocks_sender, false, use, held_pdus_.Hold(pdu)});
    return;
  }
  HandOver({&sender}, *destination, pdu, use);
}

void DeviceCore::HandOver(Origin origin, DeviceQp& destination, const Pdu& pdu, uint64_t use) {
  Cause cause{origin, pdu.opcode, pdu.psn, use};
  if (origin.sender != &destination) {
    destination.transport->OnPdu(now_, pdu);
    SubmitDmas(destination, &cause);
  } else {
    // A QP connected to itself: handing the PDU over is an input to its maker, so its pointers end.
    transport::local::HeldPduPtr own = held_pdus_.Hold(pdu);
    destination.transport->OnPdu(now_, own->pdu());
    SubmitDmas(destination, &cause);
  }
  MarkForDrain(destination);
}

// What a packet brought goes where it belongs at once, if it is little, and its memory is mapped.
bool DeviceCore::PlaceNow(DeviceQp& qp, const transport::DmaRequest& request) {
  const transport::Payload& source = request.source;
  if (request.kind != transport::DmaRequest::Kind::kCopy || source.bytes == nullptr ||
      source.length > kPlaceNowBytesMax || source.piece_bytes != 0 || request.prefix_bytes != 0 ||
      request.destination_offset != 0 || qp.moves_in_flight != 0) {
    return false;
  }
  const ReachedMemory destination =
      Reach(request.destination, request.destination_count, qp, reached_destination_);
  return dma_->MoveNow(source, destination.segments, request.destination_count);
}

// What the two QPs of a connection do to memory keeps its order among both: a READ response must
// not overtake the WRITE before it.
void DeviceCore::SubmitDmas(DeviceQp& qp, const Cause* cause) {
  transport::DmaRequest& request = blank_dma_;
  while (qp.transport->PollDma(request)) {
    if ((cause == nullptr || cause->origin.sender == nullptr) && PlaceNow(qp, request)) {
      const transport::DmaToken token = request.token;
      request = {};
      qp.transport->OnDmaDone(now_, {token, transport::DmaStatus::kOk, 0});
      continue;
    }
    DmaRecord record;
    record.qp = qp.self;
    record.token = request.token;
    record.number = ++qp.moves_submitted;
    DeviceQp* sender = cause != nullptr ? cause->origin.sender : nullptr;
    if (sender != nullptr) {
      record.sender = sender->self;
      record.opcode = cause->opcode;
      record.psn = cause->psn;
      record.use = cause->use;
      KeepUse(cause->use);
      CountRead(*sender, record, request.source);
      qp.last_stream = qp.IsConnectedService() ? std::min(qp.stream, sender->stream) : qp.stream;
    }
    DeviceQp& source_user = sender != nullptr ? *sender : qp;
    uint16_t source_count = request.source.segments != nullptr ? request.source.segment_count : 0;
    const ReachedMemory source =
        Reach(request.source.segments, source_count, source_user, reached_source_);
    const ReachedMemory destination =
        Reach(request.destination, request.destination_count, qp, reached_destination_);
    request.source.segments = source.segments;
    request.destination = destination.segments;
    record.reads_anothers = source.is_anothers;
    record.writes_anothers = destination.is_anothers;
    uint64_t stream = qp.last_stream != 0 ? qp.last_stream : qp.stream;
    CountMoves(record, 1);
    dma_->Submit(stream, dmas_.Insert(record), request);
    request = {};
  }
}

// Segments are resolved when work begins, and used until it ends. A region that went meanwhile must
// not be touched any more, nor what came to its MemoryId later, perhaps another client's; nor what
// a window led to that is bound no more, or otherwise.
ReachedMemory DeviceCore::Reach(const transport::DmaSegment* segments, uint32_t count,
                                DeviceQp& user,
                                std::array<transport::DmaSegment, shm::kMaxSge>& out) const {
  const Session& session = *user.session;
  bool has_window = false, is_anothers = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (segments[i].memory == kNullMemory) continue;
    transport::MemoryId memory = segments[i].memory;
    if ((memory & kWindowMemoryBit) != 0) {
      auto window = window_memory_.find(memory);
      if (window == window_memory_.end()) return {Refuse(segments, count, out)};
      memory = window->second;
      has_window = true;
    }
    auto it = region_owners_.find(memory);
    if (it == region_owners_.end() || it->second.context != session.shared->id) {
      return {Refuse(segments, count, out)};
    }
    if (it->second.session == session.id) continue;
    user.owners.Add(it->second.session);
    const Session* owner = FindSession(it->second.session);  // nullptr: the NIC
    is_anothers |= owner != nullptr && owner->pid != session.pid;
  }
  if (!has_window) return {segments, is_anothers};
  VERBENA_CHECK(count <= out.size());
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = segments[i];
    auto window = window_memory_.find(segments[i].memory);
    if (window != window_memory_.end()) out[i].memory = window->second;
  }
  return {out.data(), is_anothers};
}

uint64_t DeviceCore::BeginUse(const DeviceQp& sender, const Pdu& pdu) {
  if (!sender.config.reports_release || pdu.payload.segments == nullptr) return kNoUse;
  return uses_.Insert({sender.self, pdu.psn, 1, false});
}

void DeviceCore::KeepUse(uint64_t use) {
  if (use != kNoUse) ++uses_.Find(use)->users;
}

void DeviceCore::EndUse(uint64_t use) {
  if (use == kNoUse) return;
  PayloadUse* found = uses_.Find(use);
  if (--found->users != 0) return;
  PayloadUse ended;
  uses_.Take(use, &ended);
  DeviceQp* sender = FindQp(ended.sender);
  if (sender == nullptr || ended.has_faulted) return;
  sender->transport->OnPayloadReleased(now_, ended.psn);
  AfterInput(*sender);
}

// Once for each PDU, however many copies of it went out.
void DeviceCore::ReportSourceFault(const DmaRecord& record) {
  if (record.use != kNoUse && std::exchange(uses_.Find(record.use)->has_faulted, true)) return;
  DeviceQp* sender = FindQp(record.sender);
  if (sender == nullptr) return;
  sender->transport->OnSourceFault(now_, record.opcode, record.psn);
  AfterInput(*sender);
}

void DeviceCore::OnDmaDone(Instant now, uint64_t cookie, transport::DmaStatus status,
                           uint64_t atomic_original, DmaFault fault) {
  using transport::DmaStatus;
  AdvanceTo(now);
  const bool is_owner_gone = fault == DmaFault::kOwnerGone;
  DmaRecord record;
  if (!dmas_.Take(cookie, &record)) return;
  if (record.entry_move != kNoMove) {
    OnEntriesMoved(record.entry_move, status == DmaStatus::kOk, is_owner_gone);
    return Settle();
  }
  CountMoves(record, -1);
  // Nobody speaks for a process that has ended, but QPs of others with work that names its memory.
  const bool is_source = status == DmaStatus::kSourceFault;
  const bool is_anothers = is_source ? record.reads_anothers : record.writes_anothers;
  const bool is_silent = fault == DmaFault::kRevoked || (is_owner_gone && !is_anothers);
  if (is_source && !is_silent) ReportSourceFault(record);
  if (record.packet != nullptr) {
    OnPayloadRead(record, status);
  } else if (DeviceQp* qp = FindQp(record.qp); qp != nullptr && (is_source || !is_silent)) {
    qp->transport->OnDmaDone(now, {record.token, status, atomic_original});
    if (qp->service() == Service::kRc) {
      NoteRevoked(*qp, record, status, fault == DmaFault::kRevoked);
    }
    AfterInput(*qp);
  }
  EndUse(record.use);
  EndRead(record);
  Settle();
}

// What was revoked comes again, as if it had been lost. Not if something submitted behind it was
// carried out: that would be done twice, and its peer may have seen it without what came before.
void DeviceCore::NoteRevoked(DeviceQp& qp, const DmaRecord& record, transport::DmaStatus status,
                             bool is_revoked) {
  const bool is_behind = record.number <= qp.revoked.until;
  if (is_revoked) {
    if (!is_behind) qp.revoked = {record.sender, record.opcode, record.psn, qp.moves_submitted};
  } else if (is_behind && status == transport::DmaStatus::kOk) {
    DmaRecord overtaken;
    overtaken.sender = qp.revoked.sender;
    overtaken.opcode = qp.revoked.opcode;
    overtaken.psn = qp.revoked.psn;
    qp.revoked = {};
    ReportSourceFault(overtaken);
  }
}

void DeviceCore::CountMoves(const DmaRecord& record, int change) {
  for (QpRef ref : {record.qp, record.sender}) {
    if (DeviceQp* qp = FindQp(ref); qp != nullptr) {
      qp->moves_in_flight += static_cast<uint32_t>(change);
    }
  }
}

void DeviceCore::CountRead(DeviceQp& sender, DmaRecord& record, const transport::Payload& source) {
  record.is_counted_read = source.segments != nullptr;
  if (record.is_counted_read) ++sender.reads_in_flight;
}

void DeviceCore::EndRead(const DmaRecord& record) {
  DeviceQp* sender = record.is_counted_read ? FindQp(record.sender) : nullptr;
  if (sender != nullptr && --sender->reads_in_flight == 0) MarkForDrain(*sender);
}

void DeviceCore::TakeWaiting(DeviceQp& qp) {
  while (!qp.waiting.empty()) {
    Waiting& first = qp.waiting.front();
    DeviceQp* sender = FindQp(first.sender);
    // Nobody's, or for a QP that left the states in which it listens: dropped, as on a wire.
    // So is the request of a QP that failed: its program has the buffers back.
    bool is_dropped =
        (sender == nullptr && !first.is_from_wire) || !qp.IsReceiving() ||
        (sender != nullptr && first.blocks_sender && sender->service() == Service::kRc &&
         sender->transport->state() == QpState::kErr);
    if (!is_dropped && !MayTake(qp, first.pdu->pdu())) return;
    Waiting taken = std::move(first);
    qp.waiting.pop_front();
    if (taken.is_from_wire) --held_packets_;
    if (!is_dropped) HandOver({sender}, qp, taken.pdu->pdu(), taken.use);
    EndUse(taken.use);
    if (taken.blocks_sender) Unblock(taken.sender);
  }
}

void DeviceCore::DropWaiting(DeviceQp& qp) {
  std::list<Waiting> dropped = std::move(qp.waiting);
  qp.waiting.clear();
  for (const Waiting& waiting : dropped) {
    if (waiting.is_from_wire) --held_packets_;
    EndUse(waiting.use);
    if (waiting.blocks_sender) Unblock(waiting.sender);
  }
}

void DeviceCore::Unblock(QpRef sender) {
  DeviceQp* qp = FindQp(sender);
  if (qp == nullptr) return;
  qp->is_blocked = false;
  if (qp->transport->HasRequestWork()) MakeReady(*qp);
}

}  // namespace verbena::softnic

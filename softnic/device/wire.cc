// The NIC's end of a network: PDUs to packets and back.
//
// Out: see wire_tx.cc. In: TakePacket checks a packet as the spec has it and hands its PDU to the
// QP, as the local port does (fabric.cc).
//
// Trust: packets are anybody's.
#include <algorithm>
#include <utility>

#include "softnic/device/device_core.h"
#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

namespace wire = transport::wire;
using transport::Path;
using transport::Pdu;

namespace {

// Packets for a QP that can't take them now; more are dropped, and come again.
constexpr size_t kHeldUnackedPerQp = 2048;
constexpr size_t kHeldPacketsMax = 8192;
// Turns in which a QP's full backlog keeps its NIC from reading: copies get a share of each.
constexpr uint32_t kBacklogTurns = 64;
// Sent before an acknowledgement is asked for: in time also where the first burst is too much for
// the peer, and what nobody asked for never fills the room that a loss leaves.
constexpr uint64_t kUnaskedBytesMax = WirePeer::kRoomBytesMin / 2;
constexpr uint64_t kAsksPerRoom = 4;
// QPs waiting for their peers that one acknowledgement looks at; they take turns.
constexpr size_t kWaitersPerLook = 8;

}  // namespace

void DeviceCore::AttachPort(uint32_t nic, transport::PacketPort* port) {
  attached_ports_ += (port != nullptr ? 1u : 0u) - (nics_[nic]->port != nullptr ? 1u : 0u);
  nics_[nic]->port = port;
  WantGrh(*nics_[nic]);
  ++path_epoch_;
  for (const auto& [gid, group] : mcast_groups_) {
    if (port == nullptr) break;
    if (group.HasMemberOn(*nics_[nic])) port->JoinGroup(gid);
  }
}

// Only a UD QP is told whence a datagram came.
void DeviceCore::WantGrh(const Nic& nic) {
  if (nic.port != nullptr) nic.port->WantGrh(nic.ud_qps != 0);
}

bool DeviceCore::IsOnWire(const Nic& nic, const Gid& dgid) const {
  return nic.port != nullptr && (nic.config().is_wire_only || FindNic(dgid) == nullptr);
}

// A connected QP's PDUs all go one way.
bool DeviceCore::IsOnWire(DeviceQp& sender, const Gid& dgid) const {
  if (!sender.IsConnectedService()) return IsOnWire(*sender.nic, dgid);
  if (sender.wire_epoch == path_epoch_) return true;
  if (!IsOnWire(*sender.nic, dgid)) return false;
  sender.wire_epoch = path_epoch_;
  return true;
}

transport::PduLimits DeviceCore::LimitsTo(const DeviceQp& qp, const Gid& dgid) const {
  if (!IsOnWire(*qp.nic, dgid)) return {qp.nic->limits().max_message_bytes, 0};
  // One QP may fill the room alone: that is 64 packets of 4096 bytes to 1024 of 256.
  const auto window =
      static_cast<uint32_t>(WirePeer::RoomBytes(qp.nic->port->receive_buffer_bytes()) /
                            (qp.path_mtu_bytes + WirePeer::kPacketOverheadBytes));
  if (qp.service() != Service::kRc) return {0, window};
  return {std::min(kPduPayloadBytesMax / qp.path_mtu_bytes, kPduPacketsMax) * qp.path_mtu_bytes,
          window};
}

// --- what is under way ---------------------------------------------------------------------------

void DeviceCore::LeadTo(DeviceQp& qp, const Gid& dgid) {
  qp.transport->SetPduLimits(LimitsTo(qp, dgid));
  LeavePeer(qp);
  if (qp.service() != Service::kRc || !IsOnWire(*qp.nic, dgid)) return;
  WirePeer& peer = wire_peers_[{qp.nic->index(), dgid}];
  if (peer.users == 0) peer.room_bytes = WirePeer::RoomBytes(qp.nic->port->receive_buffer_bytes());
  ++peer.users;
  qp.wire.peer = &peer;
  qp.wire.losses = qp.transport->RequestsLost();
}

void DeviceCore::LeavePeer(DeviceQp& qp) {
  WirePeer* peer = qp.wire.peer;
  if (peer == nullptr) return;
  qp.wire.Update(0);
  qp.wire = {};
  if (--peer->users != 0) return;
  std::erase_if(wire_peers_, [peer](const auto& entry) { return &entry.second == peer; });
}

// Who has nothing under way may always send, so that no QP waits for ever.
bool DeviceCore::HasPeerRoom(const DeviceQp& qp) {
  const WirePeer* peer = qp.wire.peer;
  return peer == nullptr || qp.wire.bytes == 0 || peer->bytes < peer->room_bytes;
}

// Whoever loses its turn for want of room: also one that was woken, and found that others had taken
// the room before its turn came.
void DeviceCore::WaitForPeer(DeviceQp& qp) {
  if (HasPeerRoom(qp) || qp.wire.is_waiting || !qp.transport->HasRequestWork()) return;
  qp.wire.is_waiting = true;
  peer_waiters_.push_back(qp.self);
  awaits_peer_room_ = true;
}

// After any input to the QP: acknowledgements make room, for others too.
void DeviceCore::CountUnacked(DeviceQp& qp) {
  if (qp.wire.peer == nullptr) return;
  qp.wire.Update(qp.transport->UnackedPsns());
  qp.wire.CountLosses(qp.transport->RequestsLost());
  WaitForPeer(qp);
  if (peer_waiters_.empty()) {
    awaits_peer_room_ = false;
    return;
  }
  for (size_t n = std::min(peer_waiters_.size(), kWaitersPerLook); n > 0; --n) {
    QpRef ref = peer_waiters_.front();
    DeviceQp* waiter = FindQp(ref);
    peer_waiters_.pop_front();
    if (waiter == nullptr || !waiter->wire.is_waiting) continue;
    if (!HasPeerRoom(*waiter)) {
      peer_waiters_.push_back(ref);
      continue;
    }
    waiter->wire.is_waiting = false;
    if (waiter->transport->HasRequestWork()) MakeReady(*waiter);
  }
  if (peer_waiters_.empty()) awaits_peer_room_ = false;
}

bool DeviceCore::HasPaceRoom(const DeviceQp& qp) {
  return qp.service() == Service::kRc || qp.nic->port == nullptr || qp.nic->pace.HasRoom();
}

// Packets that others hold come back by its own going out, or by nothing it hears of.
void DeviceCore::WaitForTxOrPace(DeviceQp& qp) {
  if (!HasTxRoom(qp.tx_requests)) qp.waits_for_tx = true;
  if (qp.is_paced || HasPaceRoom(qp) || !qp.transport->HasRequestWork()) return;
  qp.is_paced = true;
  paced_.push_back(qp.self);
}

void DeviceCore::BeginPace() {
  for (const auto& nic : nics_) nic->pace.BeginTurn(now_);
  if (paced_.empty()) return;
  std::vector<QpRef> paced = std::move(paced_);
  paced_.clear();
  for (QpRef ref : paced) {
    DeviceQp* qp = FindQp(ref);
    if (qp == nullptr) continue;
    qp->is_paced = false;
    if (MaySend(*qp)) MakeReady(*qp);
    WaitForTxOrPace(*qp);
  }
}

// Those that wait for the next turn, not for a time.
bool DeviceCore::HasPacedWork() {
  return std::any_of(paced_.begin(), paced_.end(), [this](QpRef ref) {
    DeviceQp* qp = FindQp(ref);
    return qp != nullptr && !qp->nic->pace.IsResting();
  });
}

// True: the packet should ask for an acknowledgement. A QP that others keep from filling its window
// would not ask by itself, and wait for its timeout.
bool DeviceCore::CountSent(DeviceQp& qp, const Pdu& pdu) {
  bool is_read = pdu.opcode == transport::Opcode::kReadRequest;
  uint64_t packets = static_cast<uint64_t>(pdu.psn_count.value);
  qp.wire.Add((is_read ? pdu.dma_length : pdu.payload.length) +
              packets * WirePeer::kPacketOverheadBytes);
  qp.wire.psns = qp.transport->UnackedPsns();
  const WirePeer& peer = *qp.wire.peer;
  const uint64_t unasked_max = std::min(peer.room_bytes / kAsksPerRoom, kUnaskedBytesMax);
  const bool asks =
      pdu.ack_request || !HasPeerRoom(qp) || qp.wire.unasked_bytes >= unasked_max / peer.users;
  if (asks) qp.wire.unasked_bytes = 0;
  return asks;
}

// --- in ------------------------------------------------------------------------------------------

// What does not come again is worth some memory while a copy that took too long is carried on by
// another thread. Of what does, so much is kept as waits for one copy.
bool DeviceCore::MayHoldMore(const DeviceQp& qp) const {
  return qp.service() != Service::kRc && qp.waiting.size() < kHeldUnackedPerQp &&
         held_packets_ < kHeldPacketsMax;
}

// The socket holds more than we do: it keeps what a QP can't take before the next copies. Not for
// long: a QP whose client's memory does not answer must hold up nobody.
bool DeviceCore::IsBacklogged(Nic& nic) {
  if (nic.backlog_turns_left == 0) return false;
  DeviceQp* qp = nic.qpns.Find(nic.backlogged);
  if (qp != nullptr && qp->waiting.size() >= kHeldPerQp) return true;
  nic.backlog_turns_left = 0;
  return false;
}

bool DeviceCore::PollPorts(Instant now, uint32_t max_packets) {
  BeginTurn(now);
  bool any = false;
  for (const auto& nic : nics_) {
    if (nic->port == nullptr) continue;
    transport::InPacket packet;
    if (nic->backlog_turns_left != 0) --nic->backlog_turns_left;
    for (uint32_t i = 0; i < max_packets && !IsBacklogged(*nic) && nic->port->Receive(now, &packet);
         ++i) {
      any = true;
      AdvanceTo(packet.received_at);
      TakePacket(*nic, packet);
      // What a batch brings is acknowledged together. But whose client is about to answer goes
      // first: the rest, as a rule the peer's acknowledgement, is for the time after the answer.
      if (!packet.more_follow) {
        DrainMarked();
      } else if (drain_.size() == 1 && drain_.front()->ack_hold.is_trusting()) {
        const size_t held_before = held_acks_.size();
        DrainMarked();
        if (held_acks_.size() > held_before) break;
      }
    }
    FlushMerge(*nic);
  }
  if (any) Settle();
  return any;
}

// Spec: IBTA 9.6 and 10.9.3 (header checks in order), A17. nullptr: the packet is done with.
DeviceQp* DeviceCore::CheckPacket(Nic& nic, const transport::InPacket& packet, Pdu* pdu,
                                  Path* path) {
  ++nic.wire.rx_packets;
  nic.wire.rx_bytes += packet.length;
  if (wire::Decode(packet.bytes, packet.length, pdu) != wire::DecodeError::kNone) {
    ++nic.wire.rx_malformed;
    return nullptr;
  }
  uint16_t ip_id = 0;
  if (wire::VerifyIcrc(packet.address, packet.expected_ip_id, packet.bytes, packet.length,
                       &ip_id) == wire::IcrcCheck::kWrong) {
    ++nic.wire.rx_icrc_errors;
    return nullptr;
  }
  nic.port->LearnIpId(packet, ip_id);
  if (!nic.is_up) return nullptr;
  if (!PkeysMatch(pdu->pkey, kDefaultPkey)) {
    ++nic.wire.rx_bad_pkey;
    return nullptr;
  }
  // As the receiver sees it, for the GRH.
  path->sgid = packet.address.source;
  path->dgid = packet.address.destination;
  path->traffic_class = packet.address.traffic_class;
  path->hop_limit = packet.address.hop_limit;
  path->flow_label = packet.address.flow_label;
  path->ip_id = ip_id;
  pdu->path = path;
  if (path->dgid.IsMulticast()) {
    TakeMulticast(nic, *pdu);
    return nullptr;
  }
  if (pdu->dest_qpn == kQpnGsi) {
    TakeMad(nic, *pdu);
    return nullptr;
  }
  DeviceQp* qp = nic.qpns.Find(pdu->dest_qpn);
  if (qp == nullptr || qp->service() != pdu->service || !qp->IsReceiving()) {
    ++nic.wire.rx_no_qp;
    return nullptr;
  }
  if (qp->IsConnectedService()) {
    const Path& own = qp->transport->path();
    if (own.dgid != path->sgid || own.sgid != path->dgid) {
      ++nic.wire.rx_wrong_peer;
      return nullptr;
    }
  }
  return qp;
}

// A message's packets that came in one batch go on as one PDU: the roles and the copies do for many
// what they would do for each.
void DeviceCore::TakePacket(Nic& nic, const transport::InPacket& packet) {
  Pdu pdu;
  Path path;
  DeviceQp* qp = CheckPacket(nic, packet, &pdu, &path);
  if (merge_.qp != nullptr) {
    const bool is_joined = qp == merge_.qp && JoinMerge(*qp, pdu);
    if (!is_joined || !packet.more_follow || transport::LookUpOpcode(pdu.opcode)->is_last) {
      FlushMerge(nic);
    }
    if (is_joined) return;
  }
  if (qp == nullptr) return;
  const transport::OpcodeInfo& info = *transport::LookUpOpcode(pdu.opcode);
  const bool is_whole_part =
      (info.is_send || info.is_write) && !info.is_last && pdu.payload.length == qp->path_mtu_bytes;
  if (packet.more_follow && is_whole_part && qp->waiting.empty() &&
      qp->transport->IsNextRequest(pdu.psn)) {
    merge_.qp = qp;
    merge_.pdu = pdu;
    merge_.path = path;
    merge_.pdu.path = &merge_.path;
    return;
  }
  AcceptPdu(nic, *qp, pdu);
}

// False: the packet does not go on where the others end.
bool DeviceCore::JoinMerge(const DeviceQp& qp, const Pdu& pdu) {
  Pdu& whole = merge_.pdu;
  transport::Payload& payload = whole.payload;
  const transport::OpcodeInfo& before = *transport::LookUpOpcode(whole.opcode);
  const transport::OpcodeInfo& info = *transport::LookUpOpcode(pdu.opcode);
  if (info.is_first || !(info.is_middle || info.is_last) || info.is_send != before.is_send ||
      info.is_write != before.is_write || pdu.psn != whole.psn + whole.psn_count ||
      pdu.pkey != whole.pkey) {
    return false;
  }
  const auto pieces = static_cast<uint32_t>(whole.psn_count.value);
  const bool has_length = info.is_last ? pdu.payload.length <= qp.path_mtu_bytes
                                       : pdu.payload.length == qp.path_mtu_bytes;
  if (!has_length || pdu.payload.length == 0) return false;
  const auto stride =
      pieces == 1 ? pdu.payload.bytes - payload.bytes : ptrdiff_t{payload.piece_stride_bytes};
  if (stride < ptrdiff_t{qp.path_mtu_bytes} || stride > ptrdiff_t{wire::kPacketBytesMax} ||
      pdu.payload.bytes != payload.bytes + stride * pieces) {
    return false;
  }
  payload.piece_bytes = qp.path_mtu_bytes;
  payload.piece_stride_bytes = static_cast<uint32_t>(stride);
  payload.length += pdu.payload.length;
  whole.opcode = transport::JoinedOpcode(whole.opcode, pdu.opcode);
  whole.psn_count.value += 1;
  whole.ack_request |= pdu.ack_request;
  whole.solicited |= pdu.solicited;
  whole.imm_or_rkey = pdu.imm_or_rkey;
  return true;
}

void DeviceCore::FlushMerge(Nic& nic) {
  if (DeviceQp* qp = std::exchange(merge_.qp, nullptr); qp != nullptr) {
    AcceptPdu(nic, *qp, merge_.pdu);
  }
}

void DeviceCore::NoteMessagePart(const transport::OpcodeInfo& info, bool is_received) {
  if (!info.is_send && !info.is_write && !info.is_read_response) return;
  is_mid_message_ = !info.is_last;
  if (!is_received) return;
  if (info.is_first) is_streaming_ = may_be_streaming_;
  may_be_streaming_ = true;
}

void DeviceCore::AcceptPdu(Nic& nic, DeviceQp& qp, const Pdu& pdu) {
  NoteMessagePart(*transport::LookUpOpcode(pdu.opcode), true);
  if (qp.waiting.empty() && MayTake(qp, pdu)) {
    HandOver({nullptr}, qp, pdu, kNoUse);
    return;
  }
  if (qp.waiting.size() >= kHeldPerQp && !MayHoldMore(qp)) {
    ++nic.wire.rx_dropped;
    return;
  }
  qp.waiting.push_back({{}, false, true, kNoUse, held_pdus_.Hold(pdu)});
  ++held_packets_;
  if (qp.waiting.size() == kHeldPerQp) {
    nic.backlogged = pdu.dest_qpn;
    nic.backlog_turns_left = kBacklogTurns;
  }
}

// Unreliable: a member that can't take it now does not get it.
void DeviceCore::TakeMulticast(Nic& nic, const Pdu& pdu) {
  // Our own, come back: members in this instance got it already.
  if (!nic.config().is_wire_only && FindNic(pdu.path->sgid) != nullptr) return;
  auto group = mcast_groups_.find(pdu.path->dgid);
  if (group == mcast_groups_.end()) return;
  for (DeviceQp* member : group->second.members) {
    if (member->nic != &nic || member->service() != pdu.service || !member->IsReceiving() ||
        !member->transport->CanAccept(pdu)) {
      continue;
    }
    if (AwaitsReceive(*member, pdu)) {
      if (member->waiting.size() >= kHeldPerQp) continue;
      member->waiting.push_back({{}, false, true, kNoUse, held_pdus_.Hold(pdu)});
      ++held_packets_;
    } else {
      HandOver({nullptr}, *member, pdu, kNoUse);
    }
  }
}

// --- the port ------------------------------------------------------------------------------------

void DeviceCore::SetPortState(Instant now, uint32_t index, bool is_up) {
  AdvanceTo(now);
  Nic& nic = *nics_[index];
  if (nic.is_up == is_up) return;
  nic.is_up = is_up;
  Inject(nic, is_up ? EventType::kPortActive : EventType::kPortErr, {});
}

}  // namespace verbena::softnic

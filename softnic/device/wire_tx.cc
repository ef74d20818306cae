// What a NIC sends to a network: EmitPacket writes the headers of a PDU's packets and has the
// payload read into them; when it is there, they go to the NIC's port in the order of their QP's
// PDUs.
//
// An acknowledgement may wait for the answer (wire_ack.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "softnic/device/device_core.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

namespace wire = transport::wire;
using transport::Path;
using transport::Pdu;

namespace {

// Packets of one QP made and not yet sent, requests and responses each: enough to fill batches.
constexpr uint32_t kTxPerQp = 64;
// Payload read at once, where it can be. The CRC of more is had while it is copied
// (docs/adr/0010).
constexpr uint32_t kReadNowBytesMax = 512;

}  // namespace

bool DeviceCore::HasTxRoom(const TxQueue& queue) const {
  return queue.size() < kTxPerQp && (queue.size() == 0 || tx_pool_.HasForAny());
}

// Headers only. `offset`: of the packet in its block.
TxPacket* DeviceCore::MakePacket(const Pdu& pdu, const Path& path, TxBlock* block,
                                 uint32_t offset) {
  TxPacket* packet = tx_pool_.Take(block, offset);
  packet->address.source = path.sgid;
  packet->address.destination = path.dgid;
  packet->address.traffic_class = path.traffic_class;
  packet->address.hop_limit = path.hop_limit;
  packet->address.flow_label = path.flow_label;
  packet->header_bytes = wire::EncodeHeaders(pdu, packet->bytes);
  packet->payload_bytes = pdu.payload.length;
  return packet;
}

void DeviceCore::EmitPacket(DeviceQp& sender, const Pdu& pdu, const Path& path, uint64_t use) {
  const uint32_t length = pdu.payload.length;
  const uint32_t count = length == 0 ? 1 : static_cast<uint32_t>(pdu.psn_count.value);
  const uint32_t mtu_bytes = count == 1 ? length : sender.path_mtu_bytes;
  VERBENA_CHECK(length <= count * mtu_bytes && mtu_bytes <= wire::kPayloadBytesMax);
  const transport::OpcodeInfo& info = *transport::LookUpOpcode(pdu.opcode);
  const uint32_t bytes_max = length + count * kTxOverheadBytes;
  if (!tx_pool_.Has(count, bytes_max)) {
    sender.nic->wire.tx_dropped += count;  // as if lost on the way
    return;
  }
  const bool is_response = !info.is_request;
  NoteMessagePart(info, false);
  if (!is_response) sender.ack_hold.OnRequest(now_, turn_before_);
  const bool asks =
      is_response || sender.wire.peer == nullptr ? pdu.ack_request : CountSent(sender, pdu);
  TxQueue& queue = is_response ? sender.tx_responses : sender.tx_requests;
  TxBlock* block = tx_pool_.TakeBlock(bytes_max);
  TxPacket* first = nullptr;
  if (count == 1 && asks == pdu.ack_request) {
    first = MakePacket(pdu, path, block, 0);
    queue.Push(first);
  } else {
    first = MakePackets(pdu, path, block, {count, mtu_bytes, asks}, queue);
  }
  if (sender.service() != Service::kRc) {
    for (TxPacket* packet = first; packet != nullptr; packet = packet->next_of_pdu) {
      sender.nic->pace.OnPacket(packet->payload_bytes);
    }
  }
  if (length != 0 && pdu.payload.segments != nullptr) {
    if (count != 1 || !ReadNow(sender, pdu.payload, first)) {
      return SubmitRead(sender, pdu, use, first);
    }
    first->Finish();
    return PumpTx(sender);
  }
  const std::byte* from = pdu.payload.bytes;
  for (TxPacket* packet = first; packet != nullptr; packet = packet->next_of_pdu) {
    if (length != 0) {
      std::memcpy(packet->bytes + packet->header_bytes, from, packet->payload_bytes);
    }
    from += packet->payload_bytes;
    packet->Finish();
  }
  if (!HoldAck(sender, pdu)) PumpTx(sender);
}

TxPacket* DeviceCore::MakePackets(const Pdu& pdu, const Path& path, TxBlock* block,
                                  const PduCut& cut, TxQueue& queue) {
  uint32_t block_bytes = 0;
  TxPacket* first = nullptr;
  TxPacket* last = nullptr;
  Pdu part = pdu;
  for (uint32_t i = 0; i < cut.packets; ++i) {
    const bool is_last = i + 1 == cut.packets;
    if (cut.packets != 1) part.opcode = transport::SegmentOpcode(pdu.opcode, i == 0, is_last);
    part.psn = pdu.psn + PsnCount{static_cast<int32_t>(i)};
    part.ack_request = cut.asks && is_last;
    part.solicited = pdu.solicited && is_last;
    part.payload.length = std::min(cut.mtu_bytes, pdu.payload.length - i * cut.mtu_bytes);
    TxPacket* packet = MakePacket(part, path, block, block_bytes);
    block_bytes += packet->length() + wire::kIcrcBytes;
    queue.Push(packet);
    (first == nullptr ? first : last->next_of_pdu) = packet;
    last = packet;
  }
  return first;
}

// The DMA engine shall read the PDU's payload into its packets.
void DeviceCore::SubmitRead(DeviceQp& sender, const Pdu& pdu, uint64_t use, TxPacket* first) {
  local_pieces_.clear();
  for (TxPacket* packet = first; packet != nullptr; packet = packet->next_of_pdu) {
    local_pieces_.push_back(
        {packet->bytes + packet->header_bytes, packet->payload_bytes, &packet->crc});
  }
  DmaRecord record;
  record.qp = record.sender = sender.self;
  record.opcode = pdu.opcode;
  record.psn = pdu.psn;
  record.use = use;
  record.packet = first;
  KeepUse(use);
  CountRead(sender, record, pdu.payload);
  transport::DmaRequest request;
  request.source = pdu.payload;
  request.local_pieces = local_pieces_.data();
  request.local_piece_count = static_cast<uint16_t>(local_pieces_.size());
  const ReachedMemory source =
      Reach(pdu.payload.segments, pdu.payload.segment_count, sender, reached_source_);
  request.source.segments = source.segments;
  record.reads_anothers = source.is_anothers;
  CountMoves(record, 1);
  dma_->Submit(sender.stream, dmas_.Insert(record), request);
}

// True: the payload of the packet is there.
bool DeviceCore::ReadNow(DeviceQp& sender, const transport::Payload& payload, TxPacket* packet) {
  if (payload.length > kReadNowBytesMax || payload.offset != 0 || sender.moves_in_flight != 0) {
    return false;
  }
  transport::Payload source = payload;
  source.segments =
      Reach(payload.segments, payload.segment_count, sender, reached_source_).segments;
  return dma_->ReadNow(source, packet->bytes + packet->header_bytes);
}

void DeviceCore::OnPayloadRead(const DmaRecord& record, transport::DmaStatus status) {
  const bool is_orphan = record.packet->is_orphan;  // as the others, as none was ready
  for (TxPacket *packet = record.packet, *next; packet != nullptr; packet = next) {
    next = packet->next_of_pdu;
    if (is_orphan) {
      tx_pool_.Give(packet);
      continue;
    }
    packet->is_void = status != transport::DmaStatus::kOk;
    packet->Finish();
  }
  if (!is_orphan) PumpTx(*FindQp(record.qp));
}

// True: `pdu`, whose packet is in tx_responses, is an acknowledgement that waits for the answer.
bool DeviceCore::HoldAck(DeviceQp& qp, const Pdu& pdu) {
  if (pdu.opcode != transport::Opcode::kAcknowledge || pdu.ack_type != transport::AckType::kAck ||
      qp.service() != Service::kRc || !qp.ack_hold.OnAck(now_)) {
    return false;
  }
  held_acks_.push_back({qp.self, now_});
  return qp.tx_responses.size() == 1;
}

// Its entry is the last one as a rule; another's is passed over when it is due.
void DeviceCore::LetAckGo(DeviceQp& qp) {
  qp.ack_hold.LetGo();
  if (held_acks_.back().qp.slot == qp.self.slot) held_acks_.pop_back();
}

void DeviceCore::BeginHolding() {
  for (size_t i = held_acks_.size(); i > 0 && held_acks_[i - 1].waits_from.IsNever(); --i) {
    if (held_acks_[i - 1].made < turn_) held_acks_[i - 1].waits_from = turn_;
  }
}

void DeviceCore::GiveUpHeldAcks() {
  BeginHolding();
  while (!held_acks_.empty() && held_acks_.front().due() <= now_) {
    const HeldAck held = held_acks_.front();
    // What is about to be sent may be the answer.
    if (!ready_sessions_.IsEmpty() && now_ < held.due() + AckHold::kWait) return;
    held_acks_.pop_front();
    DeviceQp* qp = FindQp(held.qp);
    if (qp == nullptr || !qp->ack_hold.is_holding() || qp->ack_hold.acked_at() != held.made) {
      continue;
    }
    qp->ack_hold.GiveUp();
    PumpTx(*qp);
  }
}

void DeviceCore::PumpTx(DeviceQp& qp) {
  bool is_open = true;
  if (qp.ack_hold.is_holding()) {
    // The answer goes first: a batch takes a shorter packet only as its last one.
    const uint32_t requests = qp.tx_requests.size();
    is_open = PumpQueue(qp, qp.tx_requests);
    if (qp.tx_requests.size() != requests || qp.tx_responses.size() != 1) LetAckGo(qp);
  }
  if (!qp.ack_hold.is_holding()) {
    is_open = PumpQueue(qp, qp.tx_responses) && PumpQueue(qp, qp.tx_requests);
  }
  if (!is_open && !qp.is_tx_stalled) {
    qp.is_tx_stalled = true;
    stalled_.push_back(qp.self);
  }
  // What waited for room goes on.
  if (!qp.waits_for_tx || !HasTxRoom(qp.tx_requests) || !HasTxRoom(qp.tx_responses)) return;
  qp.waits_for_tx = false;
  MarkForDrain(qp);
  MakeReady(qp);
}

// False: the port has no room now.
bool DeviceCore::PumpQueue(DeviceQp& qp, TxQueue& queue) {
  Nic& nic = *qp.nic;
  while (queue.front() != nullptr && queue.front()->is_ready) {
    TxPacket* packet = queue.front();
    if (packet->is_void) {
      tx_pool_.Give(queue.Pop());
      continue;
    }
    if (nic.port == nullptr || !nic.is_up) {
      ++nic.wire.tx_dropped;
    } else {
      transport::OutPacket out;
      out.address = packet->address;
      out.bytes = packet->bytes;
      out.length = packet->length();
      if (packet->crc.is_known) {
        out.payload = {packet->header_bytes, packet->payload_bytes, packet->crc.value};
      }
      const bool is_lent = tx_pool_.MayLend(*packet);
      if (is_lent) {
        out.lender = &tx_pool_;
        out.block = packet->block;
      }
      if (!nic.port->Send(now_, out)) return false;
      ++nic.wire.tx_packets;
      nic.wire.tx_bytes += out.length + wire::kIcrcBytes;
      if (is_lent) {
        tx_pool_.GiveLent(queue.Pop());
        continue;
      }
    }
    tx_pool_.Give(queue.Pop());
  }
  return true;
}

// The QP is reset or destroyed: what it had not sent never is, but for answers that are ready. Its
// client may have seen what they acknowledge, and nobody is there to repeat them.
void DeviceCore::DropTx(DeviceQp& qp) {
  qp.ack_hold.LetGo();
  PumpQueue(qp, qp.tx_responses);
  for (TxQueue* queue : {&qp.tx_requests, &qp.tx_responses}) {
    while (queue->front() != nullptr) {
      TxPacket* packet = queue->Pop();
      if (packet->is_ready) {
        tx_pool_.Give(packet);
      } else {
        packet->is_orphan = true;  // a copy into it is under way
      }
    }
  }
  qp.waits_for_tx = qp.is_tx_stalled = false;
  qp.ack_hold = {};
}

bool DeviceCore::FlushPorts(Instant now) {
  AdvanceTo(now);
  for (const auto& nic : nics_) {
    if (nic->port != nullptr) nic->port->Flush(now);
    if (nic->gsi.packets.empty()) continue;
    FlushMads(*nic);
    if (nic->port != nullptr) nic->port->Flush(now);
  }
  const bool has_moved = !stalled_.empty() && PumpStalled();
  return has_moved || !ready_sessions_.IsEmpty();
}

// True: some are still stalled, though the port took packets.
bool DeviceCore::PumpStalled() {
  uint64_t sent = 0;
  for (const auto& nic : nics_) sent -= nic->wire.tx_packets;
  std::vector<QpRef> stalled = std::move(stalled_);
  stalled_.clear();
  for (QpRef ref : stalled) {
    DeviceQp* qp = FindQp(ref);
    if (qp == nullptr) continue;
    qp->is_tx_stalled = false;
    PumpTx(*qp);
  }
  Settle();
  // A NIC that sleeps now would keep what lies in its ports.
  for (const auto& nic : nics_) {
    sent += nic->wire.tx_packets;
    if (nic->port != nullptr) nic->port->Flush(now_);
  }
  return sent != 0 && !stalled_.empty();
}

bool DeviceCore::PreparePortsToSleep() {
  // What was expected has not come.
  is_mid_message_ = may_be_streaming_ = is_streaming_ = awaits_peer_room_ = false;
  // What waits for an answer does so while the NIC is awake anyway.
  bool may_sleep = held_acks_.empty();
  for (HeldAck& held : std::exchange(held_acks_, {})) {
    DeviceQp* qp = FindQp(held.qp);
    if (qp == nullptr || !qp->ack_hold.is_holding()) continue;
    qp->ack_hold.LetGo();
    PumpTx(*qp);
  }
  for (const auto& nic : nics_) {
    if (nic->port != nullptr) may_sleep &= nic->port->PrepareToSleep();
  }
  return may_sleep;
}

}  // namespace verbena::softnic

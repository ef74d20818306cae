#include "tests/simulation/wire_watch.h"

#include <algorithm>
#include <string>

#include "tests/simulation/world.h"
#include "transport/wire/packet.h"

namespace verbena::simulation {

using transport::OpcodeInfo;
using transport::Pdu;
using transport::sim::SimPacketFate;

namespace {

// A quarter of a socket like ours, at least 320 KB, at most 1280 KB; a packet counts 1 KB more than
// its payload (docs/adr/0012).
constexpr uint32_t kRoomBytesMin = 320 << 10;
constexpr uint32_t kRoomBytesMax = 1280 << 10;
constexpr uint32_t kPacketOverheadBytes = 1024;

bool IsAnswered(const OpcodeInfo& info, const Pdu& pdu) {
  return pdu.opcode == transport::Opcode::kReadRequest || info.is_atomic || info.is_atomic_write ||
         info.is_flush;
}

}  // namespace

uint32_t WireWatch::RoomBytes(const Plan& plan) {
  return std::clamp(plan.network.receive_buffer_bytes / 4, kRoomBytesMin, kRoomBytesMax);
}

void WireWatch::Add(const End& end, const Gid& own) {
  Requester requester;
  requester.end = &end;
  requester.window_psns =
      static_cast<int32_t>(RoomBytes(world_->plan()) / (end.mtu_bytes + kPacketOverheadBytes));
  requester.sent = requester.acked = Psn(end.plan.sq_psn);
  by_end_[&end] = &(requesters_[{own, end.qp.qpn.value}] = requester);
}

void WireWatch::OnPacket(SimPacketFate fate, const transport::sim::SimPacket& packet) {
  const bool is_sent = fate == SimPacketFate::kSent;
  if (!is_sent && fate != SimPacketFate::kDelivered) return;
  Pdu pdu;
  if (transport::wire::Decode(packet.bytes, packet.length, &pdu) !=
      transport::wire::DecodeError::kNone) {
    return;
  }
  const OpcodeInfo* info = transport::LookUpOpcode(pdu.opcode);
  if (pdu.service != Service::kRc || info->is_request != is_sent) return;
  auto receiver = requesters_.find({packet.address.destination, pdu.dest_qpn.value});
  if (receiver == requesters_.end()) return;  // corrupted
  if (is_sent) {
    OnRequest(*by_end_.at(receiver->second.end->peer), pdu);
  } else {
    OnResponse(receiver->second, pdu);
  }
}

void WireWatch::OnRequest(Requester& requester, const Pdu& pdu) {
  const End& end = *requester.end;
  const bool is_read = pdu.opcode == transport::Opcode::kReadRequest;
  const uint32_t packets =
      is_read ? std::max(1u, (pdu.dma_length + end.mtu_bytes - 1) / end.mtu_bytes) : 1;
  const Psn next = pdu.psn + PsnCount{static_cast<int32_t>(packets)};
  if (!requester.sent.Before(next)) return;  // again
  requester.sent = next;
  const std::string who = "QP " + std::to_string(end.number);
  const int32_t unacked = Psn::Delta(requester.acked, next).value;
  if (unacked > requester.window_psns) {
    world_->Violate(who + " has " + std::to_string(unacked) + " PSNs unacknowledged, of " +
                    std::to_string(requester.window_psns));
  }
  if (!IsAnswered(*transport::LookUpOpcode(pdu.opcode), pdu)) return;
  requester.awaited.push_back(next - PsnCount{1});
  if (requester.awaited.size() > end.plan.max_rd_atomic) {
    world_->Violate(who + " has " + std::to_string(requester.awaited.size()) +
                    " READs and atomics outstanding, of " + std::to_string(end.plan.max_rd_atomic));
  }
}

void WireWatch::OnResponse(Requester& requester, const Pdu& pdu) {
  // A NAK acknowledges what comes before it.
  const bool is_nak = pdu.ack_type != transport::AckType::kAck;
  const Psn acked = is_nak ? pdu.psn : pdu.psn.Next();
  const OpcodeInfo& info = *transport::LookUpOpcode(pdu.opcode);
  if ((info.is_read_response && info.is_last) ||
      pdu.opcode == transport::Opcode::kAtomicAcknowledge) {
    std::erase(requester.awaited, pdu.psn);
  }
  // A corrupted packet may say anything, and is dropped.
  if (requester.acked.Before(acked) && !acked.After(requester.sent)) requester.acked = acked;
}

}  // namespace verbena::simulation

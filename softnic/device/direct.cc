// Messages between two connected QPs of this instance: in one step, where that makes no difference
// but to time (transport/rc/rc_direct.cc).
#include "softnic/device/device_core.h"

namespace verbena::softnic {

using shm::VendorErr;
using transport::Direct;
using transport::DirectMove;
using transport::DmaSegment;

namespace {

// What counts as much as a PDU in a QP's turn, which is to be short whatever the size of messages.
constexpr uint32_t kBytesPerStep = 32768;

bool IsByWindow(const DmaSegment& segment) { return (segment.memory & kWindowMemoryBit) != 0; }

}  // namespace

bool DeviceQp::ResolveDirect(const shm::Sge* sge, uint32_t num_sge, DirectMove* move) {
  return num_sge <= DirectMove::kSgesMax &&
         CheckLocal(sge, num_sge, 0, move->segments, &move->segment_count) == VendorErr::kNone;
}

// The keys are good now, and nothing else happens before the bytes have moved: unlike those of
// work under way, these segments need not be looked at again (DeviceCore::Reach).
bool DeviceQp::MoveDirect(const DirectMove& move, transport::QpHost& other) {
  const DeviceQp& peer = static_cast<DeviceQp&>(other);
  DmaSegment destination[DirectMove::kSgesMax];
  uint16_t destinations = 1;
  if (move.receive == nullptr) {
    if (peer.CheckRemote(move.rkey, move.remote_addr, move.length, access::kRemoteWrite,
                         destination) != VendorErr::kNone ||
        IsByWindow(destination[0])) {
      return false;
    }
  } else {
    if (move.receive->num_sge > DirectMove::kSgesMax) return false;
    shm::Sge needed[DirectMove::kSgesMax];
    const uint32_t count =
        transport::TrimSges(move.receive->sge, move.receive->num_sge, move.length, needed);
    if (peer.CheckLocal(needed, count, access::kLocalWrite, destination, &destinations) !=
        VendorErr::kNone) {
      return false;
    }
  }
  transport::Payload payload;
  payload.length = move.length;
  payload.bytes = move.bytes;
  payload.segments = move.bytes == nullptr ? move.segments : nullptr;
  payload.segment_count = move.segment_count;
  return device->MoveNow(payload, destination, destinations);
}

bool DeviceQp::ReadDirect(const DirectMove& move, const shm::Sge* sge, uint32_t num_sge,
                          transport::QpHost& other) {
  const DeviceQp& peer = static_cast<DeviceQp&>(other);
  if (num_sge > DirectMove::kSgesMax) return false;
  DmaSegment source, destination[DirectMove::kSgesMax];
  uint16_t destinations = 0;
  if (CheckLocal(sge, num_sge, access::kLocalWrite, destination, &destinations) !=
          VendorErr::kNone ||
      peer.CheckRemote(move.rkey, move.remote_addr, move.length, access::kRemoteRead, &source) !=
          VendorErr::kNone ||
      IsByWindow(source)) {
    return false;
  }
  transport::Payload payload;
  payload.length = move.length;
  payload.segments = &source;
  payload.segment_count = 1;
  return device->MoveNow(payload, destination, destinations);
}

// A guess: the WQE is fetched and checked in its turn. But asking for a line takes it from others,
// which nobody may do who may not write there.
void DeviceQp::ExpectMove(const DeviceQp& peer) const {
  shm::SendWqe wqe;
  if (!send_ring.Glance(&wqe, offsetof(shm::SendWqe, inline_bytes))) return;
  if (wqe.opcode != static_cast<uint8_t>(shm::WrOpcode::kRdmaWrite)) return;
  DmaSegment first;
  if (peer.CheckRemote(RKey(wqe.rkey), wqe.remote_addr, 1, access::kRemoteWrite, &first) ==
          VendorErr::kNone &&
      !IsByWindow(first)) {
    device->ExpectMove(first.memory, first.addr);
  }
}

uint32_t DeviceCore::SendDirect(DeviceQp& qp, uint32_t max_steps) {
  // Known once a PDU went there: not over a network, and connected to this QP.
  if (qp.peer_epoch != path_epoch_ || qp.rate != nullptr) return 0;
  DeviceQp* peer = FindQp(qp.peer);
  const bool is_free = peer != nullptr && qp.waiting.empty() && peer->waiting.empty() &&
                       !qp.has_more_output && !peer->has_more_output &&
                       peer->qpn == qp.transport->remote_qpn() && !peer->CountsPeers();
  if (!is_free) return 0;
  const uint64_t bytes_before = payload_bytes_;
  uint32_t sent = 0, steps = 0;
  bool has_output = false;
  while (steps < max_steps) {
    const Direct became = qp.transport->SendDirect(now_, *peer->transport, blank_completion_);
    if (became == Direct::kNot) break;
    if (became == Direct::kCompleted) {
      PushCompletion(qp, true);
    } else {
      PublishHeld();
    }
    if (became == Direct::kDone) qp.ReleaseSend(1);
    has_output |= became == Direct::kSent;
    ++sent;
    steps = sent + static_cast<uint32_t>((payload_bytes_ - bytes_before) / kBytesPerStep);
  }
  if (sent == 0) return 0;
  pdus_ += 2 * uint64_t{sent};  // with their acknowledgements
  peer->last_used = now_;
  if (has_output) {
    // Received before it is acknowledged.
    MarkForDrain(*peer);
    MarkForDrain(qp);
  }
  DrainMarked();  // of these; and if a CQ was overrun, of its QPs
  return steps;
}

}  // namespace verbena::softnic

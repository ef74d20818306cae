// QP1: MADs to and from the NICs of this instance, and the networks.
//
// Unreliable, as UD is: a port that is down or an address nobody has takes a MAD away without a
// word, and so does a queue that is full.
#include <cerrno>
#include <cstring>

#include "softnic/device/device_core.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

namespace wire = transport::wire;
using transport::Pdu;

namespace {

constexpr uint8_t kHopLimit = 64;

}  // namespace

int DeviceCore::SendMad(Instant now, uint32_t index, const Gid& sgid, const Gid& dgid,
                        const std::byte* bytes, size_t length) {
  AdvanceTo(now);
  if (index >= nics_.size() || length != kMadBytes || dgid.IsMulticast() || dgid.IsZero()) {
    return EINVAL;
  }
  Nic& nic = *nics_[index];
  if (FindNic(sgid) != &nic) return EADDRNOTAVAIL;
  if (!nic.is_up) {
    ++nic.wire.tx_dropped;
    return 0;
  }
  if (IsOnWire(nic, dgid)) {
    EmitMad(nic, sgid, dgid, bytes);
    return 0;
  }
  const Nic* destination = FindNic(dgid);
  if (destination != nullptr && destination->is_up && mad_handler_) {
    mad_handler_(destination->index(), dgid, sgid, bytes, length);
  }
  return 0;
}

// Spec: IBTA 9.8.3 (a UD datagram is one SEND Only), 10.2.5 (QP1's Q_Key).
void DeviceCore::EmitMad(Nic& nic, const Gid& sgid, const Gid& dgid, const std::byte* bytes) {
  FlushMads(nic);
  if (nic.gsi.packets.size() >= GsiQueue::kPacketsMax) {
    ++nic.wire.tx_dropped;
    return;
  }
  Pdu pdu;
  pdu.service = Service::kUd;
  pdu.opcode = transport::Opcode::kSendOnly;
  pdu.pkey = kDefaultPkey;
  pdu.src_qpn = kQpnGsi;
  pdu.dest_qpn = kQpnGsi;
  pdu.qkey = kGsiQkey;
  pdu.psn = nic.gsi.next_psn;
  nic.gsi.next_psn = nic.gsi.next_psn.Next();
  pdu.payload.length = kMadBytes;
  static_assert(wire::PadBytes(kMadBytes) == 0);
  GsiQueue::Packet& packet = nic.gsi.packets.emplace_back();
  packet.address.source = sgid;
  packet.address.destination = dgid;
  packet.address.hop_limit = kHopLimit;
  const uint32_t header_bytes = wire::EncodeHeaders(pdu, packet.bytes.data());
  std::memcpy(packet.bytes.data() + header_bytes, bytes, kMadBytes);
  packet.length = header_bytes + kMadBytes;
  FlushMads(nic);
}

void DeviceCore::FlushMads(Nic& nic) {
  while (!nic.gsi.packets.empty()) {
    const GsiQueue::Packet& packet = nic.gsi.packets.front();
    if (nic.port == nullptr || !nic.is_up) {
      ++nic.wire.tx_dropped;
    } else {
      transport::OutPacket out;
      out.address = packet.address;
      out.bytes = packet.bytes.data();
      out.length = packet.length;
      if (!nic.port->Send(now_, out)) return;
      ++nic.wire.tx_packets;
      nic.wire.tx_bytes += out.length + wire::kIcrcBytes;
    }
    nic.gsi.packets.pop_front();
  }
}

// ICRC and P_Key are right already. Whoever knows QP1's Q_Key might be a program with a UD QP: only
// a QP1 speaks for its port.
void DeviceCore::TakeMad(Nic& nic, const Pdu& pdu) {
  if (pdu.service != Service::kUd) {
    ++nic.wire.rx_no_qp;
  } else if (pdu.qkey != kGsiQkey) {
    ++nic.qkey_violations;
  } else if (pdu.payload.length != kMadBytes || pdu.opcode != transport::Opcode::kSendOnly) {
    ++nic.wire.rx_malformed;
  } else if (pdu.src_qpn != kQpnGsi || FindNic(pdu.path->dgid) != &nic) {
    ++nic.wire.rx_wrong_peer;
  } else if (mad_handler_) {
    mad_handler_(nic.index(), pdu.path->dgid, pdu.path->sgid, pdu.payload.bytes,
                 pdu.payload.length);
  }
}

}  // namespace verbena::softnic

// Whose a packet is: for captures, traces and fault rules.
#include <algorithm>
#include <cstdio>

#include "softnic/device/device_core.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

namespace wire = transport::wire;

namespace {

std::string QpText(Qpn qpn) {
  char text[16];
  std::snprintf(text, sizeof(text), "QP 0x%x", qpn.value);
  return text;
}

}  // namespace

// Headers do not say who sent a packet of a connected service; looking for it is for captures.
Qpn DeviceCore::FindConnectedQpn(uint32_t nic, const Gid& peer, Qpn remote) const {
  auto is_it = [&](const DeviceQp& qp) {
    return qp.nic == nics_[nic].get() && qp.IsConnectedService() &&
           qp.transport->remote_qpn() == remote && qp.transport->path().dgid == peer;
  };
  QpRef& seen = senders_seen_[{peer, remote.value}];
  if (const DeviceQp* qp = FindQp(seen); qp != nullptr && is_it(*qp)) return qp->qpn;
  for (const QpSlot& slot : qp_slots_) {
    if (slot.qp == nullptr || !is_it(*slot.qp)) continue;
    seen = slot.qp->self;
    return slot.qp->qpn;
  }
  return Qpn{0};
}

Qpn DeviceCore::SourceQpnOf(uint32_t nic, const wire::PacketAddress& address,
                            const transport::Pdu& pdu, bool is_sent) const {
  if (pdu.service == Service::kUd) return pdu.src_qpn;
  if (is_sent) return FindConnectedQpn(nic, address.destination, pdu.dest_qpn);
  const DeviceQp* qp = nics_[nic]->qpns.Find(pdu.dest_qpn);
  return qp != nullptr && qp->IsConnectedService() ? qp->transport->remote_qpn() : Qpn{0};
}

std::string DeviceCore::DescribeOwner(uint32_t nic, Qpn qpn) const {
  if (qpn == kQpnGsi) return "connection management " + QpText(qpn);
  const DeviceQp* qp = nics_[nic]->qpns.Find(qpn);
  if (qp == nullptr) return QpText(qpn) + " (nobody's)";
  return qp->session->program + " (pid " + std::to_string(qp->session->pid) + ") " + QpText(qpn);
}

std::string DeviceCore::DescribeGroup(uint32_t nic, const Gid& gid) const {
  constexpr size_t kNamedMax = 4;  // for people
  std::string text = "group " + wire::AddressText(gid) + ": ";
  size_t count = 0;
  if (const auto group = mcast_groups_.find(gid); group != mcast_groups_.end()) {
    for (const DeviceQp* member : group->second.members) {
      if (member->nic != nics_[nic].get() || ++count > kNamedMax) continue;
      text += (count == 1 ? "" : ", ") + DescribeOwner(nic, member->qpn);
    }
  }
  if (count == 0) return text + "no member here";
  return count <= kNamedMax ? text : text + " and " + std::to_string(count - kNamedMax) + " more";
}

std::string DeviceCore::DescribePacket(uint32_t nic, const wire::PacketAddress& address,
                                       const transport::Pdu& pdu, bool is_sent) const {
  const Qpn source = SourceQpnOf(nic, address, pdu, is_sent);
  const Gid& to = address.destination;
  if (is_sent) {
    // 0: it is gone, and its last packets come after it.
    return (source.value == 0 ? "a QP that is gone" : DescribeOwner(nic, source)) + " → " +
           (to.IsMulticast() ? "group " : "") + wire::AddressText(to) + " " + QpText(pdu.dest_qpn);
  }
  return (to.IsMulticast() ? DescribeGroup(nic, to) : DescribeOwner(nic, pdu.dest_qpn)) + " ← " +
         wire::AddressText(address.source) + (source.value == 0 ? "" : " " + QpText(source));
}

}  // namespace verbena::softnic

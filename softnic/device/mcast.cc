// Multicast groups: which UD QPs get what is sent to a group's GID. All NICs of an instance are on
// one subnet, so a group has members on all of them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

bool DeviceCore::McastGroup::HasMemberOn(const Nic& nic) const {
  return std::any_of(members.begin(), members.end(),
                     [&nic](const DeviceQp* member) { return member->nic == &nic; });
}

int DeviceCore::AttachMcast(Command& command) {
  auto request = command.Request<shm::McastRequest>();
  DeviceQp* qp = command.session->qps.Find(request.qp);
  Gid gid;
  std::memcpy(gid.raw.data(), request.gid, sizeof(request.gid));
  if (qp == nullptr || qp->service() != Service::kUd || !gid.IsMulticast()) return EINVAL;
  // Attaching twice is attaching once, as the kernel has it.
  if (std::find(qp->mcast_groups.begin(), qp->mcast_groups.end(), gid) != qp->mcast_groups.end()) {
    return 0;
  }
  const DeviceLimits& limits = qp->nic->limits();
  auto group = mcast_groups_.find(gid);
  if (group == mcast_groups_.end()) {
    if (mcast_groups_.size() >= limits.max_mcast_grp) return ENOMEM;
    group = mcast_groups_.emplace(gid, McastGroup{}).first;
  }
  if (group->second.members.size() >= limits.max_mcast_qp_attach) {
    if (group->second.members.empty()) mcast_groups_.erase(group);
    return ENOMEM;
  }
  if (qp->nic->port != nullptr && !group->second.HasMemberOn(*qp->nic)) {
    if (int error = qp->nic->port->JoinGroup(gid); error != 0) {
      if (group->second.members.empty()) mcast_groups_.erase(group);
      return error;
    }
  }
  group->second.members.push_back(qp);
  qp->mcast_groups.push_back(gid);
  return 0;
}

int DeviceCore::DetachMcast(Command& command) {
  auto request = command.Request<shm::McastRequest>();
  DeviceQp* qp = command.session->qps.Find(request.qp);
  Gid gid;
  std::memcpy(gid.raw.data(), request.gid, sizeof(request.gid));
  if (qp == nullptr ||
      std::find(qp->mcast_groups.begin(), qp->mcast_groups.end(), gid) == qp->mcast_groups.end()) {
    return EINVAL;
  }
  LeaveGroup(*qp, gid);
  std::erase(qp->mcast_groups, gid);
  return 0;
}

void DeviceCore::LeaveGroup(DeviceQp& qp, const Gid& gid) {
  auto group = mcast_groups_.find(gid);
  std::erase(group->second.members, &qp);
  if (qp.nic->port != nullptr && !group->second.HasMemberOn(*qp.nic)) {
    qp.nic->port->LeaveGroup(gid);
  }
  if (group->second.members.empty()) mcast_groups_.erase(group);
}

// Unreliable: a member that can't take it now does not get it. The sender's own QP, if attached, is
// a member like any other.
void DeviceCore::DeliverMulticast(DeviceQp& sender, const transport::Pdu& pdu, const Gid& gid,
                                  uint64_t use) {
  if (sender.nic->port != nullptr) {
    EmitPacket(sender, pdu, *pdu.path, use);
    if (sender.nic->config().is_wire_only) return;
  }
  auto group = mcast_groups_.find(gid);
  if (group == mcast_groups_.end()) return;
  for (DeviceQp* member : group->second.members) {
    if (!member->IsReceiving() || !member->transport->CanAccept(pdu)) continue;
    if (AwaitsReceive(*member, pdu)) {
      if (member->waiting.size() >= kHeldPerQp) continue;
      KeepUse(use);
      member->waiting.push_back({sender.self, false, false, use, held_pdus_.Hold(pdu)});
    } else {
      HandOver({&sender}, *member, pdu, use);
    }
  }
}

}  // namespace verbena::softnic

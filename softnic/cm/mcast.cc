// Multicast groups. On RoCE nobody need be asked to join one: the group's GID follows from its
// address, and the client attaches its QP to it, which is when the NIC joins.
#include <errno.h>

#include "softnic/cm/core.h"

namespace verbena::softnic {
namespace {

constexpr uint16_t kFullMember = 0, kSendOnlyFullMember = 1;

}  // namespace

int CmCore::JoinMulticast(CmSession& session, CmIdentifier& id, const Request& request,
                          Reply* reply) {
  const auto& join = request.join;
  if (join.join_flags != kFullMember && join.join_flags != kSendOnlyFullMember) return EINVAL;
  if (!IsInet(join.address) || !IsMulticast(join.address)) return EINVAL;
  const bool is_bound = id.state == CmState::kAddrBound || id.state == CmState::kAddrResolved;
  if (!is_bound || !id.place.has_value() || id.qp_type != kQpTypeUd) return EINVAL;
  if (session.memberships.size() >= config_.memberships_per_session_max) return ENOMEM;
  if (!HasRoomForEvent(session)) return ENOMEM;
  if (int error = SetQkey(id, QKey{kUdpQkey}); error != 0) return error;
  reply->handle = NewHandle(session);
  CmMembership& membership = session.memberships[reply->handle];
  membership.handle = reply->handle;
  membership.id = id.self.handle;
  membership.cookie = join.cookie;
  membership.address = join.address;
  id.memberships.insert(membership.handle);
  shm::CmEvent event{};
  event.param.qp_num = kMulticastQpn.value;
  event.param.qkey = id.qkey.value;
  event.ah = AddressHandleOf(id, GidOf(join.address));
  event.ah.traffic_class = id.tos.value_or(0);
  Tell(id, CmEventType::kMulticastJoin, 0, event, &membership);
  return 0;
}

int CmCore::LeaveMulticast(CmSession& session, shm::CmHandle handle, Reply* reply) {
  auto found = session.memberships.find(handle);
  if (found == session.memberships.end()) return ENOENT;
  CmIdentifier& id = session.ids.at(found->second.id);
  if (found->second.events_waiting > 0) DropEvents(session, id, handle);
  reply->number = found->second.events_taken;
  id.memberships.erase(handle);
  session.memberships.erase(found);
  return 0;
}

}  // namespace verbena::softnic

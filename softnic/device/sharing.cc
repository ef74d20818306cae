// Contexts that several sessions share: what each has alone ends with it, what they have in common
// with the last of them.
#include <cerrno>
#include <utility>

#include "softnic/device/device_core.h"
#include "softnic/device/mr_checks.h"

namespace verbena::softnic {

void DeviceCore::RemoveAfterFence(SessionId owner, Retired retired) {
  if (retired.regions.empty() && retired.queues.empty() && retired.receives.empty()) return;
  FenceRecord record;
  record.session = owner;
  record.retired = std::move(retired);
  BeginFence(owner, std::move(record));
}

void DeviceCore::EndProcessPart(Session& session) {
  Retired retired;
  session.places.ForEach([&](Place& place) { RemovePlace(place, &retired); });
  session.qps.ForEach([&](DeviceQp& qp) {
    for (const Gid& gid : qp.mcast_groups) LeaveGroup(qp, gid);
    RemoveQp(qp, &retired);
  });
  session.tds.ForEach([&](Td& td) { RemoveTd(session, td); });
  session.srqs.ForEach([&](Srq& srq) { RemoveSrq(srq, &retired); });
  session.cqs.ForEach([&](Cq& cq) { RemoveCq(cq, &retired); });
  session.channels.ForEach([this](Channel& channel) { RemoveChannel(channel); });
  session.ahs.ForEach([this](Ah& ah) { RemoveAh(ah); });
  session.mws.ForEach([this](Mw& mw) { RemoveMw(mw); });
  session.mrs.ForEach([&](Mr& mr) {
    if (mr.session != &session) return;
    SetRegionCounters(mr, {});
    if (mr.dm != nullptr) return;
    if (mr.memory == kNullMemory || mr.memory == kNoMemory) return;
    region_owners_.erase(mr.memory);
    retired.regions.push_back(std::exchange(mr.memory, kNoMemory));
  });
  session.counters.ForEach([this](Counter& counter) { RemoveCounter(counter); });
  retired.others = {};  // who ends takes nothing back
  RemoveAfterFence(session.id, std::move(retired));
  session.ready_hook.Unlink();
  session.events_hook.Unlink();
  session.undelivered_events.clear();
}

void DeviceCore::EndSharedPart(Session& session) {
  Retired retired;
  session.mrs.ForEach([&](Mr& mr) {
    if (mr.dm != nullptr) {
      retired.regions.push_back(mr.memory);
      retired.kept.push_back(mr.dm->memory);
    }
    RemoveMr(mr);
  });
  RemoveAfterFence(kNicSession, std::move(retired));
  session.dms.ForEach([&session](Dm& dm) {
    VERBENA_CHECK(dm.users == 0);
    session.nic->counts.dm_bytes -= dm.memory->bytes;
    session.dms.Remove(dm.handle);
  });
  session.pds.ForEach([&session](Pd& pd) {
    VERBENA_CHECK(pd.users == 0);
    session.pds.Remove(pd.handle);
    --session.nic->counts.pds;
  });
}

void DeviceCore::Bequeath(Session& session, Session& heir) {
  auto pass_on = [&](auto& object) {
    if (object.session == &session) object.session = &heir;
  };
  session.pds.ForEach(pass_on);
  session.mrs.ForEach(pass_on);
  session.dms.ForEach(pass_on);
}

int DeviceCore::ImportPd(Command& command) {
  const shm::Handle handle = command.Request<shm::HandleRequest>().handle;
  return command.session->pds.Find(handle) == nullptr ? EINVAL : 0;
}

int DeviceCore::ImportMr(Command& command) {
  const auto request = command.Request<shm::ImportMrRequest>();
  const Mr* mr = command.session->mrs.Find(request.mr);
  if (mr == nullptr || mr->pd->handle != request.pd) return EINVAL;
  command.Reply(shm::ImportMrReply{mr->key, RemoteKeyOf(*mr), mr->length});
  return 0;
}

int DeviceCore::ImportDm(Command& command) {
  Session& session = *command.session;
  const Dm* dm = session.dms.Find(command.Request<shm::HandleRequest>().handle);
  if (dm == nullptr) return EINVAL;
  if (int error = session.services->SendMemory(dm->handle, *dm->memory); error != 0) return error;
  command.Reply(shm::DmReply{dm->handle, 0, dm->length});
  return 0;
}

}  // namespace verbena::softnic

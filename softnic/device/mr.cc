// Protection domains, memory regions and address handles.
#include <cerrno>
#include <cstring>

#include "softnic/device/device_core.h"
#include "softnic/device/mr_checks.h"

namespace verbena::softnic {
int DeviceCore::AllocPd(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  if (nic.counts.pds >= nic.limits().max_pd || session.pds.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Pd>();
  Pd* pd = owned.get();
  pd->session = &session;
  pd->handle = session.pds.Insert(std::move(owned));
  ++nic.counts.pds;
  command.Reply(shm::HandleReply{pd->handle, 0});
  return 0;
}

int DeviceCore::DeallocPd(Command& command) {
  Session& session = *command.session;
  Pd* pd = session.pds.Find(command.Request<shm::HandleRequest>().handle);
  if (pd == nullptr) return ENOENT;
  if (pd->users != 0) return EBUSY;
  session.pds.Remove(pd->handle);
  --session.nic->counts.pds;
  return 0;
}

bool DeviceCore::HasMrRoom(const Session& session) {
  return session.nic->counts.mrs < session.nic->limits().max_mr && !session.mrs.IsFull();
}

SessionId Mr::Owner() const { return dm != nullptr ? kNicSession : session->id; }

// All of the region is set but who has it, its key and its handle. ENOMEM: there is no key to name
// it by, and so no DMA that could touch it; its memory is given back.
int DeviceCore::InstallMr(Command& command, std::unique_ptr<Mr> owned) {
  Session& session = *command.session;
  Mr* mr = owned.get();
  const bool is_null = mr->memory == kNullMemory;
  mr->session = &session;
  mr->key = session.nic->keys.Allocate(mr);
  if (mr->key == 0) {
    if (!is_null) dma_->RemoveRegion(mr->memory);
    return ENOMEM;
  }
  if (mr->has_own_key && !mr->pd->own_keys->Add(mr->own_key, mr)) {
    session.nic->keys.Free(mr->key);
    dma_->RemoveRegion(mr->memory);
    return EEXIST;
  }
  mr->handle = session.mrs.Insert(std::move(owned));
  if (!is_null) region_owners_[mr->memory] = {session.shared->id, mr->Owner()};
  if (mr->dm != nullptr) ++mr->dm->users;
  ++mr->pd->users;
  ++session.nic->counts.mrs;
  command.Reply(shm::RegMrReply{mr->handle, mr->key, RemoteKeyOf(*mr), 0});
  return 0;
}

int DeviceCore::RegMr(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::RegMrRequest>();
  Pd* pd = session.pds.Find(request.pd);
  if (pd == nullptr) return EINVAL;
  if (int error = CheckAccess(request.access); error != 0) return error;
  constexpr uint32_t kKnown = kRegionBackendFlags | shm::kRegMrOwnKey | shm::kRegMrWholeProcess |
                              shm::kRegMrDisabled | shm::kRegMrUnprobed;
  if ((request.flags & ~kKnown) != 0) return EINVAL;
  if (int error = CheckKind(request, *pd); error != 0) return error;
  if ((request.flags & shm::kRegMrWholeProcess) != 0) request.length = kProcessBytes;
  uint64_t iova = (request.access & access::kZeroBased) != 0 ? 0 : request.iova;
  if (int error = CheckRange(request, iova); error != 0) return error;
  if (!HasMrRoom(session)) return ENOMEM;

  auto mr = std::make_unique<Mr>();
  const RegionSpec spec = {request.addr,
                           request.length,
                           request.payload,
                           request.pieces,
                           request.piece_count,
                           (request.flags & shm::kRegMrMapped) != 0,
                           (request.flags & shm::kRegMrAssisted) != 0};
  int error = dma_->AddRegion(session.id, spec, &mr->memory);
  if (error != 0) return error;
  if ((request.access & access::kRelaxedOrdering) != 0) dma_->RelaxOrder(mr->memory);
  mr->pd = pd;
  mr->has_own_key = (request.flags & shm::kRegMrOwnKey) != 0;
  mr->own_key = request.own_key;
  mr->is_disabled = (request.flags & shm::kRegMrDisabled) != 0;
  mr->access = request.access;
  mr->addr = request.addr;
  mr->length = request.length;
  mr->iova = iova;
  return InstallMr(command, std::move(mr));
}

int DeviceCore::OpenPayload(Command& command) {
  auto request = command.Request<shm::OpenPayloadRequest>();
  shm::OpenPayloadReply reply = {};
  int fd = -1;
  int error = dma_->OpenPayload(command.session->id, request.known, shm::kPayloadsKnownMax,
                                &reply.payload, &fd);
  if (error == 0 && fd >= 0) error = command.session->services->SendPayload(fd);
  if (error == 0) command.Reply(reply);
  return error;
}

int DeviceCore::OpenAssist(Command& command) {
  Session& session = *command.session;
  const uint32_t flags = command.Request<shm::OpenAssistRequest>().flags;
  if ((flags & ~shm::kAssistEntries) != 0) return EINVAL;
  int file = -1, socket = -1;
  int error = dma_->OpenAssist(session.id, &file, &socket);
  if (error != 0) return error;
  session.assists_entries = (flags & shm::kAssistEntries) != 0;
  return session.services->SendAssist(file, socket);
}

// The key dies now; the command ends when no DMA can touch the memory any more.
int DeviceCore::DeregMr(Command& command) {
  Mr* mr = command.session->mrs.Find(command.Request<shm::HandleRequest>().handle);
  if (mr == nullptr) return ENOENT;
  if (mr->windows != 0) return EBUSY;  // IBTA 10.6.7.2.6
  const transport::MemoryId memory = mr->memory;
  const SessionId owner = mr->Owner();
  Retired retired = {{memory}};
  if (mr->dm != nullptr) retired.kept.push_back(mr->dm->memory);
  RemoveMr(*mr);
  if (memory == kNullMemory || memory == kNoMemory) return 0;
  FinishAfterFenceOf(owner, command, std::move(retired));
  return 0;
}

void DeviceCore::RemoveMr(Mr& mr) {
  Session& session = *mr.session;
  SetRegionCounters(mr, {});
  session.nic->keys.Free(mr.key);
  if (mr.has_own_key) mr.pd->own_keys->Remove(mr.own_key);
  region_owners_.erase(mr.memory);
  --session.nic->counts.mrs;
  --mr.pd->users;
  if (mr.dm != nullptr) --mr.dm->users;
  session.mrs.Remove(mr.handle);
}

// An address by LID becomes the global one it stands for; any other is left as it is.
void DeviceCore::ResolveLid(const Nic& own, shm::AhAttr* attr) const {
  if (attr->is_global != 0 || attr->dlid == 0) return;
  uint32_t ipv4 = own.Ipv4OfLid(attr->dlid);
  for (size_t i = 0; i < nics_.size() && ipv4 == 0; ++i) ipv4 = nics_[i]->Ipv4OfLid(attr->dlid);
  if (ipv4 == 0) return;
  Gid sgid;
  uint8_t index = 0;
  while (own.FindGid(GidIndex{index}, &sgid) && sgid != Gid::FromIpv4(own.config().ipv4)) ++index;
  if (sgid != Gid::FromIpv4(own.config().ipv4)) return;
  Gid dgid = Gid::FromIpv4(ipv4);
  std::memcpy(attr->dgid, dgid.raw.data(), sizeof(attr->dgid));
  attr->sgid_index = index;
  attr->is_global = 1;
}

int DeviceCore::CreateAh(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::CreateAhRequest>();
  shm::AhAttr& attr = request.attr;
  Pd* pd = session.pds.Find(request.pd);
  if (pd == nullptr) return EINVAL;
  ResolveLid(nic, &attr);
  // RoCE knows only global addresses.  Spec: IBTA A17.4.1.
  if (attr.port_num != kPortNumber || attr.is_global == 0) return EINVAL;
  transport::Path path;
  if (!nic.FindGid(GidIndex{attr.sgid_index}, &path.sgid)) return EINVAL;
  std::memcpy(path.dgid.raw.data(), attr.dgid, sizeof(attr.dgid));
  if (path.dgid.IsZero()) return EINVAL;
  path.flow_label = attr.flow_label & 0xf'ffff;
  path.traffic_class = attr.traffic_class;
  path.hop_limit = attr.hop_limit;
  path.sl = attr.sl;
  path.sgid_index = attr.sgid_index;
  if (nic.counts.ahs >= nic.limits().max_ah || session.ahs.IsFull()) return ENOMEM;

  auto owned = std::make_unique<Ah>();
  Ah* ah = owned.get();
  ah->session = &session;
  ah->pd = pd;
  ah->path = path;
  ah->handle = session.ahs.Insert(std::move(owned));
  ++pd->users;
  ++nic.counts.ahs;
  command.Reply(shm::HandleReply{ah->handle, 0});
  return 0;
}

int DeviceCore::DestroyAh(Command& command) {
  Ah* ah = command.session->ahs.Find(command.Request<shm::HandleRequest>().handle);
  if (ah == nullptr) return ENOENT;
  RemoveAh(*ah);
  return 0;
}

void DeviceCore::RemoveAh(Ah& ah) {
  Session& session = *ah.session;
  --session.nic->counts.ahs;
  --ah.pd->users;
  session.ahs.Remove(ah.handle);
}

}  // namespace verbena::softnic

// Device memory: memory of the NIC, which its clients map to copy to and from it, and register.
#include <cerrno>

#include "softnic/device/device_core.h"
#include "softnic/device/mr_checks.h"

namespace verbena::softnic {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kLogAlignMax = 12;  // each begins at a page

uint64_t PageRound(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// As drivers of hardware have it: by offset only, and no hints for a process's memory.
constexpr uint32_t kDmAccess = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                               access::kRemoteAtomic | access::kFlushGlobal | access::kZeroBased |
                               access::kOptionalMask;

}  // namespace

int DeviceCore::AllocDm(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  const auto request = command.Request<shm::AllocDmRequest>();
  const uint64_t bytes_max = nic.limits().max_dm_bytes;
  if (request.length == 0 || request.length > bytes_max) return EINVAL;
  if (request.log_align > kLogAlignMax) return EINVAL;
  const uint64_t bytes = PageRound(request.length);
  if (bytes > bytes_max - nic.counts.dm_bytes || session.dms.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Dm>();
  if (int error = session.services->MakeMemory(bytes, &owned->memory); error != 0) return error;
  Dm* dm = owned.get();
  dm->session = &session;
  dm->length = request.length;
  dm->handle = session.dms.Insert(std::move(owned));
  if (int error = session.services->SendMemory(dm->handle, *dm->memory); error != 0) {
    session.dms.Remove(dm->handle);
    return error;
  }
  nic.counts.dm_bytes += bytes;
  command.Reply(shm::DmReply{dm->handle, 0, dm->length});
  return 0;
}

int DeviceCore::FreeDm(Command& command) {
  Session& session = *command.session;
  Dm* dm = session.dms.Find(command.Request<shm::HandleRequest>().handle);
  if (dm == nullptr) return ENOENT;
  if (dm->users != 0) return EBUSY;
  session.nic->counts.dm_bytes -= dm->memory->bytes;
  session.dms.Remove(dm->handle);
  return 0;
}

int DeviceCore::RegDmMr(Command& command) {
  Session& session = *command.session;
  const auto request = command.Request<shm::RegDmMrRequest>();
  Pd* pd = session.pds.Find(request.pd);
  Dm* dm = session.dms.Find(request.dm);
  if (pd == nullptr || dm == nullptr) return EINVAL;
  if ((request.access & access::kZeroBased) == 0 || (request.access & ~kDmAccess) != 0) {
    return EINVAL;
  }
  if (int error = CheckAccess(request.access); error != 0) return error;
  if (pd->own_keys != nullptr && (request.access & kRemoteRights) != 0) return EOPNOTSUPP;
  if (request.offset > dm->length || request.length > dm->length - request.offset) return EINVAL;
  if (!HasMrRoom(session)) return ENOMEM;
  auto mr = std::make_unique<Mr>();
  const uint64_t addr = reinterpret_cast<uint64_t>(dm->memory->data) + request.offset;
  int error = dma_->AddRegion(kNicSession, {addr, request.length, 0, nullptr, 0}, &mr->memory);
  if (error != 0) return error;
  mr->pd = pd;
  mr->dm = dm;
  mr->access = request.access;
  mr->addr = addr;
  mr->length = request.length;
  return InstallMr(command, std::move(mr));
}

}  // namespace verbena::softnic

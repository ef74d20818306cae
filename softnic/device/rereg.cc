// Regions that change while they keep their handle and keys, and the one that is no memory.
#include <cerrno>

#include "softnic/device/device_core.h"
#include "softnic/device/mr_checks.h"

namespace verbena::softnic {

namespace {

// By what address work requests name the first byte once the region has `bits`.
uint64_t NewIova(const Mr& mr, uint32_t changes, uint32_t bits, uint64_t addr) {
  if ((bits & access::kZeroBased) != 0) return 0;
  const bool was_zero_based = (mr.access & access::kZeroBased) != 0;
  return (changes & shm::kReregTranslation) != 0 || was_zero_based ? addr : mr.iova;
}

}  // namespace

// All or nothing: what is refused leaves the region as it was. What is under way with the region as
// it was ends in a fault, or before the command does: the memory has a new id.
// Spec: IBTA 11.2.8.7 (reregister memory region).
int DeviceCore::ReregMr(Command& command) {
  Session& session = *command.session;
  const auto request = command.Request<shm::ReregMrRequest>();
  const shm::RegMrRequest& wanted = request.region;
  const uint32_t changes = request.changes;
  Mr* mr = session.mrs.Find(request.mr);
  if (mr == nullptr || changes == 0) return EINVAL;
  if ((changes & ~shm::kReregKnown) != 0) return EOPNOTSUPP;
  if (mr->is_invalidated || mr->memory == kNullMemory || mr->memory == kNoMemory) return EINVAL;
  if (mr->dm != nullptr || mr->session != &session) return EINVAL;  // not memory of this process
  if (mr->windows != 0) return EBUSY;  // they would lead to where the region was
  Pd* pd = mr->pd;
  if ((changes & shm::kReregPd) != 0) pd = session.pds.Find(wanted.pd);
  if (pd == nullptr) return EINVAL;
  // Own keys stay where they are.
  if (pd != mr->pd && (pd->own_keys != nullptr || mr->pd->own_keys != nullptr)) return EOPNOTSUPP;
  if (IsWholeProcess(*mr)) return EOPNOTSUPP;
  const uint32_t bits = (changes & shm::kReregAccess) != 0 ? wanted.access : mr->access;
  if (int error = CheckAccess(bits); error != 0) return error;
  const bool moves = (changes & shm::kReregTranslation) != 0;
  const uint64_t addr = moves ? wanted.addr : mr->addr;
  const uint64_t iova = NewIova(*mr, changes, bits, addr);

  transport::MemoryId memory = kNoMemory;
  int error = 0;
  if (moves) {
    RegionSpec spec = {wanted.addr, wanted.length, wanted.payload, wanted.pieces,
                       wanted.piece_count};
    spec.must_be_assisted = (wanted.flags & shm::kRegMrAssisted) != 0;
    constexpr uint32_t kKnown = kRegionBackendFlags | shm::kRegMrUnprobed;
    error = (wanted.flags & ~kKnown) != 0 ? EINVAL : CheckRange(wanted, iova);
    if (error == 0) error = dma_->AddRegion(session.id, spec, &memory);
  } else {
    error = dma_->CopyRegion(mr->memory, &memory);
  }
  if (error != 0) return error;
  if ((bits & access::kRelaxedOrdering) != 0) dma_->RelaxOrder(memory);

  const transport::MemoryId old = mr->memory;
  if (counted_regions_.erase(old) != 0) counted_regions_[memory] = mr;
  region_owners_.erase(old);
  region_owners_[memory] = {session.shared->id, mr->Owner()};
  --mr->pd->users;
  ++pd->users;
  mr->pd = pd;
  mr->access = bits;
  mr->memory = memory;
  mr->addr = addr;
  mr->iova = iova;
  if (moves) mr->length = wanted.length;
  const uint32_t rkey = mr->has_own_key ? mr->own_key : mr->key;
  command.Reply(shm::RegMrReply{mr->handle, mr->key, rkey, 0});
  FinishAfterFence(command, {{old}});
  return 0;
}

// Has an lkey only, and room for any address and length.
int DeviceCore::AllocNullMr(Command& command) {
  const Session& session = *command.session;
  Pd* pd = session.pds.Find(command.Request<shm::HandleRequest>().handle);
  if (pd == nullptr) return EINVAL;
  if (!HasMrRoom(session)) return ENOMEM;
  auto mr = std::make_unique<Mr>();
  mr->pd = pd;
  mr->access = access::kLocalWrite;
  mr->length = ~uint64_t{0};
  mr->memory = kNullMemory;
  return InstallMr(command, std::move(mr));
}

}  // namespace verbena::softnic

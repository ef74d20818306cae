// Memory windows: a peer's way to a part of a region, by a key that is made and taken away in a
// send queue.  Spec: IBTA 10.6.6.2 (binding), 10.6.7.2 (types 1 and 2B).
//
// A binding has a MemoryId of its own, in segments that the window has granted, until Reach looks
// behind it. So what was granted ends with the binding, wherever it waits by then; only what the
// DMA engine has already is waited for (SettleKeys).
#include <cerrno>
#include <utility>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

using shm::VendorErr;
using transport::KeyFault;

namespace {

constexpr uint32_t kRemote =
    access::kRemoteRead | access::kRemoteWrite | access::kRemoteAtomic | access::kFlushGlobal;
constexpr uint32_t kWriting = access::kRemoteWrite | access::kRemoteAtomic;
// LOCAL_WRITE says nothing of a window, and programs pass it; optional rights may be ignored.
constexpr uint32_t kWindowAccess =
    kRemote | access::kZeroBased | access::kLocalWrite | access::kOptionalMask;

// What a region must be for the window asked for.
KeyFault CheckRegion(const Mr* mr, const Pd* pd, const transport::WindowBind& bind) {
  if (mr == nullptr || mr->is_invalidated) return VendorErr::kBadLKey;
  if (mr->pd != pd) return VendorErr::kLKeyOtherPd;  //= IBTA C10-72
  // As rxe and mlx5: addresses of such a region mean nothing to a window.
  if ((mr->access & access::kZeroBased) != 0) return VendorErr::kLKeyAccess;
  if ((mr->access & access::kMwBind) == 0) return VendorErr::kLKeyAccess;  //= IBTA C10-73
  const bool may_write = (mr->access & access::kLocalWrite) != 0;
  if ((bind.access & kWriting) != 0 && !may_write) return VendorErr::kLKeyAccess;  //= IBTA C10-74
  return mr->Contains(bind.addr, bind.length) ? VendorErr::kNone : VendorErr::kLKeyBounds;
}

// What a window must be to be bound so.
KeyFault CheckWindow(const Mw* mw, const Pd* pd, const transport::WindowBind& bind) {
  if (mw == nullptr) return VendorErr::kBadRKey;
  if (mw->pd != pd) return VendorErr::kRKeyOtherPd;  //= IBTA C10-72
  if (!WindowKeys::AreSameWindow(mw->key, bind.rkey.value)) return VendorErr::kBadRKey;
  if ((bind.access & ~kWindowAccess) != 0) return VendorErr::kRKeyAccess;
  if (mw->is_type_2) {
    if (mw->IsBound()) return VendorErr::kRKeyBadState;     //= IBTA o10-37.2.30
    if (bind.length == 0) return VendorErr::kRKeyBadState;  //= IBTA o10-37.2.40
    return VendorErr::kNone;
  }
  if ((bind.access & access::kZeroBased) != 0) return VendorErr::kRKeyAccess;  //= IBTA o10-36.2.2
  // Each bind of type 1 makes a new key: the old one must not go on.
  return mw->key != bind.rkey.value ? VendorErr::kNone : VendorErr::kBadRKey;
}

}  // namespace

// --- commands
// -------------------------------------------------------------------------------------

int DeviceCore::AllocMw(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::AllocMwRequest>();
  Pd* pd = session.pds.Find(request.pd);
  if (pd == nullptr) return EINVAL;
  if (pd->own_keys != nullptr) return EOPNOTSUPP;
  if (request.type != shm::kMwType1 && request.type != shm::kMwType2) return EINVAL;
  if (nic.counts.mws >= nic.limits().max_mw || session.mws.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Mw>();
  Mw* mw = owned.get();
  mw->key = nic.windows.Allocate(mw);
  if (mw->key == 0) return ENOMEM;
  mw->session = &session;
  mw->pd = pd;
  mw->is_type_2 = request.type == shm::kMwType2;
  mw->handle = session.mws.Insert(std::move(owned));
  ++pd->users;
  ++nic.counts.mws;
  command.Reply(shm::AllocMwReply{mw->handle, mw->key});
  return 0;
}

// The key dies now; the command ends when nothing that it has let in touches memory any more.
int DeviceCore::DeallocMw(Command& command) {
  Mw* mw = command.session->mws.Find(command.Request<shm::HandleRequest>().handle);
  if (mw == nullptr) return ENOENT;
  Retired retired;
  retired.others = mw->owners;
  RemoveMw(*mw);
  FinishAfterFence(command, std::move(retired));
  return 0;
}

void DeviceCore::RemoveMw(Mw& mw) {
  Session& session = *mw.session;
  UnbindWindow(mw);
  session.nic->windows.Free(mw.key);
  --session.nic->counts.mws;
  --mw.pd->users;
  session.mws.Remove(mw.handle);
}

// --- binding
// --------------------------------------------------------------------------------------

KeyFault DeviceCore::BindWindow(DeviceQp& qp, const transport::WindowBind& bind) {
  Mw* mw = qp.session->mws.Find(bind.window);
  KeyFault fault = CheckWindow(mw, qp.pd, bind);
  if (fault != VendorErr::kNone) return fault;
  Mr* mr = nullptr;  // of no bytes: type 1 is unbound so
  if (bind.length != 0) {
    mr = qp.nic->keys.Find(bind.lkey);
    fault = CheckRegion(mr, qp.pd, bind);
    if (fault != VendorErr::kNone) return fault;
  }
  if (mw->IsBound()) qp.revoked_owner = mw->mr->Owner();
  UnbindWindow(*mw);
  qp.nic->windows.Rename(mw->key, bind.rkey.value);
  mw->key = bind.rkey.value;
  if (mr == nullptr) return VendorErr::kNone;
  mw->mr = mr;
  if (mr->Owner() != mw->session->id) mw->owners.Add(mr->Owner());
  ++mr->windows;
  mw->access = bind.access;
  mw->addr = bind.addr;
  mw->length = bind.length;
  mw->memory = NewWindowMemory();
  window_memory_[mw->memory] = mr->memory;
  if (mw->is_type_2) {
    mw->qp = &qp;
    qp.windows.PushBack(mw->qp_hook);
  }
  return VendorErr::kNone;
}

// Comes round after 2^31 bindings: one that has lasted so long keeps its id.
transport::MemoryId DeviceCore::NewWindowMemory() {
  transport::MemoryId memory;
  do {
    memory = kWindowMemoryBit | next_window_memory_++;
  } while (window_memory_.contains(memory));
  return memory;
}

void DeviceCore::UnbindWindow(Mw& mw) {
  if (!mw.IsBound()) return;
  --mw.mr->windows;
  window_memory_.erase(mw.memory);
  mw.qp_hook.Unlink();
  mw.mr = nullptr;
  mw.qp = nullptr;
  mw.memory = 0;
}

KeyFault DeviceCore::Invalidate(DeviceQp& qp, RKey rkey) {
  if (qp.pd->own_keys != nullptr) return VendorErr::kRKeyBadState;  // they are the program's
  Mr* mr = qp.nic->keys.Find(rkey.value);
  return mr != nullptr ? InvalidateRegion(qp, *mr) : InvalidateWindow(qp, rkey);
}

// A region may be invalidated if it was opened to remote access: its rkey is what a peer gives
// back.
KeyFault DeviceCore::InvalidateRegion(DeviceQp& qp, Mr& mr) {
  if (mr.is_invalidated) return VendorErr::kBadRKey;
  if (mr.pd != qp.pd) return VendorErr::kRKeyOtherPd;
  if ((mr.access & kRemote) == 0) return VendorErr::kRKeyAccess;
  if (mr.windows != 0) return VendorErr::kRKeyBadState;
  mr.is_invalidated = true;
  region_owners_.erase(mr.memory);
  qp.revoked_owner = mr.Owner();
  return VendorErr::kNone;
}

KeyFault DeviceCore::InvalidateWindow(DeviceQp& qp, RKey rkey) {
  Mw* mw = qp.nic->windows.Find(rkey.value);
  if (mw == nullptr) return VendorErr::kBadRKey;
  if (mw->pd != qp.pd) return VendorErr::kRKeyOtherPd;
  //= IBTA o10-37.2.26: type 1 ends by binding and deallocation alone
  if (!mw->is_type_2 || !mw->IsBound()) return VendorErr::kRKeyBadState;
  if (mw->qp != &qp) return VendorErr::kRKeyOtherQp;
  qp.revoked_owner = mw->mr->Owner();
  UnbindWindow(*mw);
  return VendorErr::kNone;
}

bool DeviceCore::SettleKeys(DeviceQp& qp, transport::QpRole waiter) {
  const std::optional<SessionId> owner = std::exchange(qp.revoked_owner, std::nullopt);
  if (!owner.has_value() || dmas_.size() == 0) return true;
  FenceRecord record;
  record.session = qp.session->id;
  record.waiting_qp = qp.self;
  record.waiter = waiter;
  qp.settling[static_cast<size_t>(waiter)] = BeginFence(*owner, std::move(record));
  return false;
}

void DeviceCore::OnKeysSettled(uint64_t cookie, QpRef waiting, transport::QpRole waiter) {
  DeviceQp* qp = FindQp(waiting);
  if (qp == nullptr || qp->settling[static_cast<size_t>(waiter)] != cookie) return;
  qp->transport->OnKeysSettled(now_, waiter);
  AfterInput(*qp);
  Settle();
}

// --- DeviceQp
// -------------------------------------------------------------------------------------

// The window that this QP takes a key of from a peer.
KeyFault DeviceQp::FindWindow(RKey rkey, const Mw** out) const {
  const Mw* mw = pd->own_keys == nullptr ? nic->windows.Find(rkey.value) : nullptr;
  if (mw == nullptr || !mw->IsBound()) return VendorErr::kBadRKey;
  if (mw->pd != pd) return VendorErr::kRKeyOtherPd;
  if (mw->is_type_2 && mw->qp != this) return VendorErr::kRKeyOtherQp;
  *out = mw;
  return VendorErr::kNone;
}

KeyFault DeviceQp::ResolveWindow(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                 transport::DmaSegment* out) const {
  const Mw* mw = nullptr;
  if (KeyFault fault = FindWindow(rkey, &mw); fault != VendorErr::kNone) return fault;
  if (length > 0xffff'ffff || !mw->Contains(addr, length)) return VendorErr::kRKeyBounds;
  if ((mw->access & access_needed) != access_needed) return VendorErr::kRKeyAccess;
  *out = {mw->memory, static_cast<uint32_t>(length), mw->ToProcess(addr)};
  return VendorErr::kNone;
}

KeyFault DeviceQp::Invalidate(RKey rkey) {
  return nic->refusals.Count(device->Invalidate(*this, rkey));
}

KeyFault DeviceQp::BindWindow(const transport::WindowBind& bind) {
  return nic->refusals.Count(device->BindWindow(*this, bind));
}

bool DeviceQp::SettleKeys(transport::QpRole waiter) { return device->SettleKeys(*this, waiter); }

}  // namespace verbena::softnic

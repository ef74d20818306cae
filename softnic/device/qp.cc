#include "softnic/device/qp.h"

#include "softnic/device/device_core.h"
#include "softnic/device/nic.h"
#include "softnic/device/session.h"

namespace verbena::softnic {

using shm::VendorErr;
using transport::FetchResult;
using transport::KeyFault;

FetchResult DeviceQp::Lie() {
  if (!has_lied) device->CountHostileAct();
  has_lied = true;
  return FetchResult::kInvalid;
}

FetchResult DeviceQp::Stage(EntryQueue queue) {
  return device->StageWqes(*this, queue) == WorkQueueConsumer::Peek::kInvalid ? Lie()
                                                                              : FetchResult::kEmpty;
}

FetchResult DeviceQp::FetchSend(transport::SendWork& out) {
  if (place != nullptr) return FetchResult::kEmpty;  // a lane has no send queue
  switch (send_ring.Available()) {
    case WorkQueueConsumer::Peek::kEmpty:
      return send_ring.is_staged() ? Stage(EntryQueue::kSend) : FetchResult::kEmpty;
    case WorkQueueConsumer::Peek::kInvalid:
      return Lie();
    case WorkQueueConsumer::Peek::kReady:
      break;
  }
  send_ring.Fetch(&out.wqe, sizeof(out.wqe));
  const bool is_inline = (out.wqe.flags & shm::kSendInline) != 0;
  const bool is_small = (out.wqe.flags & shm::kSendSmallBody) != 0;
  const size_t body_bytes = is_inline ? out.wqe.inline_bytes : out.wqe.num_sge * sizeof(shm::Sge);
  if (is_inline && out.wqe.inline_bytes > config.max_inline_bytes) return Lie();
  if (!is_inline && out.wqe.num_sge > config.max_send_sge) return Lie();
  if (is_small && body_bytes > shm::kSmallBodyBytes) return Lie();
  if (is_small) {
    std::memcpy(out.inline_data, out.wqe.small_body, shm::kSmallBodyBytes);
  } else {
    send_ring.FetchAt(sizeof(out.wqe), out.inline_data, static_cast<uint32_t>(body_bytes));
  }
  send_ring.Advance();
  device->CountSendWqe();
  return FetchResult::kOk;
}

bool FetchRecvWork(WorkQueueConsumer& ring, uint32_t max_sge, transport::RecvWork* out) {
  shm::RecvWqe head;
  ring.Fetch(&head, sizeof(head));
  if (head.num_sge > max_sge) return false;
  out->wr_id = head.wr_id;
  out->ticket = 0;
  out->offset_bytes = 0;
  out->num_sge = head.num_sge;
  ring.FetchAt(sizeof(head), out->sge, head.num_sge * sizeof(shm::Sge));
  ring.Advance();
  return true;
}

FetchResult DeviceQp::FetchFromRing(WorkQueueConsumer& ring, uint32_t max_sge,
                                    transport::RecvWork& out) {
  switch (ring.Available()) {
    case WorkQueueConsumer::Peek::kEmpty:
      return receive_entries().IsUsed() ? Stage(EntryQueue::kReceive) : FetchResult::kEmpty;
    case WorkQueueConsumer::Peek::kInvalid:
      return Lie();
    case WorkQueueConsumer::Peek::kReady:
      break;
  }
  return FetchRecvWork(ring, max_sge, &out) ? FetchResult::kOk : Lie();
}

FetchResult DeviceQp::FetchRecv(transport::RecvWork& out) {
  if (srq == nullptr) return FetchFromRing(recv_ring, config.max_recv_sge, out);
  if (srq->is_in_error) return FetchResult::kInvalid;
  FetchResult result =
      srq->marked != nullptr ? FetchMarked(out) : FetchFromRing(srq->ring, srq->max_sge, out);
  if (result == FetchResult::kInvalid) {
    device->OnSrqLied(*srq);
  } else if (result == FetchResult::kOk && srq->marked == nullptr) {
    // The WQE was copied: its slot is free at once, in whatever order QPs complete.
    srq->ring.Release(1);
    device->OnSrqFetched(*srq);
  }
  return result;
}

// Of receives that are for certain senders only who takes one knows.
bool DeviceQp::HasRecv() {
  if (srq == nullptr) return recv_ring.Available() != WorkQueueConsumer::Peek::kEmpty;
  return srq->marked == nullptr && srq->ring.Available() != WorkQueueConsumer::Peek::kEmpty;
}

void DeviceQp::ReleaseSend(uint32_t wqes) { send_ring.Release(wqes); }

void DeviceQp::ReleaseRecv(uint32_t wqes) {
  if (srq == nullptr) recv_ring.Release(wqes);
}

KeyFault DeviceQp::ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                                transport::DmaSegment* out, uint16_t* out_count) {
  return nic->refusals.Count(CheckLocal(sge, num_sge, access_needed, out, out_count));
}

KeyFault DeviceQp::CheckLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                              transport::DmaSegment* out, uint16_t* out_count) const {
  uint16_t count = 0;
  for (uint32_t i = 0; i < num_sge; ++i) {
    if (sge[i].length == 0) continue;
    const Mr* mr = nic->keys.Find(sge[i].lkey);
    if (mr == nullptr || mr->is_invalidated) return VendorErr::kBadLKey;
    if (mr->pd != pd) return VendorErr::kLKeyOtherPd;
    const bool is_null = mr->memory == kNullMemory;
    const uint64_t start = sge[i].addr - mr->LocalBase() + mr->iova;
    if (!is_null && !mr->Contains(start, sge[i].length)) return VendorErr::kLKeyBounds;
    if ((mr->access & access_needed) != access_needed) return VendorErr::kLKeyAccess;
    out[count++] = {mr->memory, sge[i].length, mr->ToProcess(start)};
  }
  *out_count = count;
  return VendorErr::kNone;
}

namespace {

// Whether a region's key, which is good, is one that this PD's QPs take from a peer.
KeyFault CheckRegion(const Mr& mr, const Pd* pd) {
  if (mr.is_invalidated) return VendorErr::kBadRKey;
  if (mr.is_disabled) return VendorErr::kRKeyBadState;
  if (mr.memory == kNullMemory) return VendorErr::kBadRKey;  // its key is no rkey
  return mr.pd == pd ? VendorErr::kNone : VendorErr::kRKeyOtherPd;
}

}  // namespace

// A PD with keys of its own knows no others, so that no number means two things.
const Mr* DeviceQp::FindRegion(RKey rkey) const {
  return pd->own_keys != nullptr ? pd->own_keys->Find(rkey.value) : nic->keys.Find(rkey.value);
}

KeyFault DeviceQp::CheckRemoteKey(RKey rkey, uint32_t access_needed) {
  return nic->refusals.Count(CheckRights(rkey, access_needed));
}

KeyFault DeviceQp::CheckRights(RKey rkey, uint32_t access_needed) const {
  uint32_t granted = 0;
  if (const Mr* mr = FindRegion(rkey); mr != nullptr) {
    if (KeyFault fault = CheckRegion(*mr, pd); fault != VendorErr::kNone) return fault;
    granted = mr->access;
  } else {
    const Mw* mw = nullptr;
    if (KeyFault fault = FindWindow(rkey, &mw); fault != VendorErr::kNone) return fault;
    granted = mw->access;
  }
  return (granted & access_needed) == access_needed ? VendorErr::kNone : VendorErr::kRKeyAccess;
}

KeyFault DeviceQp::ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                 transport::DmaSegment* out) {
  return nic->refusals.Count(CheckRemote(rkey, addr, length, access_needed, out));
}

KeyFault DeviceQp::CheckRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                               transport::DmaSegment* out) const {
  const Mr* mr = FindRegion(rkey);
  if (mr == nullptr) return ResolveWindow(rkey, addr, length, access_needed, out);
  if (KeyFault fault = CheckRegion(*mr, pd); fault != VendorErr::kNone) return fault;
  // A segment's length has 32 bits; no message is longer, but the request's header may lie.
  if (length > 0xffff'ffff || !mr->Contains(addr, length)) return VendorErr::kRKeyBounds;
  if ((mr->access & access_needed) != access_needed) return VendorErr::kRKeyAccess;
  *out = {mr->memory, static_cast<uint32_t>(length), mr->ToProcess(addr)};
  return VendorErr::kNone;
}

bool DeviceQp::ResolveAh(uint32_t ah_handle, transport::Path* out) {
  const Ah* ah = session->ahs.Find(ah_handle);
  if (ah == nullptr || ah->pd != pd) {
    nic->refusals.Count(VendorErr::kBadAh);
    return false;
  }
  *out = ah->path;
  return true;
}

bool DeviceQp::ResolveGid(GidIndex index, Gid* out) { return nic->FindGid(index, out); }

}  // namespace verbena::softnic

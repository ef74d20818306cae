// SRQs whose receives have marks (core/shm/rdm.h): what QPs take from them, and what becomes of it.
//
// A receive's slot is free when the receive is gone from MarkedReceives, not when it was fetched:
// it may come back.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/shm/rdm.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic {

using transport::FetchResult;

namespace {

// Receives for others that are looked at for one message. A peer whose own are further behind is
// told to come again, and finds these out of the way.
constexpr uint32_t kFetchesPerMessage = 64;

}  // namespace

FetchResult DeviceQp::FetchMarked(transport::RecvWork& out) {
  MarkedReceives& receives = *srq->marked;
  uint64_t ticket = receives.Find(source);
  for (uint32_t i = 0; ticket == MarkedReceives::kNoTicket; ++i) {
    if (i == kFetchesPerMessage) return FetchResult::kEmpty;
    FetchResult result = FetchFromRing(srq->ring, srq->max_sge, out);
    if (result != FetchResult::kOk) return result;
    if (!receives.Add(out)) return Lie();
    device->OnSrqFetched(*srq);
    ticket = receives.Find(source);
  }
  // Datagrams come with a GRH each, and have no room for it between messages.
  const bool is_multi = receives.IsMulti(ticket);
  const bool is_unfit = is_multi && (service() != Service::kRc || !HasRoomToTell());
  if (receives.IsBusy(ticket) || is_unfit) return FetchResult::kEmpty;
  HeldReceive part = receives.Take(ticket, &out);
  if (service() == Service::kRc) {
    held.push_back(part);
  } else {
    out.ticket = 0;  // these services keep what they have taken
    receives.Finish(part, /*has_failed=*/false);
    srq->ring.Release(1);
  }
  return FetchResult::kOk;
}

// Half of the CQ is for what has room of its own there.
bool DeviceQp::HasRoomToTell() { return !recv_cq->ring.IsHalfFull(); }

HeldReceive* DeviceQp::FindHeld(uint64_t part) {
  auto found = std::find_if(held.begin(), held.end(),
                            [part](const HeldReceive& other) { return other.part == part; });
  VERBENA_CHECK(found != held.end());
  return &*found;
}

HeldReceive DeviceQp::TakeHeld(uint64_t part_number) {
  HeldReceive* found = FindHeld(part_number);
  HeldReceive part = *found;
  held.erase(held.begin() + (found - held.data()));
  return part;
}

void DeviceQp::SettleRecv(const transport::RecvWork& work, uint64_t bytes) {
  HeldReceive* part = FindHeld(work.ticket);
  if (!part->is_settled) srq->marked->Settle(part, bytes);
}

uint64_t DeviceQp::ReopenRecv(const transport::RecvWork& work) {
  HeldReceive* part = FindHeld(work.ticket);
  return srq->marked->Reopen(part) ? ~uint64_t{0} : part->taken_bytes;
}

void DeviceQp::ReturnRecv(const transport::RecvWork& work) {
  device->ReturnReceive(*srq, *recv_cq, TakeHeld(work.ticket));
}

void DeviceQp::OnPeerAccess(bool is_write, transport::MemoryId memory) {
  if (place != nullptr) last_used = device->now();
  if (CountsPeers()) device->CountPeerAccess(*this, is_write, memory);
}

// --- DeviceCore ----------------------------------------------------------------------------------

void DeviceCore::FinishReceive(DeviceQp& qp, transport::Completion& completion) {
  qp.last_used = now_;
  shm::Cqe& cqe = completion.cqe;
  const HeldReceive part = qp.TakeHeld(completion.recv_ticket);
  const bool is_cut = cqe.vendor_err == static_cast<uint32_t>(shm::VendorErr::kTruncated);
  const bool has_failed = cqe.status != static_cast<uint8_t>(WcStatus::kSuccess) && !is_cut;
  if (qp.srq->marked->Finish(part, has_failed) == MarkedReceives::After::kStays) return;
  cqe.wc_flags |= shm::kWcRecvReleased;
  qp.srq->ring.Release(1);
}

// Called from inside transports, too: the completion that may be due waits for Settle.
void DeviceCore::ReturnReceive(Srq& srq, const Cq& cq, const HeldReceive& part) {
  const uint64_t wr_id = srq.marked->WrIdOf(part.ticket);
  if (srq.marked->Return(part) == MarkedReceives::After::kStays) return;
  // All its messages have completed, and none of these said that it was the last.
  srq.ring.Release(1);
  releases_.push_back({cq.session->id, cq.handle, wr_id, static_cast<uint32_t>(part.offset_bytes)});
}

bool DeviceCore::PushReleases() {
  if (releases_.empty()) return false;
  for (const ReceiveRelease& release : std::exchange(releases_, {})) {
    Session* session = FindSession(release.session);
    Cq* cq = session != nullptr ? session->cqs.Find(release.cq) : nullptr;
    if (cq == nullptr) continue;
    transport::Completion completion{};
    completion.cqe.wr_id = release.wr_id;
    completion.cqe.opcode = static_cast<uint8_t>(shm::WcOpcode::kRecv);
    completion.cqe.wc_flags = shm::kWcRecvReleased | shm::kWcRecvNoMessage;
    completion.cqe.recv_offset_bytes = release.offset_bytes;
    PushCqe(*cq, completion);
  }
  return true;
}

// Of a QP that goes. What its placements are at is given back when they are done.
void DeviceCore::ReturnHeld(DeviceQp& qp, Retired* retired) {
  if (qp.held.empty()) return;
  Retired::Receives parts = {qp.srq->handle, qp.recv_cq->handle, std::move(qp.held)};
  qp.held.clear();
  if (qp.moves_in_flight != 0) {
    retired->receives.push_back(std::move(parts));
  } else {
    ReturnParts(*qp.session, parts);
  }
}

void DeviceCore::ReturnParts(Session& session, const Retired::Receives& parts) {
  Srq* srq = session.srqs.Find(parts.srq);
  Cq* cq = session.cqs.Find(parts.cq);
  if (srq == nullptr || cq == nullptr) return;  // gone meanwhile
  // The last one first: what came behind another is out of its way then.
  for (auto part = parts.held.rbegin(); part != parts.held.rend(); ++part) {
    ReturnReceive(*srq, *cq, *part);
  }
}

int DeviceCore::CancelRecv(Command& command) {
  auto request = command.Request<shm::CancelRecvRequest>();
  Srq* srq = command.session->srqs.Find(request.srq);
  if (srq == nullptr || srq->marked == nullptr || srq->is_in_error) return EINVAL;
  if (!FetchAllMarked(*srq)) {
    OnSrqLied(*srq);
    ++hostile_acts_;
    return EINVAL;
  }
  const MarkedReceives::Cancelled cancelled = srq->marked->Cancel(request.wr_id);
  if (cancelled.is_found) srq->ring.Release(1);
  command.Reply(shm::CancelRecvReply{cancelled.is_found, cancelled.messages});
  return 0;
}

// At most as many as the ring holds, each once. False: it lies.
bool DeviceCore::FetchAllMarked(Srq& srq) {
  transport::RecvWork work;
  WorkQueueConsumer::Peek peek;
  while ((peek = srq.ring.Available()) == WorkQueueConsumer::Peek::kReady) {
    if (!FetchRecvWork(srq.ring, srq.max_sge, &work) || !srq.marked->Add(work)) return false;
  }
  return peek == WorkQueueConsumer::Peek::kEmpty;
}

}  // namespace verbena::softnic

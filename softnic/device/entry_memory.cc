// Queues whose entries a program keeps in memory of its own (an allocator of a parent domain).
//
// Heads and indices stay in the arena; the ring there is the NIC's copy. Work requests are fetched
// into it when the QP has taken all that it holds; completions are made in it, and written from
// there to the program. A PDU that may need a receive waits while one is being fetched: what is
// posted counts as posted.
//
// Trust: as of any client memory. What can't be read costs the QP or SRQ, what can't be written the
// CQ.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/cache_line.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

using Peek = WorkQueueConsumer::Peek;

// Work requests fetched at once: many for the price of one system call, without holding others up.
constexpr uint32_t kFetchBytes = 16 * 1024;
// Two segments each.
constexpr uint32_t kCqesPerWrite = shm::kMaxSge / 2;

}  // namespace

// Errors: EINVAL: not aligned as a queue is, or the range wraps; else as DmaEngine::AddRegion.
int DeviceCore::UseEntries(const Session& session, shm::EntryAddress addr, uint64_t bytes,
                           EntryMemory* out) {
  if (addr == 0) return 0;
  if (addr % kCacheLineBytes != 0 || addr + bytes < addr) return EINVAL;
  RegionSpec spec = {addr, bytes, 0, nullptr, 0};
  spec.must_be_assisted = session.assists_entries;
  if (int error = dma_->AddRegion(session.id, spec, &out->region); error != 0) return error;
  out->addr = addr;
  out->stream = next_stream_++;
  return 0;
}

// On an error nothing is kept.
int DeviceCore::AllocateWorkQueue(const Session& session, uint32_t entries, uint32_t stride_bytes,
                                  shm::EntryAddress addr, QueueMemory* queue,
                                  WorkQueueConsumer* ring, EntryMemory* memory) {
  SessionServices& services = *session.services;
  int error = services.AllocateQueue(WorkQueueBytes(entries, stride_bytes), queue);
  if (error != 0) return error;
  error = UseEntries(session, addr, uint64_t{entries} * stride_bytes, memory);
  if (error != 0) {
    services.FreeQueue(*queue);
    return error;
  }
  *ring = WorkQueueConsumer(queue->memory, entries, stride_bytes, memory->IsUsed());
  return 0;
}

void DeviceCore::Discard(const Session& session, const QueueMemory& queue,
                         const EntryMemory& entries) {
  session.services->FreeQueue(queue);
  if (entries.IsUsed()) dma_->RemoveRegion(entries.region);
}

void DeviceCore::Retire(const Session& session, const QueueMemory& queue,
                        const EntryMemory& entries, Retired* retired) {
  if (!entries.IsUsed()) return session.services->FreeQueue(queue);
  retired->regions.push_back(entries.region);
  retired->queues.push_back(queue);
}

// What is the session's own goes with the first fence: the session may have ended by the next.
void DeviceCore::Release(Session* session, Retired* retired) {
  for (transport::MemoryId region : std::exchange(retired->regions, {})) dma_->RemoveRegion(region);
  for (const QueueMemory& queue : std::exchange(retired->queues, {})) {
    session->services->FreeQueue(queue);
  }
  if (session == nullptr || !retired->others.IsEmpty()) return;
  for (const Retired::Receives& parts : retired->receives) ReturnParts(*session, parts);
}

void DeviceCore::SubmitMove(const EntryMove& move, const transport::DmaRequest& request) {
  DmaRecord record;
  record.entry_move = entry_moves_.Insert(move);
  dma_->Submit(move.stream, dmas_.Insert(record), request);
}

void DeviceCore::EndAwaiting(Srq& srq) {
  for (QpRef ref : std::exchange(srq.awaiting, {})) {
    DeviceQp* qp = FindQp(ref);
    if (qp == nullptr) continue;
    qp->awaits_srq = false;
    AfterInput(*qp);
  }
}

// kReady: work requests are on their way, and OnEntriesMoved gives the QP its turn.
Peek DeviceCore::StageWqes(DeviceQp& qp, EntryQueue queue) {
  const bool is_send = queue == EntryQueue::kSend;
  WorkQueueConsumer& ring = is_send ? qp.send_ring : qp.receive_ring();
  EntryMemory& entries = is_send ? qp.send_entries : qp.receive_entries();
  if (entries.is_lost) return Peek::kInvalid;
  if (entries.is_busy) return Peek::kReady;
  uint32_t count;
  uint64_t offset_bytes;
  const uint32_t stride_bytes = ring.stride_bytes();
  const Peek found =
      ring.NextToStage(std::max(kFetchBytes / stride_bytes, 1u), &count, &offset_bytes);
  if (found != Peek::kReady) return found;

  const uint32_t bytes = count * stride_bytes;
  const transport::DmaSegment from = {entries.region, bytes, entries.addr + offset_bytes};
  const transport::LocalPiece to = {ring.StagingPlace(offset_bytes), bytes, nullptr};
  transport::DmaRequest request;
  request.source.length = bytes;
  request.source.segments = &from;
  request.source.segment_count = 1;
  request.local_pieces = &to;
  request.local_piece_count = 1;
  EntryMove move;
  move.queue = queue;
  move.qp = qp.self;
  move.stream = entries.stream;
  move.count = count;
  if (!is_send && qp.srq != nullptr) {
    move.session = qp.session->id;
    move.object = qp.srq->handle;
  }
  entries.is_busy = true;
  SubmitMove(move, request);
  return Peek::kReady;
}

// Whether `pdu` may need a receive that is posted and not fetched yet.
bool DeviceCore::AwaitsReceive(DeviceQp& qp, const transport::Pdu& pdu) {
  if (!qp.receive_entries().IsUsed()) return false;
  const transport::OpcodeInfo* info = transport::LookUpOpcode(pdu.opcode);
  if (info == nullptr || !(info->is_send || info->has_imm)) return false;
  if (qp.receive_ring().Available() != Peek::kEmpty) return false;
  if (StageWqes(qp, EntryQueue::kReceive) != Peek::kReady) return false;
  if (qp.srq != nullptr && !std::exchange(qp.awaits_srq, true)) {
    qp.srq->awaiting.push_back(qp.self);
  }
  return true;
}

// The body of an entry becomes visible before its valid word: segments are written in order.
void DeviceCore::WriteCqes(Cq& cq) {
  constexpr uint32_t kBodyBytes = offsetof(shm::Cqe, valid);
  cq.is_unwritten = false;
  const bool is_solicited = std::exchange(cq.is_unwritten_solicited, false);
  while (cq.written != cq.ring.producer_index()) {
    const uint32_t to_end = cq.ring.entries() - (cq.written & (cq.ring.entries() - 1));
    const uint32_t count = std::min({cq.ring.producer_index() - cq.written, kCqesPerWrite, to_end});
    transport::DmaSegment to[2 * kCqesPerWrite];
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t addr = cq.entries.addr + cq.ring.OffsetOf(cq.written + i);
      to[2 * i] = {cq.entries.region, kBodyBytes, addr};
      to[2 * i + 1] = {cq.entries.region, sizeof(shm::Cqe) - kBodyBytes, addr + kBodyBytes};
    }
    transport::DmaRequest request;
    request.source.length = count * sizeof(shm::Cqe);
    request.source.bytes = cq.ring.Entry(cq.written);
    request.destination = to;
    request.destination_count = static_cast<uint16_t>(2 * count);
    EntryMove move;
    move.queue = EntryQueue::kCompletion;
    move.session = cq.session->id;
    move.object = cq.handle;
    move.stream = cq.entries.stream;
    move.count = count;
    cq.written += count;
    move.is_solicited = is_solicited && cq.written == cq.ring.producer_index();
    SubmitMove(move, request);
  }
}

void DeviceCore::WriteUnwrittenCqes() {
  for (Cq* cq : unwritten_cqs_) WriteCqes(*cq);
  unwritten_cqs_.clear();
}

void DeviceCore::OnEntriesMoved(uint64_t cookie, bool is_ok, bool is_owner_gone) {
  EntryMove move;
  entry_moves_.Take(cookie, &move);
  if (move.queue == EntryQueue::kCompletion) {
    Session* session = FindSession(move.session);
    Cq* cq = session != nullptr ? session->cqs.Find(move.object) : nullptr;
    if (cq == nullptr || cq->entries.stream != move.stream) return;
    if (is_ok) {
      NoteCqes(*cq, move.count, move.is_solicited);
    } else if (!is_owner_gone && !cq->is_in_error) {
      FailCq(*cq);
    }
    return;
  }
  auto take = [&](EntryMemory& entries, WorkQueueConsumer& ring) {
    entries.is_busy = false;
    if (is_ok) ring.Staged(move.count);
    entries.is_lost = !is_ok;
  };
  if (move.object != 0) {
    Session* session = FindSession(move.session);
    Srq* srq = session != nullptr ? session->srqs.Find(move.object) : nullptr;
    if (srq == nullptr || srq->entries.stream != move.stream) return;
    take(srq->entries, srq->ring);
    return EndAwaiting(*srq);
  }
  DeviceQp* qp = FindQp(move.qp);
  if (qp == nullptr) return;
  if (move.queue == EntryQueue::kSend) {
    take(qp->send_entries, qp->send_ring);
    qp->transport->OnDoorbell(now_);
  } else {
    take(qp->recv_entries, qp->recv_ring);
  }
  AfterInput(*qp);
}

}  // namespace verbena::softnic

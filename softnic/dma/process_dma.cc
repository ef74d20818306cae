#include "softnic/dma/process_dma.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "softnic/dma/bus_error.h"

namespace verbena::softnic {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

namespace {

// A MemoryId is an index below a generation, so that a stale one is refused and never taken for the
// region that came to the same place later.
constexpr uint32_t kIndexBits = 24;
constexpr uint32_t kRegionsMax = 1u << kIndexBits;
constexpr uint8_t kGenerationMask = (kWindowMemoryBit >> kIndexBits) - 1;

MemoryId MakeMemoryId(uint32_t index, uint8_t generation) {
  return (static_cast<uint32_t>(generation) << kIndexBits) | index;
}

// Streams of probes are apart from the device's by the top bit, one per session and range.
constexpr uint64_t kProbeStreamBit = 1ull << 63;

bool IsAllMapped(const RegionSpec& spec) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < spec.piece_count; ++i) bytes += spec.pieces[i].bytes;
  return bytes == spec.length;
}

uint64_t TotalLength(const DmaSegment* segments, uint32_t count) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; ++i) total += segments[i].length;
  return total;
}

}  // namespace

ProcessDma::ProcessDma(CopyCrew* crew) : crew_(crew), regions_(1) {
  CatchBusErrors();
  AttachSession(kNicSession, /*pid=*/0);
  nic_session_ = FindSession(kNicSession);
}
ProcessDma::~ProcessDma() = default;

// --- sessions -----------------------------------------------------------------------------------

void ProcessDma::AttachSession(SessionId session, pid_t pid) {
  TargetProcess* process = nullptr;
  for (auto& p : processes_) {
    if (p->pid == pid && !p->dead.load(std::memory_order_relaxed)) process = p.get();
  }
  if (process == nullptr) {
    processes_.push_back(std::make_unique<TargetProcess>());
    process = processes_.back().get();
    process->pid = pid;
  }
  process->sessions += 1;
  auto record = std::make_unique<DmaSession>();
  record->id = session;
  record->process = process;
  bool is_new = sessions_.emplace(session, std::move(record)).second;
  VERBENA_CHECK(is_new);
}

void ProcessDma::MarkProcessDead(SessionId session) {
  DmaSession* record = FindSession(session);
  if (record == nullptr) return;
  record->process->dead.store(true, std::memory_order_release);
  EndAssistance(session);
}

void ProcessDma::SetReachable(SessionId session, bool reachable) {
  DmaSession* record = FindSession(session);
  if (record != nullptr) record->reachable = reachable;
}

void ProcessDma::EndAssistance(SessionId session) {
  DmaSession* record = FindSession(session);
  if (record != nullptr && record->assistant != nullptr) record->assistant->End();
}

bool ProcessDma::IsIdle() const {
  return std::all_of(sessions_.begin(), sessions_.end(),
                     [](const auto& each) { return each.second->outstanding == 0; });
}

bool ProcessDma::IsIdle(SessionId session) const {
  const DmaSession* record = FindSession(session);
  return record == nullptr || record->outstanding == 0;
}

void ProcessDma::DetachSession(SessionId session) {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  VERBENA_CHECK(it->second->outstanding == 0);
  TargetProcess* process = it->second->process;
  while (const uint32_t i = it->second->first_region) {
    RemoveRegion(MakeMemoryId(i, regions_[i].generation));
  }
  sessions_.erase(it);
  process->sessions -= 1;
  if (process->sessions != 0) return;
  VERBENA_CHECK(process->waiting.empty());
  std::erase(slow_, process);
  std::erase_if(processes_, [process](const auto& p) { return p.get() == process; });
}

DmaSession* ProcessDma::FindSession(SessionId session) const {
  auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void ProcessDma::SubmitProbe(SessionId session, uint64_t addr, uint64_t bytes, uint64_t cookie,
                             bool by_helper) {
  DmaSession* record = FindSession(session);
  DmaOp* op = NewOp();
  op->kind = DmaOp::Kind::kProbe;
  op->stream = kProbeStreamBit | (static_cast<uint64_t>(session) << 24) | (cookie & 0xff'ffff);
  op->cookie = cookie;
  if (record == nullptr || bytes == 0 || addr + bytes < addr) {
    op->error = record == nullptr || bytes != 0 ? EFAULT : 0;
    probes_.push_back({cookie, op->error, 0});
    return FreeOp(op);
  }
  op->source = record->process;
  op->source_assistant = AssistantFor(*record, by_helper);
  if (bytes <= sizeof(op->original)) {
    op->source_pieces.push_back({reinterpret_cast<void*>(addr), bytes});
  } else {
    op->source_pieces.push_back({reinterpret_cast<void*>(addr), 1});
    op->source_pieces.push_back({reinterpret_cast<void*>(addr + bytes - 1), 1});
  }
  HoldSession(op, 0, record);
  Enqueue(op);
}

// --- regions ------------------------------------------------------------------------------------

// Whoever is unreachable otherwise is reached that way without being asked. nullptr: not by a
// helper, or there is none.
Assistant* ProcessDma::AssistantFor(const DmaSession& session, bool by_helper) {
  return by_helper || !session.reachable ? session.assistant.get() : nullptr;
}

int ProcessDma::OpenAssist(SessionId session, int* file, int* socket) {
  DmaSession* record = FindSession(session);
  if (record == nullptr) return EOPNOTSUPP;
  if (record->assistant != nullptr) return EBUSY;
  Assistant::ClientFds fds;
  int error = 0;
  record->assistant = Assistant::Create(&fds, &error, &record->process->hanging_helpers,
                                        [this] { crew_->CallAttention(); });
  *file = fds.file;
  *socket = fds.socket;
  return error;
}

int ProcessDma::AddRegion(SessionId session, const RegionSpec& spec, MemoryId* out) {
  if (session == kNicSession) return AddNicRegion(spec, out);
  int probed_error = std::exchange(probed_error_, 0);
  DmaSession* record = FindSession(session);
  if (record == nullptr) return EOPNOTSUPP;
  if (spec.addr + spec.length < spec.addr) return EFAULT;
  Assistant* assistant = AssistantFor(*record, spec.must_be_assisted);
  const bool is_helped = assistant != nullptr && !assistant->HasEnded();
  if (spec.must_be_assisted && !is_helped) return EOPNOTSUPP;
  if (!record->reachable && !is_helped && !IsAllMapped(spec)) return EOPNOTSUPP;
  if ((record->reachable || is_helped) && spec.length != 0 && probed_error != 0) {
    return probed_error;
  }
  Region* region = NewRegion(out);
  if (region == nullptr) return ENOMEM;
  if (int error = MapParts(spec, record, region); error != 0) {
    free_regions_.push_back(*out & (kRegionsMax - 1));
    return error;
  }
  GiveRegion(region, record);
  region->assistant = assistant;
  region->addr = spec.addr;
  region->length = spec.length;
  return 0;
}

int ProcessDma::AddNicRegion(const RegionSpec& spec, MemoryId* out) {
  Region* region = NewRegion(out);
  if (region == nullptr) return ENOMEM;
  GiveRegion(region, nic_session_);
  region->addr = spec.addr;
  region->length = spec.length;
  region->parts.push_back(
      {spec.addr, spec.length, reinterpret_cast<std::byte*>(spec.addr), nullptr});
  return 0;
}

// nullptr: there are too many.
ProcessDma::Region* ProcessDma::NewRegion(MemoryId* out) {
  uint32_t index;
  if (!free_regions_.empty()) {
    index = free_regions_.back();
    free_regions_.pop_back();
  } else {
    // The last index is kNullMemory's.
    if (regions_.size() >= kRegionsMax - 1) return nullptr;
    index = static_cast<uint32_t>(regions_.size());
    regions_.emplace_back();
  }
  *out = MakeMemoryId(index, regions_[index].generation);
  return &regions_[index];
}

void ProcessDma::GiveRegion(Region* region, DmaSession* session) {
  const auto index = static_cast<uint32_t>(region - regions_.data());
  region->session = session;
  region->previous = 0;
  region->next = session->first_region;
  if (region->next != 0) regions_[region->next].previous = index;
  session->first_region = index;
}

void ProcessDma::RemoveRegion(MemoryId id) {
  if (FindRegion(id) == nullptr) return;
  uint32_t index = id & (kRegionsMax - 1);
  Region& region = regions_[index];
  UnmapParts(&region);
  if (region.next != 0) regions_[region.next].previous = region.previous;
  (region.previous != 0 ? regions_[region.previous].next : region.session->first_region) =
      region.next;
  region.session = nullptr;
  region.is_relaxed = false;
  region.generation = (region.generation + 1) & kGenerationMask;
  free_regions_.push_back(index);
}

void ProcessDma::RelaxOrder(MemoryId id) {
  if (FindRegion(id) != nullptr) regions_[id & (kRegionsMax - 1)].is_relaxed = true;
}

const ProcessDma::Region* ProcessDma::FindRegion(MemoryId id) const {
  uint32_t index = id & (kRegionsMax - 1);
  if (index >= regions_.size()) return nullptr;
  const Region& region = regions_[index];
  if (region.session == nullptr || region.generation != id >> kIndexBits) return nullptr;
  return &region;
}

const char* ProcessDma::BackendName(MemoryId id) const {
  const Region* region = FindRegion(id);
  if (id == kNullMemory) return "null";
  if (region == nullptr) return "none";
  if (region->session == nic_session_) return "nic";
  const bool is_assisted = region->assistant != nullptr;
  if (region->parts.empty()) return is_assisted ? "assisted" : "process";
  uint64_t mapped_bytes = 0;
  for (const MappedPart& part : region->parts) mapped_bytes += part.bytes;
  if (mapped_bytes == region->length) return "mapped";
  return is_assisted ? "mapped, assisted" : "mapped, process";
}

// --- submission ---------------------------------------------------------------------------------

// Addresses in the process, or with *is_mapped our own; else `here` says which are, if any.
bool ProcessDma::ResolvePieces(const DmaSegment* segments, uint32_t count, uint64_t offset,
                               uint64_t length, const PieceList& out, DmaSession** session,
                               bool* uses_nic_memory) {
  mapped_pieces_.clear();
  bool is_mapped = length != 0, is_any_here = false;
  *out.order = MoveOrder::kAny;
  for (uint32_t i = 0; i < count && length != 0; ++i) {
    const DmaSegment& segment = segments[i];
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(segment.length - offset, length);
    if (segment.memory == kNullMemory) {
      out.pieces->push_back({nullptr, n});
      out.here->push_back(true);
      is_any_here = true;
      is_mapped = false;
    } else {
      const Region* region = FindRegion(segment.memory);
      if (region == nullptr) return false;
      // The device has checked bounds by key; this is the last line, and costs two compares.
      if (segment.addr < region->addr || segment.addr - region->addr > region->length ||
          segment.length > region->length - (segment.addr - region->addr)) {
        return false;
      }
      const bool is_nic = region->session == nic_session_;
      if (is_nic) {
        *uses_nic_memory = is_any_here = true;
      } else if (*session != nullptr && *session != region->session) {
        return false;
      } else {
        *session = region->session;
      }
      out.pieces->push_back({reinterpret_cast<void*>(segment.addr + offset), n});
      out.here->push_back(is_nic);
      // It reaches all of the process, also what the kernel could reach for us.
      if (region->assistant != nullptr) *out.assistant = region->assistant;
      is_mapped = is_mapped && FindMapped(*region, segment.addr + offset, n);
      if (!region->is_relaxed) *out.order = MoveOrder::kAscending;
    }
    offset = 0;
    length -= n;
  }
  is_mapped = is_mapped && mapped_pieces_.size() <= kUnitPiecesMax;
  if (is_mapped) out.pieces->assign(mapped_pieces_.begin(), mapped_pieces_.end());
  if (is_mapped || !is_any_here) out.here->clear();
  if (is_any_here && *session == nullptr) *session = nic_session_;
  *out.is_mapped = is_mapped;
  return length == 0;
}

void ProcessDma::ResolveCopy(const DmaRequest& request, DmaOp* op) {
  const transport::Payload& payload = request.source;
  op->length_bytes = static_cast<uint64_t>(request.prefix_bytes) + payload.length;
  op->bytes.insert(op->bytes.end(), request.prefix, request.prefix + request.prefix_bytes);
  DmaSession* source = nullptr;
  DmaSession* destination = nullptr;
  bool uses_nic_memory = false;
  for (uint32_t i = 0; i < request.local_piece_count; ++i) {
    const transport::LocalPiece& piece = request.local_pieces[i];
    op->destination_pieces.push_back({piece.to, piece.bytes});
    if (piece.crc != nullptr) op->crcs.push_back(piece.crc);
  }
  const bool has_destination =
      request.local_piece_count != 0 ||
      ResolvePieces(request.destination, request.destination_count, request.destination_offset,
                    op->length_bytes,
                    {&op->destination_pieces, &op->destination_here, &op->destination_is_mapped,
                     &op->order, &op->destination_assistant},
                    &destination, &uses_nic_memory);
  MoveOrder order_of_source;
  bool has_source = true;
  if (payload.bytes != nullptr && op->destination_is_mapped && MovesAtOnce(*op)) {
    // Moved before anybody can touch the packets: they need not be copied.
    payload.ForEachPiece([op](const std::byte* from, uint32_t n) {
      op->source_pieces.push_back({const_cast<std::byte*>(from), n});
    });
  } else if (payload.bytes != nullptr) {
    payload.AppendTo(&op->bytes);
  } else {
    has_source =
        ResolvePieces(payload.segments, payload.segment_count, payload.offset, payload.length,
                      {&op->source_pieces, &op->source_here, &op->source_is_mapped,
                       &order_of_source, &op->source_assistant},
                      &source, &uses_nic_memory);
  }
  if (!has_source || !has_destination) {
    op->kind = DmaOp::Kind::kFailed;
    op->status = has_source ? DmaStatus::kDestinationFault : DmaStatus::kSourceFault;
    return;
  }
  if (source != nullptr) {
    op->source = source->process;
    HoldSession(op, 0, source);
  }
  if (destination != nullptr) {
    op->destination = destination->process;
    HoldSession(op, 1, destination);
  }
  if (uses_nic_memory && op->holds[1].session != nic_session_) HoldSession(op, 2, nic_session_);
}

void ProcessDma::ResolveAtomic(const DmaRequest& request, DmaOp* op) {
  DmaSession* destination = nullptr;
  bool uses_nic_memory = false;
  op->length_bytes = sizeof(uint64_t);
  op->compare = request.compare;
  op->swap_or_add = request.swap_or_add;
  op->kind = request.kind == DmaRequest::Kind::kCompareSwap ? DmaOp::Kind::kCompareSwap
                                                            : DmaOp::Kind::kFetchAdd;
  if (TotalLength(request.destination, request.destination_count) < sizeof(uint64_t) ||
      !ResolvePieces(request.destination, request.destination_count, request.destination_offset,
                     sizeof(uint64_t),
                     {&op->destination_pieces, &op->destination_here, &op->destination_is_mapped,
                      &op->order, &op->destination_assistant},
                     &destination, &uses_nic_memory) ||
      op->destination_pieces.size() != 1 || op->IsMixed()) {
    op->kind = DmaOp::Kind::kFailed;
    op->status = DmaStatus::kDestinationFault;
    return;
  }
  op->destination = destination->process;
  HoldSession(op, 1, destination);
}

void ProcessDma::Submit(uint64_t stream, uint64_t cookie, const DmaRequest& request) {
  DmaOp* op = NewOp();
  op->stream = stream;
  op->cookie = cookie;
  if (request.kind == DmaRequest::Kind::kCopy) {
    ResolveCopy(request, op);
  } else {
    ResolveAtomic(request, op);
  }
  operations_ += 1;
  if (op->IsMapped() && MovesAtOnce(*op)) {
    at_once_bytes_ = op->length_bytes + (done_.empty() ? 0 : at_once_bytes_);
    MoveMapped(op, op->length_bytes);
    return Report(op);
  }
  Enqueue(op);
}

void ProcessDma::Fence(SessionId session, uint64_t cookie) {
  DmaSession* record = FindSession(session);
  if (record == nullptr || record->outstanding == 0) {
    fences_.push_back(cookie);
    return;
  }
  record->epochs.back().fence_cookie = cookie;
  record->epochs.emplace_back();
  waiting_fences_ += 1;
  RequestAttention();  // what hangs elsewhere must not hold this up
}

void ProcessDma::HoldSession(DmaOp* op, int slot, DmaSession* session) {
  if (op->holds[0].session == session) return;
  op->holds[slot] = {session, session->first_epoch + session->epochs.size() - 1};
  session->epochs.back().outstanding += 1;
  session->outstanding += 1;
}

void ProcessDma::ReleaseHolds(DmaOp* op) {
  for (DmaOp::Hold& hold : op->holds) ReleaseHold(&hold);
}

void ProcessDma::ReleaseHold(DmaOp::Hold* hold) {
  DmaSession* session = std::exchange(hold->session, nullptr);
  if (session == nullptr) return;
  VERBENA_CHECK(session->outstanding > 0);
  session->outstanding -= 1;
  session->epochs[hold->epoch - session->first_epoch].outstanding -= 1;
  while (session->epochs.size() > 1 && session->epochs.front().outstanding == 0) {
    fences_.push_back(session->epochs.front().fence_cookie);
    session->epochs.pop_front();
    session->first_epoch += 1;
    waiting_fences_ -= 1;
  }
}

// --- operations ---------------------------------------------------------------------------------

DmaOp* ProcessDma::NewOp() {
  if (free_ops_ == nullptr) return &op_storage_.emplace_back();
  DmaOp* op = free_ops_;
  free_ops_ = op->next;
  op->kind = DmaOp::Kind::kCopy;
  op->status = DmaStatus::kOk;
  op->error = 0;
  op->source = op->destination = nullptr;
  op->source_assistant = op->destination_assistant = nullptr;
  op->length_bytes = op->progress_bytes = 0;
  op->original = 0;
  op->is_revoked = op->is_owner_gone = false;
  op->source_is_mapped = op->destination_is_mapped = false;
  op->order = MoveOrder::kAscending;
  op->next = nullptr;
  op->bytes.clear();
  op->source_pieces.clear();
  op->destination_pieces.clear();
  op->crcs.clear();
  op->source_here.clear();
  op->destination_here.clear();
  return op;
}

void ProcessDma::FreeOp(DmaOp* op) {
  op->next = free_ops_;
  free_ops_ = op;
}

void ProcessDma::CountQueued() {
  queued_ += 1;
  queued_most_ = std::max(queued_most_, queued_);
}

void ProcessDma::Enqueue(DmaOp* op) {
  uint32_t lane = LaneOf(op->stream);
  CountQueued();
  op->next = nullptr;
  if (lanes_[lane].last != nullptr) {
    lanes_[lane].last->next = op;
  } else {
    lanes_[lane].first = op;
    lane_mask_ |= 1ull << lane;
  }
  lanes_[lane].last = op;
}

void ProcessDma::PushFront(DmaOp* op) {
  uint32_t lane = LaneOf(op->stream);
  CountQueued();
  op->next = lanes_[lane].first;
  lanes_[lane].first = op;
  if (op->next == nullptr) lanes_[lane].last = op;
  lane_mask_ |= 1ull << lane;
}

void ProcessDma::Report(DmaOp* op) {
  if (op->kind == DmaOp::Kind::kProbe) {
    probes_.push_back({op->cookie, op->error, op->original});
  } else {
    const bool is_revoked = op->is_revoked && op->status == DmaStatus::kSourceFault;
    if (is_revoked) RevokeBehind(op->stream);
    const DmaFault fault = is_revoked          ? DmaFault::kRevoked
                           : op->is_owner_gone ? DmaFault::kOwnerGone
                                               : DmaFault::kMemory;
    done_.push_back({op->cookie, op->status, op->original, fault});
  }
  ReleaseHolds(op);
  FreeOp(op);
}

bool ProcessDma::PollDone(Done* out) {
  if (done_.empty()) return false;
  *out = done_.front();
  done_.pop_front();
  return true;
}

bool ProcessDma::PollFence(uint64_t* cookie) {
  // A fence is reported after everything it waits for.
  if (fences_.empty() || !done_.empty()) return false;
  *cookie = fences_.front();
  fences_.pop_front();
  return true;
}

bool ProcessDma::PollProbe(ProbeDone* out) {
  if (probes_.empty()) return false;
  *out = probes_.front();
  probes_.pop_front();
  return true;
}

}  // namespace verbena::softnic

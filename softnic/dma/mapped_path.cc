// The part of ProcessDma for memory that is mapped here: no system call, no other thread, and for
// all but large copies no wait.
#include <errno.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/prefetch.h"
#include "softnic/dma/bus_error.h"
#include "softnic/dma/move_bytes.h"
#include "softnic/dma/process_dma.h"
#include "transport/wire/crc32.h"

namespace verbena::softnic {

using transport::DmaSegment;
using transport::DmaStatus;

int ProcessDma::OpenPayload(SessionId session, const uint64_t* known, uint32_t known_count,
                            uint64_t* out, int* fd) {
  *fd = -1;
  DmaSession* record = FindSession(session);
  if (record == nullptr) return EOPNOTSUPP;
  for (const auto& [id, other] : sessions_) {
    // A process that has executed another program knows nothing of the files of the one before.
    if (record->payload != nullptr || other->process != record->process ||
        other->payload == nullptr) {
      continue;
    }
    if (std::find(known, known + known_count, other->payload->id()) != known + known_count) {
      record->payload = other->payload;
    }
  }
  if (record->payload == nullptr) {
    int error = 0;
    record->payload = PayloadFile::Create(&error);
    if (record->payload == nullptr) return error;
    *fd = record->payload->fd();
  }
  *out = record->payload->id();
  return 0;
}

int ProcessDma::MapParts(const RegionSpec& spec, DmaSession* session, Region* region) {
  if (spec.piece_count == 0) return 0;
  PayloadFile* file = session->payload.get();
  if (file == nullptr || file->id() != spec.payload) return EINVAL;
  uint64_t begin = spec.addr;  // of what the next piece may cover
  const uint64_t end = spec.addr + spec.length;
  for (uint32_t i = 0; i < spec.piece_count; ++i) {
    const shm::MappedPiece& piece = spec.pieces[i];
    if (piece.addr < begin || piece.addr > end || piece.bytes > end - piece.addr ||
        !file->Holds(piece.offset, piece.bytes) || (piece.addr - piece.offset) % 4096 != 0) {
      return EINVAL;
    }
    begin = piece.addr + piece.bytes;
  }
  region->file = session->payload;
  for (uint32_t i = 0; i < spec.piece_count; ++i) {
    const shm::MappedPiece& piece = spec.pieces[i];
    PayloadWindow* window = file->Open(piece.offset, piece.bytes);
    if (window == nullptr) {  // there is another way, or none
      if ((session->reachable || session->assistant != nullptr) && !spec.must_be_mapped) continue;
      UnmapParts(region);
      return ENOMEM;
    }
    region->parts.push_back(
        {piece.addr, piece.bytes, window->base + (piece.offset - window->offset), window});
  }
  return 0;
}

int ProcessDma::CopyRegion(transport::MemoryId id, transport::MemoryId* out) {
  if (FindRegion(id) == nullptr) return ENOMEM;
  Region* copy = NewRegion(out);
  if (copy == nullptr) return ENOMEM;
  const Region& region = *FindRegion(id);  // NewRegion may have moved it
  GiveRegion(copy, region.session);
  copy->addr = region.addr;
  copy->length = region.length;
  copy->assistant = region.assistant;
  copy->file = region.file;
  for (const MappedPart& part : region.parts) {
    if (part.window == nullptr) {
      copy->parts.push_back(part);
      continue;
    }
    const uint64_t offset =
        part.window->offset + static_cast<uint64_t>(part.base - part.window->base);
    PayloadWindow* window = region.file->Open(offset, part.bytes);
    if (window == nullptr) {
      if (region.session->reachable || region.assistant != nullptr) continue;
      RemoveRegion(*out);
      return ENOMEM;
    }
    copy->parts.push_back(
        {part.addr, part.bytes, window->base + (offset - window->offset), window});
  }
  return 0;
}

void ProcessDma::UnmapParts(Region* region) {
  for (MappedPart& part : region->parts) {
    if (part.window != nullptr) region->file->Close(part.window);
  }
  region->parts.clear();
  region->file.reset();
}

// Appends our addresses of the range to mapped_pieces_. False: not all of it is mapped.
bool ProcessDma::FindMapped(const Region& region, uint64_t addr, uint64_t bytes) {
  for (const MappedPart& part : region.parts) {
    if (addr < part.addr) return false;
    if (addr - part.addr >= part.bytes) continue;
    const uint64_t offset = addr - part.addr;
    const uint64_t n = std::min(bytes, part.bytes - offset);
    mapped_pieces_.push_back({part.base + offset, n});
    addr += n;
    bytes -= n;
    if (bytes == 0) return true;
  }
  return false;
}

// The same for the first `bytes` of a list of segments, and in which order they may be written. NIC
// memory is not mapped, it is here.
bool ProcessDma::FindMapped(const DmaSegment* segments, uint32_t count, uint64_t bytes,
                            MoveOrder* order) {
  *order = MoveOrder::kAny;
  for (uint32_t i = 0; i < count && bytes != 0; ++i) {
    const DmaSegment& segment = segments[i];
    const Region* region = segment.memory == kNullMemory ? nullptr : FindRegion(segment.memory);
    // FindMapped keeps to the parts, and no part is beyond its region.
    const uint64_t n = std::min<uint64_t>(segment.length, bytes);
    if (region == nullptr || !FindMapped(*region, segment.addr, n)) return false;
    if (!region->is_relaxed) *order = MoveOrder::kAscending;
    bytes -= n;
  }
  return bytes == 0;
}

bool ProcessDma::MoveNow(const transport::Payload& source, const DmaSegment* destination,
                         uint32_t destination_count) {
  if (!MayMoveNow()) return false;
  mapped_pieces_.clear();
  MoveOrder order;
  return FindMapped(destination, destination_count, source.length, &order) &&
         MoveToMapped(source, order);
}

void ProcessDma::ExpectMove(transport::MemoryId memory, uint64_t addr) {
  const Region* region = FindRegion(memory);
  if (region == nullptr) return;
  mapped_pieces_.clear();
  if (FindMapped(*region, addr, 1)) PrefetchForWrite(mapped_pieces_.front().iov_base);
}

bool ProcessDma::ReadNow(const transport::Payload& source, std::byte* to) {
  if (!MayMoveNow()) return false;
  mapped_pieces_.assign(1, {to, source.length});
  return MoveToMapped(source, MoveOrder::kAscending);
}

// To what is in mapped_pieces_.
bool ProcessDma::MoveToMapped(const transport::Payload& source, MoveOrder order) {
  const size_t destinations = mapped_pieces_.size();
  MoveOrder order_of_source;
  if (source.bytes != nullptr) {
    mapped_pieces_.push_back({const_cast<std::byte*>(source.bytes), source.length});
  } else if (!FindMapped(source.segments, source.segment_count, source.length, &order_of_source)) {
    return false;
  }
  const iovec* pieces = mapped_pieces_.data();
  uintptr_t fault;
  const bool is_done = Guarded(&fault, [pieces, destinations, &source, order] {
    MovePieces(pieces, 0, pieces + destinations, 0, source.length, order);
  });
  if (!is_done) return false;
  operations_ += 1;
  mapped_bytes_.store(mapped_bytes_.load(std::memory_order_relaxed) + source.length,
                      std::memory_order_relaxed);
  return true;
}

// Whether a mapped operation may move within Submit: it takes a few microseconds at most, as do all
// that did so in this turn, and nothing of its stream is before it.
bool ProcessDma::MovesAtOnce(const DmaOp& op) const {
  const uint64_t bytes_before = done_.empty() ? 0 : at_once_bytes_;
  return op.length_bytes <= kBounceBytes && bytes_before < kAtOnceBytesMax && running_ == nullptr &&
         lanes_[LaneOf(op.stream)].first == nullptr &&
         (blocked_.empty() || !blocked_.contains(op.stream));
}

namespace {

void MoveAtomic(DmaOp* op) {
  auto* word = static_cast<uint64_t*>(op->destination_pieces[0].iov_base);
  if (op->kind == DmaOp::Kind::kFetchAdd) {
    op->original = __atomic_fetch_add(word, op->swap_or_add, __ATOMIC_SEQ_CST);
    return;
  }
  op->original = op->compare;
  __atomic_compare_exchange_n(word, &op->original, op->swap_or_add, /*weak=*/false,
                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool Contains(const std::vector<iovec>& pieces, uintptr_t address) {
  return std::any_of(pieces.begin(), pieces.end(), [address](const iovec& piece) {
    return address - reinterpret_cast<uintptr_t>(piece.iov_base) < piece.iov_len;
  });
}

}  // namespace

// Carries the operation on by up to `bytes_max`.
void ProcessDma::MoveMapped(DmaOp* op, uint64_t bytes_max) {
  const uint64_t bytes = std::min(op->length_bytes - op->progress_bytes, bytes_max);
  uintptr_t fault = 0;
  const bool is_done = Guarded(&fault, [op, bytes] {
    if (op->kind != DmaOp::Kind::kCopy) return MoveAtomic(op);
    const uint64_t at = op->progress_bytes;
    if (op->crcs.size() == op->destination_pieces.size() && op->bytes.empty() &&
        transport::wire::HasWideClmul()) {
      return MovePiecesWithCrc(op->destination_pieces.data(), op->crcs.data(), at,
                               op->source_pieces.data(), at, bytes);
    }
    const uint64_t local = at < op->bytes.size() ? std::min(op->bytes.size() - at, bytes) : 0;
    const iovec own = {op->bytes.data(), op->bytes.size()};
    if (local != 0) MovePieces(op->destination_pieces.data(), at, &own, at, local);
    if (local == bytes) return;
    MovePieces(op->destination_pieces.data(), at + local, op->source_pieces.data(),
               at + local - op->bytes.size(), bytes - local, op->order);
  });
  if (!is_done) {
    op->status = Contains(op->destination_pieces, fault) ? DmaStatus::kDestinationFault
                                                         : DmaStatus::kSourceFault;
    return;
  }
  op->progress_bytes += bytes;
  mapped_bytes_.store(mapped_bytes_.load(std::memory_order_relaxed) + bytes,
                      std::memory_order_relaxed);
}

// The mapped operation that heads `lane`: a chunk of it.
void ProcessDma::RunMapped(uint32_t lane, uint64_t* bytes) {
  DmaOp* op = PopLane(lane);
  const uint64_t before = op->progress_bytes;
  MoveMapped(op, kBounceBytes);
  *bytes += op->progress_bytes - before;
  if (op->status == DmaStatus::kOk && op->progress_bytes < op->length_bytes) {
    PushFront(op);
  } else {
    Report(op);
  }
}

}  // namespace verbena::softnic

#include "softnic/control/arena.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace verbena::softnic {

ArenaSet::ArenaSet(ArenaLimits limits, Announce announce, PartFilled part_filled)
    : limits_(limits), announce_(std::move(announce)), part_filled_(std::move(part_filled)) {}
ArenaSet::~ArenaSet() = default;

int ArenaSet::Allocate(uint64_t bytes, QueueMemory* out) {
  if (bytes == 0 || bytes > limits_.session_bytes_max) return ENOMEM;
  uint64_t rounded = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  if (rounded > limits_.session_bytes_max - bytes_in_use_) return ENOMEM;
  uint64_t offset = 0;
  size_t index = 0;
  while (index < arenas_.size() && !TakeFrom(*arenas_[index], rounded, &offset)) ++index;
  if (index == arenas_.size()) {
    int error = AddArena(rounded);
    if (error != 0) return error;
    VERBENA_CHECK(TakeFrom(*arenas_[index], rounded, &offset));
  }
  Arena& arena = *arenas_[index];
  int error = BackAndZero(arena, offset, rounded);
  if (error != 0) {
    GiveBack(arena, offset, rounded);
    return error;
  }
  bytes_in_use_ += rounded;
  out->memory = RingMemory(arena.memory.data() + offset, bytes);
  out->arena = static_cast<uint32_t>(index + 1);
  out->offset = offset;
  out->bytes = bytes;
  return 0;
}

void ArenaSet::Free(const QueueMemory& queue) {
  if (queue.bytes == 0) return;
  VERBENA_CHECK(queue.arena >= 1 && queue.arena <= arenas_.size());
  Arena& arena = *arenas_[queue.arena - 1];
  uint64_t rounded = (queue.bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  if (rounded >= kUnbackFromBytes) UnbackWholePages(arena, queue.offset, rounded);
  GiveBack(arena, queue.offset, rounded);
  bytes_in_use_ -= rounded;
}

int ArenaSet::AddArena(uint64_t bytes) {
  if (arenas_.size() >= limits_.arenas_max) return ENOMEM;
  uint64_t size = std::max(limits_.arena_bytes, bytes);
  size = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto arena = std::make_unique<Arena>();
  int error = arena->memory.Create("verbena-arena", size, ClientAccess::kReadWrite);
  if (error != 0) return error;
  error = announce_(static_cast<uint32_t>(arenas_.size() + 1), arena->memory.fd(), size);
  if (error != 0) return error;
  arena->free_by_offset.emplace(0, size);
  arena->free_by_size.emplace(size, 0);
  arena->backed.resize(size / kPageBytes);
  arena->parts.resize(size / kHugePageBytes);
  arenas_.push_back(std::move(arena));
  return 0;
}

// Best fit, lowest offset first: queues of like size fill the holes of destroyed ones.
bool ArenaSet::TakeFrom(Arena& arena, uint64_t bytes, uint64_t* offset) {
  auto fit = arena.free_by_size.lower_bound({bytes, 0});
  if (fit == arena.free_by_size.end()) return false;
  auto [block_bytes, block_offset] = *fit;
  arena.free_by_size.erase(fit);
  arena.free_by_offset.erase(block_offset);
  if (block_bytes > bytes) {
    arena.free_by_offset.emplace(block_offset + bytes, block_bytes - bytes);
    arena.free_by_size.emplace(block_bytes - bytes, block_offset + bytes);
  }
  *offset = block_offset;
  return true;
}

void ArenaSet::GiveBack(Arena& arena, uint64_t offset, uint64_t bytes) {
  auto after = arena.free_by_offset.lower_bound(offset);
  VERBENA_CHECK(after == arena.free_by_offset.end() || after->first >= offset + bytes);
  if (after != arena.free_by_offset.end() && after->first == offset + bytes) {
    bytes += after->second;
    arena.free_by_size.erase({after->second, after->first});
    after = arena.free_by_offset.erase(after);
  }
  if (after != arena.free_by_offset.begin()) {
    auto before = std::prev(after);
    VERBENA_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      arena.free_by_size.erase({before->second, before->first});
      arena.free_by_offset.erase(before);
    }
  }
  arena.free_by_offset.emplace(offset, bytes);
  arena.free_by_size.emplace(bytes, offset);
}

int ArenaSet::BackAndZero(Arena& arena, uint64_t offset, uint64_t bytes) {
  uint64_t first = offset / kPageBytes;
  uint64_t end = (offset + bytes + kPageBytes - 1) / kPageBytes;
  for (uint64_t page = first; page < end;) {
    uint64_t run = page;
    while (run < end && !arena.backed[run]) ++run;
    if (run == page) {
      // Backed before: may hold an older queue's bytes, and its neighbours' beyond our range.
      uint64_t from = std::max(page * kPageBytes, offset);
      uint64_t to = std::min((page + 1) * kPageBytes, offset + bytes);
      std::memset(arena.memory.data() + from, 0, to - from);
      ++page;
      continue;
    }
    int error = arena.memory.Back(page * kPageBytes, (run - page) * kPageBytes);
    if (error != 0) return error;
    std::fill(arena.backed.begin() + static_cast<int64_t>(page),
              arena.backed.begin() + static_cast<int64_t>(run), true);
    CountBacked(arena, page, run);
    page = run;
  }
  return 0;
}

void ArenaSet::CountBacked(Arena& arena, uint64_t first_page, uint64_t end_page) {
  for (uint64_t page = first_page; page < end_page; ++page) {
    const uint64_t index = page / kPartPages;
    if (index >= arena.parts.size()) return;  // what is left at the end is less than one
    Part& part = arena.parts[index];
    if (++part.backed_pages != kPartPages || part.was_full) continue;
    part.was_full = true;
    part_filled_(arena.memory.data() + index * kHugePageBytes);
  }
}

void ArenaSet::UnbackWholePages(Arena& arena, uint64_t offset, uint64_t bytes) {
  uint64_t first = (offset + kPageBytes - 1) / kPageBytes;
  uint64_t end = (offset + bytes) / kPageBytes;
  if (first >= end) return;
  arena.memory.Unback(first * kPageBytes, (end - first) * kPageBytes);
  std::fill(arena.backed.begin() + static_cast<int64_t>(first),
            arena.backed.begin() + static_cast<int64_t>(end), false);
  for (uint64_t page = first; page < end; ++page) {
    if (page / kPartPages < arena.parts.size()) --arena.parts[page / kPartPages].backed_pages;
  }
}

}  // namespace verbena::softnic

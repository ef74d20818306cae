#include "transport/port/sim/sim_host.h"

#include <algorithm>
#include <cstring>

namespace verbena::transport::sim {
namespace {

constexpr uint64_t kFirstAddr = 0x1000'0000;
constexpr uint64_t kRegionSpacing = 0x1000'0000;

}  // namespace

// --- memory --------------------------------------------------------------------------------------

MemoryId SimMemory::Register(uint32_t length, uint32_t access) {
  auto id = static_cast<MemoryId>(regions_.size());
  Region& region = regions_.emplace_back();
  region.addr = kFirstAddr + id * kRegionSpacing;
  region.access = access;
  region.key = (id + 1) << 8 | 0x5a;
  region.bytes.resize(length);
  return id;
}

SimMemory::Region* SimMemory::FindByKey(uint32_t key) {
  uint32_t index = (key >> 8) - 1;
  if (index >= regions_.size() || regions_[index].key != key) return nullptr;
  return regions_[index].is_valid ? &regions_[index] : nullptr;
}

shm::Sge SimMemory::SgeOf(MemoryId id, uint32_t offset, uint32_t length) const {
  return {regions_[id].addr + offset, length, regions_[id].key};
}

std::byte* SimMemory::At(const DmaSegment& segment, uint64_t skip, uint64_t length) {
  Region& region = regions_.at(segment.memory);
  uint64_t offset = segment.addr + skip - region.addr;
  if (region.is_gone || offset + length > region.bytes.size()) return nullptr;
  return region.bytes.data() + offset;
}

bool SimMemory::Read(const DmaSegment* segments, uint16_t count, uint64_t offset, uint32_t length,
                     std::vector<std::byte>* out) {
  for (uint16_t i = 0; i < count && length != 0; ++i) {
    if (offset >= segments[i].length) {
      offset -= segments[i].length;
      continue;
    }
    auto n = static_cast<uint32_t>(std::min<uint64_t>(segments[i].length - offset, length));
    const std::byte* from = At(segments[i], offset, n);
    if (from == nullptr) return false;
    out->insert(out->end(), from, from + n);
    length -= n;
    offset = 0;
  }
  return length == 0;
}

bool SimMemory::Write(const DmaSegment* segments, uint16_t count, uint64_t offset,
                      const std::byte* bytes, uint32_t length) {
  for (uint16_t i = 0; i < count && length != 0; ++i) {
    if (offset >= segments[i].length) {
      offset -= segments[i].length;
      continue;
    }
    auto n = static_cast<uint32_t>(std::min<uint64_t>(segments[i].length - offset, length));
    std::byte* to = At(segments[i], offset, n);
    if (to == nullptr) return false;
    std::memcpy(to, bytes, n);
    bytes += n;
    length -= n;
    offset = 0;
  }
  return length == 0;
}

bool SimMemory::Execute(const DmaRequest& request, const DmaSegment& target, uint64_t* original) {
  std::byte* word = At(target, 0, sizeof(*original));
  if (word == nullptr) return false;
  std::memcpy(original, word, sizeof(*original));
  uint64_t next = *original + request.swap_or_add;
  if (request.kind == DmaRequest::Kind::kCompareSwap) {
    next = *original == request.compare ? request.swap_or_add : *original;
  }
  std::memcpy(word, &next, sizeof(next));
  return true;
}

// --- host ----------------------------------------------------------------------------------------

FetchResult SimHost::FetchSend(SendWork& out) {
  if (sq_lies) return FetchResult::kInvalid;
  if (sends.empty()) return FetchResult::kEmpty;
  out = sends.front();
  sends.pop_front();
  ++sends_fetched;
  return FetchResult::kOk;
}

FetchResult SimHost::FetchRecv(RecvWork& out) {
  if (rq_lies) return FetchResult::kInvalid;
  if (recvs.empty()) return FetchResult::kEmpty;
  out = recvs.front();
  recvs.pop_front();
  ++recvs_fetched;
  return FetchResult::kOk;
}

KeyFault SimHost::ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                               DmaSegment* out, uint16_t* out_count) {
  uint16_t count = 0;
  for (uint32_t i = 0; i < num_sge; ++i) {
    if (sge[i].length == 0) continue;
    SimMemory::Region* region = memory_->FindByKey(sge[i].lkey);
    if (region == nullptr) return KeyFault::kBadLKey;
    uint64_t end = region->addr + region->bytes.size();
    if (sge[i].addr < region->addr || sge[i].addr > end || sge[i].length > end - sge[i].addr) {
      return KeyFault::kLKeyBounds;
    }
    if ((region->access & access_needed) != access_needed) return KeyFault::kLKeyAccess;
    out[count++] = {(sge[i].lkey >> 8) - 1, sge[i].length, sge[i].addr};
  }
  *out_count = count;
  return KeyFault::kNone;
}

KeyFault SimHost::ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                DmaSegment* out) {
  SimMemory::Region* region = memory_->FindByKey(rkey.value);
  if (region == nullptr) return KeyFault::kBadRKey;
  uint64_t end = region->addr + region->bytes.size();
  if (addr < region->addr || addr > end || length > end - addr) return KeyFault::kRKeyBounds;
  if ((region->access & access_needed) != access_needed) return KeyFault::kRKeyAccess;
  *out = {(rkey.value >> 8) - 1, static_cast<uint32_t>(length), addr};
  return KeyFault::kNone;
}

KeyFault SimHost::CheckRemoteKey(RKey rkey, uint32_t access_needed) {
  const SimMemory::Region* region = memory_->FindByKey(rkey.value);
  if (region == nullptr) return KeyFault::kBadRKey;
  const bool is_granted = (region->access & access_needed) == access_needed;
  return is_granted ? KeyFault::kNone : KeyFault::kRKeyAccess;
}

KeyFault SimHost::Invalidate(RKey rkey) {
  SimMemory::Region* region = memory_->FindByKey(rkey.value);
  if (region == nullptr) return KeyFault::kBadRKey;
  region->is_valid = false;
  return KeyFault::kNone;
}

bool SimHost::ResolveGid(GidIndex index, Gid* out) {
  if (index.value > 1) return false;
  *out = Gid::FromIpv4(0x7f00'0001u + index.value);
  return true;
}

}  // namespace verbena::transport::sim

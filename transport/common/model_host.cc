#include "transport/common/model_host.h"

#include <algorithm>
#include <cstring>

namespace verbena::transport {

uint32_t ModelMemory::Register(uint64_t addr, uint32_t length, uint32_t access, uint8_t fill) {
  uint32_t id = next_id_++;
  Region& region = regions_[id];
  region.addr = addr;
  region.access = access;
  region.bytes.assign(length, std::byte{fill});
  return id;
}

ModelMemory::Region* ModelMemory::Find(uint32_t id) {
  auto it = regions_.find(id);
  return it == regions_.end() ? nullptr : &it->second;
}

bool ModelMemory::Read(const Payload& source, std::vector<std::byte>* out) {
  if (source.bytes != nullptr) {
    out->insert(out->end(), source.bytes, source.bytes + source.length);
    return true;
  }
  std::vector<std::byte> all;
  for (uint16_t i = 0; i < source.segment_count; ++i) {
    const DmaSegment& segment = source.segments[i];
    Region& region = regions_.at(segment.memory);
    if (region.is_gone) return false;
    const std::byte* from = region.bytes.data() + (segment.addr - region.addr);
    all.insert(all.end(), from, from + segment.length);
  }
  if (source.offset + source.length > all.size()) return false;
  auto from = all.begin() + static_cast<ptrdiff_t>(source.offset);
  out->insert(out->end(), from, from + source.length);
  return true;
}

DmaStatus ModelMemory::CarryOut(const DmaRequest& request) {
  std::vector<std::byte> data(request.prefix, request.prefix + request.prefix_bytes);
  if (!Read(request.source, &data)) return DmaStatus::kSourceFault;
  uint64_t skip = request.destination_offset;
  size_t done = 0;
  for (uint16_t i = 0; i < request.destination_count && done < data.size(); ++i) {
    const DmaSegment& segment = request.destination[i];
    if (skip >= segment.length) {
      skip -= segment.length;
      continue;
    }
    Region& region = regions_.at(segment.memory);
    if (region.is_gone) return DmaStatus::kDestinationFault;
    size_t length = std::min<size_t>(segment.length - skip, data.size() - done);
    std::memcpy(region.bytes.data() + (segment.addr - region.addr) + skip, data.data() + done,
                length);
    done += length;
    skip = 0;
  }
  return done == data.size() ? DmaStatus::kOk : DmaStatus::kDestinationFault;
}

FetchResult ModelHost::FetchSend(SendWork& out) {
  if (send_ring_lies) return FetchResult::kInvalid;
  if (sends.empty()) return FetchResult::kEmpty;
  out = sends.front();
  sends.pop_front();
  return FetchResult::kOk;
}

FetchResult ModelHost::FetchRecv(RecvWork& out) {
  if (recv_ring_lies) return FetchResult::kInvalid;
  if (recvs.empty()) return FetchResult::kEmpty;
  out = recvs.front();
  recvs.pop_front();
  return FetchResult::kOk;
}

KeyFault ModelHost::Check(uint32_t key, uint64_t addr, uint64_t length, uint32_t access_needed,
                          DmaSegment* out) const {
  const ModelMemory::Region* region = memory_->Find(key);
  if (region == nullptr) return KeyFault::kBadLKey;
  if ((region->access & access_needed) != access_needed) return KeyFault::kLKeyAccess;
  uint64_t end = region->addr + region->bytes.size();
  if (addr < region->addr || addr > end || length > end - addr) return KeyFault::kLKeyBounds;
  *out = {key, static_cast<uint32_t>(length), addr};
  return KeyFault::kNone;
}

KeyFault ModelHost::ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                                 DmaSegment* out, uint16_t* out_count) {
  *out_count = 0;
  for (uint32_t i = 0; i < num_sge; ++i) {
    if (sge[i].length == 0) continue;
    KeyFault fault =
        Check(sge[i].lkey, sge[i].addr, sge[i].length, access_needed, &out[*out_count]);
    if (fault != KeyFault::kNone) return fault;
    ++*out_count;
  }
  return KeyFault::kNone;
}

KeyFault ModelHost::ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                  DmaSegment* out) {
  switch (Check(rkey.value, addr, length, access_needed, out)) {
    case KeyFault::kNone:
      return KeyFault::kNone;
    case KeyFault::kLKeyAccess:
      return KeyFault::kRKeyAccess;
    case KeyFault::kLKeyBounds:
      return KeyFault::kRKeyBounds;
    default:
      return KeyFault::kBadRKey;
  }
}

bool ModelHost::ResolveAh(uint32_t ah, Path* out) {
  auto it = address_handles.find(ah);
  if (it == address_handles.end()) return false;
  *out = it->second;
  return true;
}

bool ModelHost::ResolveGid(GidIndex index, Gid* out) {
  if (index.value >= gids.size()) return false;
  *out = gids[index.value];
  return true;
}

}  // namespace verbena::transport

#include <cerrno>

#include "softnic/device/test_world.h"
#include "transport/wire/crc32.h"

namespace verbena::softnic::testing {

int FakeDma::AddRegion(SessionId session, const RegionSpec& spec, transport::MemoryId* out) {
  if (add_error != 0) return add_error;
  if (may_add && !may_add(session, spec)) return EFAULT;
  // An id comes back at once: nobody may rely on more.
  *out = 1;
  while (regions.contains(*out)) ++*out;
  regions[*out] = {session, spec.addr, spec.length};
  return 0;
}

int FakeDma::CopyRegion(transport::MemoryId region, transport::MemoryId* out) {
  const Region copied = regions.at(region);
  return AddRegion(copied.session, {copied.addr, copied.length, 0, nullptr, 0}, out);
}

FakeDma::Job FakeDma::JobOf(const transport::DmaRequest& request) {
  Job job;
  job.request = request;
  const transport::Payload& source = request.source;
  if (source.segments != nullptr) {
    job.source.assign(source.segments, source.segments + source.segment_count);
  } else if (source.bytes != nullptr) {
    source.AppendTo(&job.bytes);
  }
  job.destination.assign(request.destination, request.destination + request.destination_count);
  job.local_pieces.assign(request.local_pieces, request.local_pieces + request.local_piece_count);
  return job;
}

void FakeDma::Submit(uint64_t stream, uint64_t cookie, const transport::DmaRequest& request) {
  jobs_.push_back(JobOf(request));
  jobs_.back().cookie = cookie;
  streams.push_back(stream);
  if (on_submit) on_submit();
}

bool FakeDma::MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
                      uint32_t destination_count) {
  if (!moves_now || is_held || !jobs_.empty()) return false;
  if (on_move_now) on_move_now();
  transport::DmaRequest request;
  request.source = source;
  request.destination = destination;
  request.destination_count = static_cast<uint16_t>(destination_count);
  const Job job = JobOf(request);
  std::vector<std::byte> bytes;
  const bool is_moved = Gather(job, &bytes) && Scatter(job, bytes);
  moved_now += is_moved;
  return is_moved;
}

bool FakeDma::ReadNow(const transport::Payload& source, std::byte* to) {
  if (!moves_now || is_held || !jobs_.empty()) return false;
  transport::DmaRequest request;
  request.source = source;
  std::vector<std::byte> bytes;
  if (!Gather(JobOf(request), &bytes)) return false;
  std::copy(bytes.begin(), bytes.end(), to);
  ++moved_now;
  return true;
}

void FakeDma::Fence(SessionId session, uint64_t cookie) {
  Job job;
  job.is_fence = true;
  job.fence_session = session;
  job.cookie = cookie;
  jobs_.push_back(std::move(job));
}

bool FakeDma::Touches(const Job& job, SessionId session) const {
  auto is_its = [&](const transport::DmaSegment& segment) {
    auto it = regions.find(segment.memory);
    return it != regions.end() && it->second.session == session;
  };
  return std::any_of(job.source.begin(), job.source.end(), is_its) ||
         std::any_of(job.destination.begin(), job.destination.end(), is_its);
}

bool FakeDma::Step(DeviceCore& device, Instant now) {
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    if (it->is_fence) {
      bool is_clear = std::none_of(jobs_.begin(), it, [&](const Job& job) {
        return !job.is_fence && Touches(job, it->fence_session);
      });
      if (!is_clear) continue;
    } else if (is_held || (held_session != 0 && Touches(*it, held_session))) {
      continue;
    }
    Job job = std::move(*it);
    jobs_.erase(it);
    if (job.is_fence) {
      device.OnDmaFence(now, job.cookie);
    } else {
      CarryOut(job, device, now);
    }
    return true;
  }
  return false;
}

bool FakeDma::IsReachable(transport::MemoryId memory, uint64_t addr, uint64_t length) const {
  auto it = regions.find(memory);
  if (it == regions.end()) return false;
  if (bad_addr >= addr && bad_addr < addr + length) return false;
  return addr >= it->second.addr && addr + length <= it->second.addr + it->second.length;
}

bool FakeDma::Gather(const Job& job, std::vector<std::byte>* out) const {
  const transport::DmaRequest& request = job.request;
  out->assign(request.prefix, request.prefix + request.prefix_bytes);
  if (!job.bytes.empty()) {
    out->insert(out->end(), job.bytes.begin(), job.bytes.end());
    return true;
  }
  uint64_t skip = request.source.offset;
  uint64_t left = request.source.length;
  for (const transport::DmaSegment& segment : job.source) {
    uint64_t from = std::min<uint64_t>(skip, segment.length);
    skip -= from;
    uint64_t take = std::min<uint64_t>(left, segment.length - from);
    if (take == 0) continue;
    if (segment.memory == kNullMemory) {
      out->insert(out->end(), take, std::byte{0});
      left -= take;
      continue;
    }
    if (!IsReachable(segment.memory, segment.addr + from, take)) return false;
    const auto* start = reinterpret_cast<const std::byte*>(segment.addr + from);
    out->insert(out->end(), start, start + take);
    left -= take;
  }
  return left == 0;
}

bool FakeDma::Scatter(const Job& job, const std::vector<std::byte>& bytes) const {
  uint64_t skip = job.request.destination_offset;
  size_t done = 0;
  for (const transport::DmaSegment& segment : job.destination) {
    uint64_t from = std::min<uint64_t>(skip, segment.length);
    skip -= from;
    uint64_t take = std::min<uint64_t>(bytes.size() - done, segment.length - from);
    if (take == 0) continue;
    if (segment.memory == kNullMemory) {
      done += take;
      continue;
    }
    if (!IsReachable(segment.memory, segment.addr + from, take)) return false;
    std::memcpy(reinterpret_cast<void*>(segment.addr + from), bytes.data() + done, take);
    done += take;
  }
  return done == bytes.size();
}

void FakeDma::CarryOut(const Job& job, DeviceCore& device, Instant now) {
  using transport::DmaStatus;
  using Kind = transport::DmaRequest::Kind;
  if (revoked != 0) {
    --revoked;
    device.OnDmaDone(now, job.cookie, DmaStatus::kSourceFault, 0, DmaFault::kRevoked);
    return;
  }
  if (job.request.kind == Kind::kCopy) {
    std::vector<std::byte> bytes;
    DmaStatus status = DmaStatus::kOk;
    if (!Gather(job, &bytes)) {
      status = DmaStatus::kSourceFault;
    } else if (!job.local_pieces.empty()) {
      const std::byte* from = bytes.data();
      for (const transport::LocalPiece& piece : job.local_pieces) {
        std::copy_n(from, piece.bytes, piece.to);
        from += piece.bytes;
        if (piece.crc == nullptr) continue;
        *piece.crc = {transport::wire::UpdateCrc32(0, piece.to, piece.bytes), true};
      }
    } else if (!Scatter(job, bytes)) {
      status = DmaStatus::kDestinationFault;
    }
    device.OnDmaDone(now, job.cookie, status, 0, fault);
    return;
  }
  const transport::DmaSegment& word = job.destination.at(0);
  uint64_t addr = word.addr + job.request.destination_offset;
  if (!IsReachable(word.memory, addr, 8)) {
    device.OnDmaDone(now, job.cookie, DmaStatus::kDestinationFault, 0, fault);
    return;
  }
  uint64_t original;
  std::memcpy(&original, reinterpret_cast<void*>(addr), 8);
  uint64_t updated = original;
  if (job.request.kind == Kind::kFetchAdd) {
    updated += job.request.swap_or_add;
  } else if (original == job.request.compare) {
    updated = job.request.swap_or_add;
  }
  std::memcpy(reinterpret_cast<void*>(addr), &updated, 8);
  device.OnDmaDone(now, job.cookie, DmaStatus::kOk, original);
}

}  // namespace verbena::softnic::testing

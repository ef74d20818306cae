#include "tests/simulation/dma.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/base/check.h"

namespace verbena::simulation {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;

int SimDma::AddRegion(softnic::SessionId session, const softnic::RegionSpec& spec,
                      transport::MemoryId* out) {
  uint32_t index = 0;
  while (index < regions_.size() && regions_[index].is_live) ++index;
  if (index == regions_.size()) regions_.emplace_back();
  regions_[index] = {spec.addr, spec.length, true};
  ++live_regions_;
  *out = index + 1;
  return 0;
}

void SimDma::RemoveRegion(transport::MemoryId region) {
  VERBENA_CHECK(region != 0 && region <= regions_.size() && regions_[region - 1].is_live);
  regions_[region - 1].is_live = false;
  --live_regions_;
}

uint32_t SimDma::AllocateJob() {
  if (free_jobs_.empty()) {
    jobs_.push_back(std::make_unique<Job>());
    return static_cast<uint32_t>(jobs_.size() - 1);
  }
  uint32_t job = free_jobs_.back();
  free_jobs_.pop_back();
  return job;
}

void SimDma::Schedule(Instant due, uint32_t job) {
  heap_.push_back({due, sequence_++, job});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  last_due_ = std::max(last_due_, due);
}

void SimDma::Submit(uint64_t stream, uint64_t cookie, const DmaRequest& request) {
  const uint32_t index = AllocateJob();
  Job& job = *jobs_[index];
  job.cookie = cookie;
  job.is_fence = false;
  if (options_.delay_max.ns == 0) {
    job.is_done = true;
    CarryOut(request, &job.status, &job.original);
    Schedule(now_, index);
    return;
  }
  job.is_done = false;
  job.request = request;
  const transport::Payload& source = request.source;
  job.source_count = source.segments != nullptr ? source.segment_count : 0;
  VERBENA_CHECK(job.source_count <= kSegmentsMax && request.destination_count <= kSegmentsMax);
  if (source.segments != nullptr) {
    std::copy_n(source.segments, source.segment_count, job.source);
    job.request.source.segments = job.source;
  } else if (source.bytes != nullptr) {
    job.bytes.clear();
    source.AppendTo(&job.bytes);
    job.request.source.bytes = job.bytes.data();
    job.request.source.piece_bytes = 0;
  }
  if (request.destination_count != 0) {
    std::copy_n(request.destination, request.destination_count, job.destination);
  }
  job.request.destination = job.destination;
  job.local_pieces.assign(request.local_pieces, request.local_pieces + request.local_piece_count);
  job.request.local_pieces = job.local_pieces.data();
  Instant due = now_ + Nanoseconds(random_.Below(static_cast<uint32_t>(options_.delay_max.ns)));
  auto end = std::find_if(stream_ends_.begin(), stream_ends_.end(),
                          [stream](const StreamEnd& e) { return e.stream == stream; });
  if (end == stream_ends_.end()) {
    stream_ends_.push_back({stream, due});
  } else {
    due = end->due = std::max(end->due, due);
  }
  Schedule(due, index);
}

// Between two places, each in one piece: what else there may be goes the long way.
bool SimDma::MoveNow(const transport::Payload& source, const DmaSegment* destination,
                     uint32_t destination_count) {
  if (!MayMoveNow() || destination_count != 1 || !IsReachable(destination[0], 0, source.length)) {
    return false;
  }
  auto* to = reinterpret_cast<std::byte*>(destination[0].addr);
  if (source.bytes == nullptr) return ReadNow(source, to);
  std::memcpy(to, source.bytes, source.length);
  return true;
}

bool SimDma::ReadNow(const transport::Payload& source, std::byte* to) {
  if (!MayMoveNow() || source.segment_count != 1 ||
      !IsReachable(source.segments[0], 0, source.length)) {
    return false;
  }
  std::memcpy(to, reinterpret_cast<const std::byte*>(source.segments[0].addr), source.length);
  return true;
}

void SimDma::Fence(softnic::SessionId session, uint64_t cookie) {
  const uint32_t index = AllocateJob();
  Job& job = *jobs_[index];
  job.cookie = cookie;
  job.is_fence = true;
  // Behind all there is: more than asked for.
  Schedule(std::max(now_, last_due_), index);
}

const SimDma::Job* SimDma::TakeDue(Instant now, bool everything) {
  now_ = now;
  if (heap_.empty() || (!everything && heap_.front().due > now)) return nullptr;
  const uint32_t index = heap_.front().job;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  heap_.pop_back();
  Job& job = *jobs_[index];
  if (!job.is_fence && !job.is_done) CarryOut(job.request, &job.status, &job.original);
  free_jobs_.push_back(index);
  return &job;
}

bool SimDma::IsReachable(const DmaSegment& segment, uint64_t from, uint64_t bytes) const {
  if (segment.memory == 0 || segment.memory > regions_.size()) return false;
  const Region& region = regions_[segment.memory - 1];
  const uint64_t addr = segment.addr + from;
  return region.is_live && addr >= region.addr && addr + bytes <= region.addr + region.length;
}

void SimDma::CarryOut(const DmaRequest& request, DmaStatus* status, uint64_t* original) {
  *original = 0;
  if (request.kind == DmaRequest::Kind::kCopy) {
    *status = Copy(request);
    return;
  }
  const DmaSegment& word = request.destination[0];
  *status = DmaStatus::kDestinationFault;
  if (!IsReachable(word, request.destination_offset, 8)) return;
  *status = DmaStatus::kOk;
  auto* at = reinterpret_cast<std::byte*>(word.addr + request.destination_offset);
  std::memcpy(original, at, 8);
  uint64_t updated = *original;
  if (request.kind == DmaRequest::Kind::kFetchAdd) {
    updated += request.swap_or_add;
  } else if (*original == request.compare) {
    updated = request.swap_or_add;
  }
  std::memcpy(at, &updated, 8);
}

// One contiguous source goes straight to where it belongs; anything else by way of a buffer.
DmaStatus SimDma::Copy(const DmaRequest& request) {
  const std::byte* from = request.source.bytes;
  const uint32_t length = request.source.length;
  bounce_.assign(request.prefix, request.prefix + request.prefix_bytes);
  if (request.source.segments != nullptr || request.prefix_bytes != 0 ||
      request.source.piece_bytes != 0) {
    uint64_t skip = request.source.offset;
    uint64_t left = length;
    if (request.source.segments == nullptr) {
      request.source.AppendTo(&bounce_);
      left = 0;
    }
    bounce_.resize(request.prefix_bytes + length);
    std::byte* to = bounce_.data() + request.prefix_bytes;
    for (uint32_t i = 0; left != 0 && i < request.source.segment_count; ++i) {
      const DmaSegment& segment = request.source.segments[i];
      const uint64_t start = std::min<uint64_t>(skip, segment.length);
      skip -= start;
      const uint64_t take = std::min<uint64_t>(left, segment.length - start);
      if (take == 0) continue;
      if (segment.memory == softnic::kNullMemory) {
        std::memset(to, 0, take);
        to += take;
        left -= take;
        continue;
      }
      if (!IsReachable(segment, start, take)) return DmaStatus::kSourceFault;
      std::memcpy(to, reinterpret_cast<const std::byte*>(segment.addr + start), take);
      to += take;
      left -= take;
    }
    if (left != 0) return DmaStatus::kSourceFault;
    from = bounce_.data();
  }
  uint64_t left = uint64_t{request.prefix_bytes} + length;
  if (request.local_piece_count != 0) {
    for (uint32_t i = 0; i < request.local_piece_count; ++i) {
      std::memcpy(request.local_pieces[i].to, from, request.local_pieces[i].bytes);
      from += request.local_pieces[i].bytes;
    }
    return DmaStatus::kOk;
  }
  uint64_t skip = request.destination_offset;
  for (uint32_t i = 0; left != 0 && i < request.destination_count; ++i) {
    const DmaSegment& segment = request.destination[i];
    const uint64_t start = std::min<uint64_t>(skip, segment.length);
    skip -= start;
    const uint64_t take = std::min<uint64_t>(left, segment.length - start);
    if (take == 0) continue;
    if (segment.memory == softnic::kNullMemory) {
      from += take;
      left -= take;
      continue;
    }
    if (!IsReachable(segment, start, take)) {
      // A region of its client's that is gone is a fault to report; beyond a living one is a bug.
      if (segment.memory != 0 && segment.memory <= regions_.size() &&
          regions_[segment.memory - 1].is_live) {
        violation_ = "the NIC writes outside the region it names";
      }
      return DmaStatus::kDestinationFault;
    }
    std::memcpy(reinterpret_cast<std::byte*>(segment.addr + start), from, take);
    from += take;
    left -= take;
  }
  return left == 0 ? DmaStatus::kOk : DmaStatus::kDestinationFault;
}

}  // namespace verbena::simulation

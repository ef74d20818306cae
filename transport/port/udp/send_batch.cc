#include "transport/port/udp/send_batch.h"

#include <algorithm>
#include <cstring>

#include "transport/port/udp/udp_options.h"
#include "transport/wire/icrc.h"

namespace verbena::transport {
namespace {

// Batches open at a time: destinations that a turn of the NIC may interleave without paying a
// system call for each packet.
constexpr size_t kOpenMax = 8;

void FlipBit(std::byte* bytes, uint32_t length, int32_t bit) {
  if (bit < 0 || static_cast<uint32_t>(bit) >= length * 8) return;
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

// Appends the ICRC, which makes it `length` bytes.
void Finish(const wire::PacketAddress& address, uint16_t ip_id, std::byte* bytes, uint32_t length,
            int32_t corrupt_bit, const wire::KnownPayload& payload = {}) {
  const uint32_t covered = length - wire::kIcrcBytes;
  wire::StoreIcrc(wire::ComputeIcrc(address, ip_id, bytes, covered, payload), bytes + covered);
  FlipBit(bytes, length, corrupt_bit);
}

template <typename T>
void Put(char* to, int level, int type, T value) {
  auto* at = reinterpret_cast<cmsghdr*>(to);
  at->cmsg_level = level;
  at->cmsg_type = type;
  at->cmsg_len = CMSG_LEN(sizeof value);
  memcpy(CMSG_DATA(at), &value, sizeof value);
}

}  // namespace

void SendBatch::AddPart(std::byte* bytes, uint32_t length) {
  if (part_count != 0) {
    iovec& last = parts[part_count - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == bytes) {
      last.iov_len += length;
      return;
    }
  }
  parts[part_count++] = {bytes, length};
}

uint32_t SendBatch::SegmentLength(uint32_t index) const {
  return index + 1 < segment_count ? segment_bytes : used_bytes - index * segment_bytes;
}

void SendBatch::PrepareWhole(uint8_t hop_limit) {
  Prepare(hop_limit, parts.data(), part_count, segment_count > 1 ? segment_bytes : 0);
}

void SendBatch::PrepareSegment(uint32_t index, uint8_t hop_limit) {
  one = {segments[index].bytes, SegmentLength(index)};
  Prepare(hop_limit, &one, 1, 0);
}

void SendBatch::Prepare(uint8_t hop_limit, iovec* from, uint32_t count, uint32_t gso_bytes) {
  message = {};
  message.msg_name = name.get();
  message.msg_namelen = name.length;
  message.msg_iov = from;
  message.msg_iovlen = count;
  size_t used = 0;
  auto append = [&](int level, int type, auto value) {
    Put(control.data() + used, level, type, value);
    used += CMSG_SPACE(sizeof value);
  };
  if (gso_bytes != 0) append(SOL_UDP, UDP_SEGMENT, static_cast<uint16_t>(gso_bytes));
  const bool v4 = address.IsIpv4();
  // 0 stands for what the kernel does unasked.
  if (address.traffic_class != 0) {
    append(v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, int{address.traffic_class});
  }
  if (hop_limit != 0) {
    append(v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TTL : IPV6_HOPLIMIT, int{hop_limit});
  }
  message.msg_controllen = used;
  if (used != 0) message.msg_control = control.data();
}

void SendBatch::BecomeOneByOne() {
  one_by_one = true;
  if (!address.IsIpv4()) return;
  for (uint32_t i = 1; i < segment_count; ++i) {
    const Segment& segment = segments[i];
    const uint32_t length = SegmentLength(i);
    // Heal the bit first, or the new ICRC would vouch for it.
    FlipBit(segment.bytes, length, segment.corrupt_bit);
    Finish(address, 0, segment.bytes, length, segment.corrupt_bit);
  }
}

void SendBatch::GiveBack() {
  for (uint32_t i = 0; i < segment_count; ++i) {
    if (segments[i].lender != nullptr) segments[i].lender->TakeBack(segments[i].block);
  }
  segment_count = part_count = 0;
}

SendCollector::SendCollector(uint32_t batches) {
  for (uint32_t i = 0; i < batches; ++i) {
    auto batch = std::make_unique<SendBatch>();
    // Not initialised: pages that no packet fills are never touched.
    batch->own = std::unique_ptr<std::byte[]>(new std::byte[kBatchBytesMax]);
    batch->index = i;
    free_.push_back(batch.get());
    all_.push_back(std::move(batch));
  }
}

SendCollector::~SendCollector() {
  for (const auto& batch : all_) batch->GiveBack();
}

bool SendCollector::Add(uint16_t endpoint, const Endpoint& from, const wire::PacketAddress& address,
                        const OutPacket& packet, bool one_by_one) {
  const uint32_t length = packet.length + wire::kIcrcBytes;
  SendBatch* batch = BatchFor(endpoint, from, address, length, one_by_one);
  if (batch == nullptr) return false;
  SendBatch::Segment& segment = batch->segments[batch->segment_count];
  segment = {const_cast<std::byte*>(packet.bytes), packet.corrupt_bit, packet.lender, packet.block};
  if (packet.lender == nullptr) {
    segment.bytes = batch->own.get() + batch->own_bytes;
    batch->own_bytes += length;
    memcpy(segment.bytes, packet.bytes, packet.length);
  }
  const auto ip_id = static_cast<uint16_t>(batch->one_by_one ? 0 : batch->segment_count);
  Finish(address, ip_id, segment.bytes, length, packet.corrupt_bit, packet.payload);
  batch->AddPart(segment.bytes, length);
  ++batch->segment_count;
  batch->used_bytes += length;
  batch->last_is_shorter = length < batch->segment_bytes;
  const bool full = batch->last_is_shorter || batch->segment_count == kBatchSegmentsMax ||
                    batch->used_bytes + batch->segment_bytes > kBatchBytesMax;
  if (full) Close(std::find(open_.begin(), open_.end(), batch) - open_.begin());
  return true;
}

SendBatch* SendCollector::BatchFor(uint16_t endpoint, const Endpoint& from,
                                   const wire::PacketAddress& address, uint32_t length,
                                   bool one_by_one) {
  for (size_t i = open_.size(); i-- > 0;) {
    SendBatch* batch = open_[i];
    if (batch->endpoint != endpoint ||
        batch->address.destination_port != address.destination_port ||
        batch->address.destination != address.destination) {
      continue;
    }
    const bool fits = batch->address.traffic_class == address.traffic_class &&
                      batch->address.hop_limit == address.hop_limit &&
                      batch->address.flow_label == address.flow_label &&
                      batch->one_by_one == one_by_one && length <= batch->segment_bytes &&
                      batch->used_bytes + length <= kBatchBytesMax;
    if (fits) return batch;
    if (free_.empty()) return nullptr;
    // What comes later to this destination must not overtake it.
    Close(i);
    break;
  }
  if (free_.empty()) return nullptr;
  if (open_.size() == kOpenMax) Close(0);
  SendBatch* batch = free_.back();
  free_.pop_back();
  batch->used_bytes = batch->own_bytes = batch->next_segment = batch->retries = 0;
  batch->segment_bytes = length;
  batch->last_is_shorter = false;
  batch->open = true;
  batch->one_by_one = one_by_one;
  batch->endpoint = endpoint;
  batch->sequence = next_sequence_++;
  batch->address = address;
  batch->name = MakeSocketAddress(address.destination, address.destination_port,
                                  from.address.interface_index, address.flow_label);
  open_.push_back(batch);
  return batch;
}

void SendCollector::Close(size_t open_index) {
  SendBatch* batch = open_[open_index];
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(open_index));
  batch->open = false;
  PutBack(batch);
}

void SendCollector::CloseAll() {
  while (!open_.empty()) Close(0);
}

SendBatch* SendCollector::TakeReady(const std::vector<bool>& blocked) {
  if (ready_.empty()) return nullptr;
  for (auto place = ready_.begin(); place != ready_.end(); ++place) {
    SendBatch* batch = *place;
    if (blocked[batch->endpoint]) continue;
    ready_.erase(place);
    return batch;
  }
  return nullptr;
}

bool SendCollector::HasReady(const std::vector<bool>& blocked) const {
  return std::any_of(ready_.begin(), ready_.end(),
                     [&](const SendBatch* batch) { return !blocked[batch->endpoint]; });
}

void SendCollector::PutBack(SendBatch* batch) {
  auto place = ready_.end();
  while (place != ready_.begin() && (*std::prev(place))->sequence > batch->sequence) --place;
  ready_.insert(place, batch);
}

void SendCollector::Release(SendBatch* batch) {
  batch->GiveBack();
  free_.push_back(batch);
}

}  // namespace verbena::transport

#include "transport/port/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "transport/wire/icrc.h"

namespace verbena::transport::sim {

const char* NameOf(SimPacketFate fate) {
  constexpr const char* kNames[] = {"send",    "deliver",  "lost",       "corrupted",
                                    "doubled", "cut off",  "queue full", "inbox full",
                                    "nobody",  "port down"};
  return kNames[static_cast<size_t>(fate)];
}

// --- port ----------------------------------------------------------------------------------------

bool SimNetworkPort::Send(Instant now, const OutPacket& packet) {
  return network_->TakeFrom(*this, now, packet) && packet.GiveBack();
}

void SimNetworkPort::Flush(Instant now) {
  if (sent_since_flush_ != 0) ++counters_.sent_batches;
  sent_since_flush_ = 0;
}

void SimNetworkPort::TakeBatch() {
  for (SimPacket* packet : received_) network_->Release(packet);
  received_.clear();
  received_next_ = 0;
  constexpr size_t kPacketsMax = 16;
  bool ends = false;
  while (!inbox_.empty() && !ends) {
    SimPacket* packet = inbox_.front();
    if (!received_.empty()) {
      const SimPacket& first = *received_.front();
      if (packet->sender != first.sender || packet->length > first.length ||
          packet->address.source != first.address.source ||
          packet->address.destination != first.address.destination) {
        break;
      }
    }
    received_.push_back(packet);
    inbox_.pop_front();
    ends = !network_->options_.batches || packet->length < received_.front()->length ||
           received_.size() == kPacketsMax;
  }
  if (received_.size() < 2) return;
  batch_.resize(received_.size() * received_.front()->length);
  for (size_t i = 0; i < received_.size(); ++i) {
    std::memcpy(batch_.data() + i * received_.front()->length, received_[i]->bytes,
                received_[i]->length);
  }
}

bool SimNetworkPort::Receive(Instant now, InPacket* out) {
  if (received_next_ == received_.size()) TakeBatch();
  if (received_.empty()) return false;
  const SimPacket& packet = *received_[received_next_];
  out->address = packet.address;
  out->bytes = received_.size() == 1 ? packet.bytes
                                     : batch_.data() + received_next_ * received_.front()->length;
  out->length = packet.length;
  out->expected_ip_id = packet.expected_ip_id;
  if (network_->options_.ip_id_mode == IpIdMode::kRunning &&
      packet.sender < learned_ip_id_.size()) {
    out->expected_ip_id = static_cast<uint16_t>(learned_ip_id_[packet.sender] + 1);
  }
  out->received_at = now;
  out->more_follow = ++received_next_ != received_.size();
  ++counters_.received_packets;
  counters_.received_bytes += packet.length;
  return true;
}

void SimNetworkPort::LearnIpId(const InPacket& packet, uint16_t ip_id) {
  if (received_next_ == 0) return;
  const uint32_t sender = received_[received_next_ - 1]->sender;
  if (learned_ip_id_.size() <= sender) learned_ip_id_.resize(sender + 1);
  learned_ip_id_[sender] = ip_id;
}

int SimNetworkPort::JoinGroup(const Gid& group) {
  groups_.push_back(group);
  return 0;
}

void SimNetworkPort::LeaveGroup(const Gid& group) { std::erase(groups_, group); }

uint32_t SimNetworkPort::receive_buffer_bytes() const {
  return network_->options_.receive_buffer_bytes;
}

bool SimNetworkPort::Listens(const Gid& gid) const {
  const std::vector<Gid>& names = gid.IsMulticast() ? groups_ : gids_;
  return std::find(names.begin(), names.end(), gid) != names.end();
}

// --- network -------------------------------------------------------------------------------------

void SimNetwork::Reset(uint64_t seed, const SimNetworkOptions& options) {
  for (const Arrival& arrival : arrivals_) Release(arrival.packet);
  arrivals_.clear();
  for (auto& port : ports_) {
    for (SimPacket* packet : port->inbox_) Release(packet);
    for (SimPacket* packet : port->received_) Release(packet);
  }
  ports_.clear();
  options_ = options;
  random_ = SimRandom(seed);
  sequence_ = digest_ = 0;
  counters_ = {};
}

SimNetworkPort* SimNetwork::AddPort(std::vector<Gid> gids) {
  uint32_t index = static_cast<uint32_t>(ports_.size());
  ports_.push_back(std::make_unique<SimNetworkPort>(this, index, std::move(gids)));
  ports_.back()->running_ip_id_ = static_cast<uint16_t>(random_.Next());
  return ports_.back().get();
}

bool SimNetwork::TakeFrom(SimNetworkPort& port, Instant now, const OutPacket& out) {
  if ((options_.room_packets != 0 && port.sent_since_flush_ >= options_.room_packets) ||
      random_.Chance(options_.no_room_per_mille)) {
    ++counters_.no_room;
    return false;
  }
  VERBENA_CHECK(out.length + wire::kIcrcBytes <= wire::kPacketBytesMax);
  SimPacket* packet = Allocate();
  packet->copies = 1;  // ours, until every copy is on its way
  packet->sender = port.index_;
  packet->address = out.address;
  packet->length = out.length + wire::kIcrcBytes;
  packet->ip_id = NextIpId(port, &packet->expected_ip_id);
  std::memcpy(packet->bytes, out.bytes, out.length);
  wire::StoreIcrc(wire::ComputeIcrc(out.address, packet->ip_id, packet->bytes, out.length),
                  packet->bytes + out.length);
  if (out.corrupt_bit >= 0) {
    packet->bytes[out.corrupt_bit / 8] ^= static_cast<std::byte>(1u << (out.corrupt_bit % 8));
  }
  ++port.sent_since_flush_;
  ++port.counters_.sent_packets;
  port.counters_.sent_bytes += packet->length;
  ++counters_.sent;
  Note(now, SimPacketFate::kSent, *packet, port.index_);
  // What the wire took on while it was slower leaves first.
  Instant left = std::max(port.wire_free_, now);
  if (options_.wire_ps_per_byte != 0) {
    if (options_.queue_max.ns != 0 && left - now > options_.queue_max) {
      ++counters_.queue_drops;
      Note(now, SimPacketFate::kQueueDrop, *packet, port.index_);
      Release(packet);
      return true;
    }
    left = left + Nanoseconds(int64_t{packet->length} * options_.wire_ps_per_byte / 1000);
    port.wire_free_ = left;
  }
  if (!port.is_up_) {
    ++counters_.down;
    Note(now, SimPacketFate::kPortDown, *packet, port.index_);
    Release(packet);
    return true;
  }
  bool is_heard = false;
  for (auto& other : ports_) {
    if (!other->Listens(packet->address.destination)) continue;
    // A sender hears its own multicast from its own instance only.
    if (other.get() == &port && packet->address.destination.IsMulticast()) continue;
    is_heard = true;
    Carry(now, left, packet, other->index_);
  }
  if (!is_heard) {
    ++counters_.nobody;
    Note(now, SimPacketFate::kNobody, *packet, port.index_);
  }
  Release(packet);
  return true;
}

uint16_t SimNetwork::NextIpId(SimNetworkPort& port, uint16_t* expected) {
  *expected = 0;
  switch (options_.ip_id_mode) {
    case IpIdMode::kZero:
      return 0;
    case IpIdMode::kBatchIndex:
      return *expected = static_cast<uint16_t>(port.sent_since_flush_);
    case IpIdMode::kRunning:
      port.running_ip_id_ = static_cast<uint16_t>(port.running_ip_id_ + 1 + random_.Chance(50));
      return port.running_ip_id_;
    case IpIdMode::kRandom:
      return static_cast<uint16_t>(random_.Next());
  }
  return 0;
}

// Flips a few bits. Some patterns no ICRC can tell from another identification (one in 65 536, over
// IPv4), and some bits it does not cover: those say nothing about the NIC, so others are taken.
void SimNetwork::Corrupt(SimPacket& packet) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    uint32_t flips = 1 + (random_.Chance(300) ? random_.Below(4) : 0);
    uint32_t bits[5];
    for (uint32_t i = 0; i < flips; ++i) {
      bits[i] = random_.Below(packet.length * 8);
      packet.bytes[bits[i] / 8] ^= static_cast<std::byte>(1u << (bits[i] % 8));
    }
    uint16_t ip_id;
    if (wire::VerifyIcrc(packet.address, packet.ip_id, packet.bytes, packet.length, &ip_id) ==
        wire::IcrcCheck::kWrong) {
      return;
    }
    if (attempt == 7) return;
    for (uint32_t i = 0; i < flips; ++i) {
      packet.bytes[bits[i] / 8] ^= static_cast<std::byte>(1u << (bits[i] % 8));
    }
  }
}

void SimNetwork::Carry(Instant now, Instant left, SimPacket* packet, uint32_t to) {
  if (IsCutOff(now, packet->sender, to)) {
    ++counters_.cut_off;
    Note(now, SimPacketFate::kCutOff, *packet, to);
    return;
  }
  if (random_.Chance(options_.loss_per_mille)) {
    ++counters_.lost;
    Note(now, SimPacketFate::kLost, *packet, to);
    return;
  }
  Instant at = left + options_.delay + Below(options_.jitter);
  if (random_.Chance(options_.reorder_per_mille)) {
    ++counters_.reordered;
    at = at + Below(options_.reorder_delay);
  }
  if (random_.Chance(options_.duplicate_per_mille)) {
    ++counters_.duplicated;
    Note(now, SimPacketFate::kDuplicated, *packet, to);
    Schedule(at + Below(options_.duplicate_delay), packet, to);
  }
  if (random_.Chance(options_.corrupt_per_mille)) {
    ++counters_.corrupted;
    SimPacket* wrong = Allocate();
    wrong->copies = 1;
    wrong->sender = packet->sender;
    wrong->address = packet->address;
    wrong->length = packet->length;
    wrong->ip_id = packet->ip_id;
    wrong->expected_ip_id = packet->expected_ip_id;
    std::memcpy(wrong->bytes, packet->bytes, packet->length);
    Corrupt(*wrong);
    Note(now, SimPacketFate::kCorrupted, *wrong, to);
    Schedule(at, wrong, to);
    Release(wrong);
    return;
  }
  Schedule(at, packet, to);
}

void SimNetwork::Schedule(Instant at, SimPacket* packet, uint32_t to) {
  const int64_t quantum_ns = options_.quantum.ns;
  ++packet->copies;
  arrivals_.push_back(
      {(at.ns + quantum_ns - 1) / quantum_ns * quantum_ns, sequence_++, packet, to});
  std::push_heap(arrivals_.begin(), arrivals_.end(), std::greater<>());
}

void SimNetwork::Advance(Instant now) {
  while (!arrivals_.empty() && arrivals_.front().at_ns <= now.ns) {
    Arrival arrival = arrivals_.front();
    std::pop_heap(arrivals_.begin(), arrivals_.end(), std::greater<>());
    arrivals_.pop_back();
    SimNetworkPort& port = *ports_[arrival.to];
    if (!port.is_up_) {
      ++counters_.down;
      Note(now, SimPacketFate::kPortDown, *arrival.packet, arrival.to);
      Release(arrival.packet);
    } else if (port.inbox_.size() >= options_.inbox_packets_max) {
      ++counters_.inbox_drops;
      ++port.counters_.receive_drops;
      Note(now, SimPacketFate::kInboxDrop, *arrival.packet, arrival.to);
      Release(arrival.packet);
    } else {
      Note(now, SimPacketFate::kDelivered, *arrival.packet, arrival.to);
      port.inbox_.push_back(arrival.packet);
    }
  }
}

bool SimNetwork::IsCutOff(Instant now, uint32_t a, uint32_t b) const {
  for (const PortPartition& cut : options_.partitions) {
    if (now < cut.begin || cut.end <= now) continue;
    if (cut.b == PortPartition::kAllPorts
            ? (a == cut.a || b == cut.a)
            : ((a == cut.a && b == cut.b) || (a == cut.b && b == cut.a))) {
      return true;
    }
  }
  return false;
}

// The ICRC stands for all bytes of the packet.
void SimNetwork::Note(Instant now, SimPacketFate fate, const SimPacket& packet, uint32_t to) {
  uint32_t icrc;
  std::memcpy(&icrc, packet.bytes + packet.length - sizeof(icrc), sizeof(icrc));
  digest_ = Fold(digest_, static_cast<uint64_t>(now.ns) << 8 | to);
  digest_ = Fold(digest_, uint64_t{icrc} << 32 | static_cast<uint64_t>(fate) << 24 | packet.length);
  if (observer_) observer_(now, fate, packet, to);
}

SimPacket* SimNetwork::Allocate() {
  if (free_ == nullptr) {
    chunks_.push_back(std::make_unique<std::array<SimPacket, kChunkPackets>>());
    for (SimPacket& packet : *chunks_.back()) {
      packet.next_free = free_;
      free_ = &packet;
    }
  }
  return std::exchange(free_, free_->next_free);
}

void SimNetwork::Release(SimPacket* packet) {
  if (--packet->copies != 0) return;
  packet->next_free = free_;
  free_ = packet;
}

}  // namespace verbena::transport::sim

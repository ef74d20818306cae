// A packet network in virtual time: each NIC has a port on it, and faults by an options struct.
//
// The same seed and the same calls give the same packets at the same instants: simultaneous
// arrivals order by the order of their sending, and nothing else is a source of chance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/instant.h"
#include "transport/port/packet_port.h"
#include "transport/port/sim/sim_random.h"

namespace verbena::transport::sim {

class SimNetwork;

// What senders write into the identification of their IPv4 headers (facts of real senders).
enum class IpIdMode : uint8_t {
  kZero,        // a UDP socket that sets DF
  kBatchIndex,  // one that sends batches by UDP_SEGMENT
  kRunning,     // kernel rxe: a counter of the host
  kRandom,
};

// Nothing passes between the two ports (or, with kAllPorts, between `a` and anybody).
struct PortPartition {
  static constexpr uint32_t kAllPorts = ~0u;
  uint32_t a = 0;
  uint32_t b = kAllPorts;
  Instant begin;
  Instant end;
};

// Chances are per mille of packets.
struct SimNetworkOptions {
  uint32_t loss_per_mille = 0;
  uint32_t corrupt_per_mille = 0;  // bits flipped on the way: at least one that the ICRC covers
  uint32_t duplicate_per_mille = 0;
  uint32_t reorder_per_mille = 0;  // delayed by up to reorder_delay more
  Duration delay = Microseconds(1);
  Duration jitter;  // up to so much more, of each packet: those of one sender overtake each other
  Duration reorder_delay = Microseconds(20);
  Duration duplicate_delay = Microseconds(20);  // of the copy
  Duration quantum = Nanoseconds(1);  // arrivals fall on its multiples, so that they batch
  // What a byte takes to leave its sender, in ps; one packet leaves after the other. 0: no time.
  int64_t wire_ps_per_byte = 0;
  Duration queue_max;                   // a packet that would wait longer to leave is lost; 0: none
  uint32_t inbox_packets_max = 65'536;  // arrived and not received; more are lost
  uint32_t receive_buffer_bytes = 0;    // that ports say they have, whatever they hold
  uint32_t room_packets = 0;            // Send says "no room" after so many until Flush; 0: never
  uint32_t no_room_per_mille = 0;       // and so often for no reason of its own
  IpIdMode ip_id_mode = IpIdMode::kZero;
  // One sender's packets of one length that have arrived are received back to back, as UDP_GRO
  // gives them.
  bool batches = false;
  std::vector<PortPartition> partitions;
};

struct SimNetworkCounters {
  uint64_t sent = 0, lost = 0, corrupted = 0, duplicated = 0, reordered = 0;
  uint64_t cut_off = 0, queue_drops = 0, inbox_drops = 0, no_room = 0, nobody = 0, down = 0;
};

// A packet somewhere between two ports; several copies of it may be.
struct SimPacket {
  wire::PacketAddress address;
  uint32_t length = 0;  // with ICRC
  uint16_t ip_id = 0;
  uint16_t expected_ip_id = 0;
  uint32_t sender = 0;
  uint32_t copies = 0;
  SimPacket* next_free = nullptr;
  std::byte bytes[wire::kPacketBytesMax];
};

class SimNetworkPort final : public PacketPort {
 public:
  SimNetworkPort(SimNetwork* network, uint32_t index, std::vector<Gid> gids)
      : network_(network), index_(index), gids_(std::move(gids)) {}

  bool Send(Instant now, const OutPacket& packet) override;
  void Flush(Instant now) override;
  bool Receive(Instant now, InPacket* out) override;
  void LearnIpId(const InPacket& packet, uint16_t ip_id) override;
  int JoinGroup(const Gid& group) override;
  void LeaveGroup(const Gid& group) override;
  uint32_t receive_buffer_bytes() const override;
  const PortCounters& counters() const override { return counters_; }

  bool has_packets() const { return !inbox_.empty() || received_next_ != received_.size(); }
  uint32_t index() const { return index_; }
  // Down: nothing goes out or comes in.
  void set_is_up(bool is_up) { is_up_ = is_up; }
  bool is_up() const { return is_up_; }

 private:
  friend class SimNetwork;
  bool Listens(const Gid& gid) const;
  void TakeBatch();

  SimNetwork* network_;
  uint32_t index_;
  std::vector<Gid> gids_;
  std::vector<Gid> groups_;
  std::deque<SimPacket*> inbox_;
  // The batch being received, oldest first, its bytes also in `batch_` if there are several: they
  // are the caller's until the first call after its last packet.
  std::vector<SimPacket*> received_;
  size_t received_next_ = 0;
  std::vector<std::byte> batch_;
  bool is_up_ = true;
  uint32_t sent_since_flush_ = 0;
  uint16_t running_ip_id_ = 0;
  std::vector<uint16_t> learned_ip_id_;  // by sender
  Instant wire_free_;
  PortCounters counters_;
};

// What became of a packet, for traces.
enum class SimPacketFate : uint8_t {
  kSent,
  kDelivered,
  kLost,
  kCorrupted,
  kDuplicated,
  kCutOff,
  kQueueDrop,
  kInboxDrop,
  kNobody,
  kPortDown,
};
const char* NameOf(SimPacketFate fate);

class SimNetwork {
 public:
  SimNetwork(uint64_t seed, const SimNetworkOptions& options) : options_(options), random_(seed) {}
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // Forgets packets and ports, and keeps the memory.
  void Reset(uint64_t seed, const SimNetworkOptions& options);
  SimNetworkPort* AddPort(std::vector<Gid> gids);
  const SimNetworkOptions& options() const { return options_; }
  // What is on its way stays so.
  void set_options(const SimNetworkOptions& options) { options_ = options; }

  // When the next packet arrives; Never: none is on its way.
  Instant NextArrival() const {
    return arrivals_.empty() ? Instant::Never() : Instant{arrivals_.front().at_ns};
  }
  // Moves what is due to the inboxes of its ports.
  void Advance(Instant now);

  const SimNetworkCounters& counters() const { return counters_; }
  // Over all that was sent and delivered, and when.
  uint64_t digest() const { return digest_; }
  using Observer = std::function<void(Instant, SimPacketFate, const SimPacket&, uint32_t to)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 private:
  friend class SimNetworkPort;
  struct Arrival {
    int64_t at_ns;
    uint64_t sequence;
    SimPacket* packet;
    uint32_t to;
    bool operator>(const Arrival& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };

  bool TakeFrom(SimNetworkPort& port, Instant now, const OutPacket& packet);
  uint16_t NextIpId(SimNetworkPort& port, uint16_t* expected);
  void Corrupt(SimPacket& packet);
  void Carry(Instant now, Instant left, SimPacket* packet, uint32_t to);
  void Schedule(Instant at, SimPacket* packet, uint32_t to);
  bool IsCutOff(Instant now, uint32_t a, uint32_t b) const;
  Duration Below(Duration bound) {
    return bound.ns <= 0 ? Duration{} : Nanoseconds(random_.Below(static_cast<uint32_t>(bound.ns)));
  }
  void Note(Instant now, SimPacketFate fate, const SimPacket& packet, uint32_t to);
  SimPacket* Allocate();
  void Release(SimPacket* packet);

  SimNetworkOptions options_;
  SimRandom random_;
  std::vector<std::unique_ptr<SimNetworkPort>> ports_;
  std::vector<Arrival> arrivals_;  // a heap, the earliest first
  uint64_t sequence_ = 0;
  uint64_t digest_ = 0;
  SimNetworkCounters counters_;
  Observer observer_;

  static constexpr uint32_t kChunkPackets = 32;
  std::vector<std::unique_ptr<std::array<SimPacket, kChunkPackets>>> chunks_;
  SimPacket* free_ = nullptr;
};

// Folds a value into a digest.
inline uint64_t Fold(uint64_t digest, uint64_t value) {
  uint64_t z = (digest ^ value) * 0x9e37'79b9'7f4a'7c15u;
  return z ^ (z >> 29);
}

}  // namespace verbena::transport::sim

// Packets of one direction that a fault tap holds back, bounded in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/port/packet_port.h"

namespace verbena::transport::tap {

struct HeldPacket {
  wire::PacketAddress address;
  std::vector<std::byte> bytes;
  int32_t corrupt_bit = -1;
  uint16_t expected_ip_id = 0;
  std::string note;
};

class HeldPackets {
 public:
  explicit HeldPackets(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Holds until `due`, or, if hold_packets is not 0, until so many others have passed. False: full.
  bool Add(Instant due, uint32_t hold_packets, HeldPacket packet);
  // A packet that was not held has passed: those that waited for it become due at `now`.
  void OnPassed(Instant now);
  // Never: none is held.
  Instant NextDue() const;
  // Takes the earliest that is due; of equally early ones the first added. False: none.
  bool PopDue(Instant now, HeldPacket* out);

  uint64_t size() const { return by_time_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  // What a packet costs besides its bytes, so that tiny ones are bounded too.
  static constexpr uint64_t kOverheadBytes = 256;

  using Key = std::pair<Instant, uint64_t>;  // due, sequence
  struct Entry {
    uint64_t passed = 0;  // 0: only time releases it
    HeldPacket packet;
  };

  uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t sequence_ = 0;
  uint64_t passed_ = 0;
  std::map<Key, Entry> by_time_;
  std::set<std::pair<uint64_t, Key>> by_passed_;
};

}  // namespace verbena::transport::tap

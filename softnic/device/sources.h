// Who sends to a place: a number for each address and port, and which lane it has.
//
// Thread: the shard.   Trust: addresses are peers' and the client's; tables are bounded.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>

#include "core/shm/cm.h"
#include "softnic/device/lanes.h"

namespace verbena::softnic {

class Sources {
 public:
  static constexpr uint32_t kMax = 65'536;

  struct Source {
    shm::CmAddress address{};
    LaneId lane = 0;  // 0: none now
    bool is_named = false;
  };

  // The number of an address, a new one if it has none. 0: there are too many.
  uint32_t NumberOf(const shm::CmAddress& address);
  const Source* Find(uint32_t number) const {
    auto found = sources_.find(number);
    return found == sources_.end() ? nullptr : &found->second;
  }
  // Precondition, of both: there is such a number.
  void SetLane(uint32_t number, LaneId lane);
  void Name(uint32_t number);
  size_t size() const { return sources_.size(); }

 private:
  using Key = std::array<uint8_t, 20>;
  static Key KeyOf(const shm::CmAddress& address);
  void Note(uint32_t number, const Source& source);

  uint32_t next_number_ = 1;  // 0 when all have been given
  std::map<Key, uint32_t> numbers_;
  std::map<uint32_t, Source> sources_;
  std::set<uint32_t> forgettable_;  // no lane, no name
};

}  // namespace verbena::softnic

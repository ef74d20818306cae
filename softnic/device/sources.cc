#include "softnic/device/sources.h"

namespace verbena::softnic {

Sources::Key Sources::KeyOf(const shm::CmAddress& address) {
  Key key;
  std::memcpy(key.data(), &address.family, 2);
  std::memcpy(key.data() + 2, &address.port, 2);
  std::memcpy(key.data() + 4, address.addr, 16);
  return key;
}

uint32_t Sources::NumberOf(const shm::CmAddress& address) {
  const Key key = KeyOf(address);
  if (auto found = numbers_.find(key); found != numbers_.end()) return found->second;
  if (next_number_ == 0) return 0;
  if (sources_.size() >= kMax) {
    if (forgettable_.empty()) return 0;
    const uint32_t oldest = *forgettable_.begin();
    numbers_.erase(KeyOf(sources_.at(oldest).address));
    sources_.erase(oldest);
    forgettable_.erase(oldest);
  }
  const uint32_t number = next_number_++;
  numbers_.emplace(key, number);
  Source& source = sources_[number];
  source.address.family = address.family;
  source.address.port = address.port;
  std::memcpy(source.address.addr, address.addr, sizeof(address.addr));
  Note(number, source);
  return number;
}

void Sources::SetLane(uint32_t number, LaneId lane) {
  Source& source = sources_.at(number);
  source.lane = lane;
  Note(number, source);
}

void Sources::Name(uint32_t number) {
  Source& source = sources_.at(number);
  source.is_named = true;
  Note(number, source);
}

void Sources::Note(uint32_t number, const Source& source) {
  if (source.lane == 0 && !source.is_named) {
    forgettable_.insert(number);
  } else {
    forgettable_.erase(number);
  }
}

}  // namespace verbena::softnic

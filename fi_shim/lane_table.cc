#include "fi_shim/lane_table.h"

#include <stdlib.h>
#include <string.h>

#include "fi_shim/rdm.h"

namespace verbena::fi {
namespace {

// Unread high bits must count: peers of a subnet differ in few bits.
uint64_t Mix(uint64_t value) {
  value *= 0x9e37'79b9'7f4a'7c15;  // 2^64 / golden ratio
  return value ^ value >> 32;
}

}  // namespace

bool IsSameAddress(const SockAddress& a, const SockAddress& b) {
  if (a.sa.sa_family != b.sa.sa_family) return false;
  if (a.sa.sa_family == AF_INET) {
    return a.in.sin_port == b.in.sin_port && a.in.sin_addr.s_addr == b.in.sin_addr.s_addr;
  }
  return a.in6.sin6_port == b.in6.sin6_port &&
         memcmp(&a.in6.sin6_addr, &b.in6.sin6_addr, sizeof(a.in6.sin6_addr)) == 0;
}

LaneTable::~LaneTable() {
  free(by_number_);
  free(by_peer_);
}

size_t LaneTable::Bucket(const SockAddress& peer) const {
  uint64_t hash = peer.in.sin_port;  // at the same place in both
  if (peer.sa.sa_family == AF_INET) {
    hash = hash << 32 | peer.in.sin_addr.s_addr;
  } else {
    uint64_t halves[2];
    memcpy(halves, &peer.in6.sin6_addr, sizeof(halves));
    hash ^= halves[0] ^ Mix(halves[1]);
  }
  return Mix(hash) & (buckets_ - 1);
}

Lane* LaneTable::FindPeer(const SockAddress& peer) const {
  if (buckets_ == 0) return nullptr;
  Lane* lane = by_peer_[Bucket(peer)];
  while (lane != nullptr && !IsSameAddress(lane->peer, peer)) lane = lane->next_of_bucket;
  return lane;
}

bool LaneTable::Grow() {
  constexpr size_t kFirstBuckets = 16;
  const size_t wanted = buckets_ == 0 ? kFirstBuckets : 2 * buckets_;
  auto** buckets = static_cast<Lane**>(calloc(wanted, sizeof(Lane*)));
  if (buckets == nullptr) return false;
  free(by_peer_);
  by_peer_ = buckets;
  buckets_ = wanted;
  for (Lane* lane = first_; lane != nullptr; lane = lane->next) {
    Lane*& bucket = by_peer_[Bucket(lane->peer)];
    lane->next_of_bucket = bucket;
    bucket = lane;
  }
  return true;
}

bool LaneTable::Add(Lane* lane) {
  if (size_ == buckets_ && !Grow()) return false;
  Lane*& bucket = by_peer_[Bucket(lane->peer)];
  lane->next_of_bucket = bucket;
  bucket = lane;
  lane->next = first_;
  first_ = lane;
  ++size_;
  return true;
}

bool LaneTable::Name(uint64_t number, Lane* lane) {
  if (number >= kNumbersMax) return false;
  if (number >= numbers_) {
    constexpr uint64_t kFirstNumbers = 16;
    uint64_t wanted = numbers_ == 0 ? kFirstNumbers : numbers_;
    while (wanted <= number) wanted *= 2;
    auto** grown = static_cast<Lane**>(realloc(by_number_, wanted * sizeof(Lane*)));
    if (grown == nullptr) return false;
    memset(grown + numbers_, 0, (wanted - numbers_) * sizeof(Lane*));
    by_number_ = grown;
    numbers_ = wanted;
  }
  Unname(number);
  by_number_[number] = lane;
  ++lane->names;
  return true;
}

void LaneTable::Unname(uint64_t number) {
  if (number >= numbers_ || by_number_[number] == nullptr) return;
  --by_number_[number]->names;
  by_number_[number] = nullptr;
}

void LaneTable::Remove(Lane* lane) {
  for (uint64_t i = 0; lane->names != 0 && i < numbers_; ++i) {
    if (by_number_[i] == lane) Unname(i);
  }
  Lane** link = &by_peer_[Bucket(lane->peer)];
  while (*link != lane) link = &(*link)->next_of_bucket;
  *link = lane->next_of_bucket;
  link = &first_;
  while (*link != lane) link = &(*link)->next;
  *link = lane->next;
  --size_;
}

}  // namespace verbena::fi

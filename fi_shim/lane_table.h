// The lanes of an endpoint: by fi_addr_t, for posting, and by address, since several numbers of an
// AV may stand for one peer.
//
// Thread: the endpoint's lock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::fi {

struct Lane;
union SockAddress;

bool IsSameAddress(const SockAddress& a, const SockAddress& b);

class LaneTable {
 public:
  LaneTable() = default;
  ~LaneTable();
  LaneTable(const LaneTable&) = delete;
  LaneTable& operator=(const LaneTable&) = delete;

  Lane* Find(uint64_t number) const { return number < numbers_ ? by_number_[number] : nullptr; }
  // The lane to that peer, whatever number led to it. nullptr: none.
  Lane* FindPeer(const SockAddress& peer) const;
  // False: no memory. A lane is added once, and may be named by many numbers.
  bool Add(Lane* lane);
  bool Name(uint64_t number, Lane* lane);
  // Number `number` stands for nothing any more.
  void Unname(uint64_t number);
  void Remove(Lane* lane);

  uint64_t numbers() const { return numbers_; }
  Lane* first() const { return first_; }
  size_t size() const { return size_; }

 private:
  static constexpr uint64_t kNumbersMax = uint64_t{1} << 24;

  size_t Bucket(const SockAddress& peer) const;
  bool Grow();

  Lane** by_number_ = nullptr;
  uint64_t numbers_ = 0;
  Lane** by_peer_ = nullptr;  // chains by Lane::next_of_bucket
  size_t buckets_ = 0;        // a power of two
  Lane* first_ = nullptr;     // list of all, by Lane::next
  size_t size_ = 0;
};

}  // namespace verbena::fi

// What a NIC has refused to let pass, by reason: keys, address handles, rights of QPs, Q_Keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/shm/attach.h"

namespace verbena::softnic {

struct RefusalName {
  shm::VendorErr why;
  const char* name;
};
// In the order in which `verbena status` shows them.
inline constexpr RefusalName kRefusalNames[] = {
    {shm::VendorErr::kBadLKey, "bad_lkey"},
    {shm::VendorErr::kLKeyOtherPd, "lkey_other_pd"},
    {shm::VendorErr::kLKeyBounds, "lkey_bounds"},
    {shm::VendorErr::kLKeyAccess, "lkey_access"},
    {shm::VendorErr::kBadRKey, "bad_rkey"},
    {shm::VendorErr::kRKeyOtherPd, "rkey_other_pd"},
    {shm::VendorErr::kRKeyBounds, "rkey_bounds"},
    {shm::VendorErr::kRKeyAccess, "rkey_access"},
    {shm::VendorErr::kRKeyOtherQp, "rkey_other_qp"},
    {shm::VendorErr::kRKeyBadState, "rkey_bad_state"},
    {shm::VendorErr::kBadAh, "bad_ah"},
    {shm::VendorErr::kQpAccess, "qp_access"},
};

class Refusals {
 public:
  // Gives `why` back: a check's outcome is counted on its way out. Success is not.
  shm::VendorErr Count(shm::VendorErr why) {
    if (why != shm::VendorErr::kNone) Add(why, 1);
    return why;
  }
  void Add(shm::VendorErr why, uint64_t times) {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (kRefusalNames[i].why == why) counts_[i] += times;
    }
  }
  // By index into kRefusalNames.
  uint64_t At(size_t index) const { return counts_[index]; }
  uint64_t Of(shm::VendorErr why) const {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (kRefusalNames[i].why == why) return counts_[i];
    }
    return 0;
  }

 private:
  std::array<uint64_t, std::size(kRefusalNames)> counts_{};
};

}  // namespace verbena::softnic

#include "softnic/cm/dreq_data.h"

#include <algorithm>
#include <array>

namespace verbena::softnic {
namespace {

// The first bytes: a mark, the version of this, the PSN (big-endian).
constexpr std::array kHead = {std::byte{'V'}, std::byte{'r'}, std::byte{'b'}, std::byte{'n'},
                              std::byte{1}};
constexpr size_t kPsnAt = kHead.size();

}  // namespace

DreqData EncodeDreqData(std::optional<Psn> done) {
  DreqData data{};
  if (!done.has_value()) return data;
  std::copy(kHead.begin(), kHead.end(), data.begin());
  for (size_t i = 0; i < 3; ++i) {
    data[kPsnAt + i] = static_cast<std::byte>(done->value() >> (16 - 8 * i));
  }
  return data;
}

std::optional<Psn> DecodeDreqData(const DreqData& data) {
  if (!std::equal(kHead.begin(), kHead.end(), data.begin())) return std::nullopt;
  uint32_t value = 0;
  for (size_t i = 0; i < 3; ++i) value = value << 8 | std::to_integer<uint32_t>(data[kPsnAt + i]);
  return Psn(value);
}

}  // namespace verbena::softnic

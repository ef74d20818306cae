#include "fi_shim/cm_data.h"

#include <algorithm>
#include <cstring>

namespace verbena::fi {
namespace {

// The last bytes: of data, of the key, a mark, and the version of this.
constexpr uint8_t kMark = 0xfb;
constexpr uint8_t kVersion = 1;

}  // namespace

void EncodeCmData(const CmData& from, size_t room, uint8_t* out) {
  const size_t bytes = std::min(from.bytes, DataRoom(room, from.auth_key_bytes));
  memset(out, 0, room);
  if (bytes != 0) memcpy(out, from.data, bytes);
  uint8_t* trailer = out + room - kCmTrailerBytes;
  if (from.auth_key_bytes != 0) {
    memcpy(trailer - from.auth_key_bytes, from.auth_key, from.auth_key_bytes);
  }
  trailer[0] = static_cast<uint8_t>(bytes);
  trailer[1] = static_cast<uint8_t>(from.auth_key_bytes);
  trailer[2] = kMark;
  trailer[3] = kVersion;
}

CmData DecodeCmData(const uint8_t* from, size_t room) {
  if (room < kCmTrailerBytes) return {from, room, nullptr, 0};
  const uint8_t* trailer = from + room - kCmTrailerBytes;
  const size_t bytes = trailer[0], auth_key_bytes = trailer[1];
  const bool is_ours = trailer[2] == kMark && trailer[3] == kVersion &&
                       bytes + auth_key_bytes + kCmTrailerBytes <= room;
  if (!is_ours) return {from, room, nullptr, 0};
  return {from, bytes, trailer - auth_key_bytes, auth_key_bytes};
}

}  // namespace verbena::fi

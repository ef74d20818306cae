#include "softnic/control/program_name.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace verbena::softnic {

namespace {

constexpr size_t kBytesMax = 4;  // of a character in UTF-8
// The least character of each length: longer ones of it are none. C1 controls are not shown.
constexpr uint32_t kLeast[kBytesMax + 1] = {0, 0x20, 0xa0, 0x800, 0x1'0000};
constexpr uint32_t kGreatest = 0x10'ffff;

bool CanBeShown(uint32_t character, size_t bytes) {
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  return character >= kLeast[bytes] && character <= kGreatest && character != 0x7f && !is_surrogate;
}

// Bytes of the character at the beginning of `text`, which is not empty. 0: none that can be shown.
size_t BytesOfCharacter(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return CanBeShown(first, 1) ? 1 : 0;
  if (first < 0xc0 || first >= 0xf8) return 0;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (bytes > text.size()) return 0;
  uint32_t character = first & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    character = character << 6 | (next & 0x3f);
  }
  return CanBeShown(character, bytes) ? bytes : 0;
}

}  // namespace

std::string ProgramNameOf(const char* name, size_t bytes) {
  std::string_view left(name, strnlen(name, bytes));
  std::string out;
  while (!left.empty()) {
    const size_t shown = BytesOfCharacter(left);
    if (shown == 0) {
      out += '?';
    } else {
      out += left.substr(0, shown);
    }
    left.remove_prefix(std::max<size_t>(shown, 1));
  }
  return out;
}

}  // namespace verbena::softnic

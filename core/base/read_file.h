// A small text file, whole.
#pragma once

#include <cstddef>
#include <string>

namespace verbena {

// Of what people write by hand.
inline constexpr size_t kSettingsFileBytesMax = 1 << 20;

// 0, or an errno: what open(2) and read(2) say (a directory: EISDIR), or EFBIG for more than
// `bytes_max`.
int ReadFile(const std::string& path, size_t bytes_max, std::string* out);

}  // namespace verbena

// The version that `verbena version`, the tarball's name and CHANGELOG.md share.
#pragma once

namespace verbena::cli {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace verbena::cli

// Probes about what is outside the process: ports, devices, mounts. Shared by the probe files only.
#pragma once

#include <string>

#include "tools/cli/probes.h"

namespace verbena::cli {

std::string ReadText(const std::string& path);  // a small file; empty if it cannot be read
std::string Trim(const std::string& text);      // without blanks and line ends at both ends

Finding RocePort();
Finding RealDevices();
Finding SharedMount();

}  // namespace verbena::cli

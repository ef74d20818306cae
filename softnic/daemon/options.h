// verbenad's command line.
#pragma once

#include <string>

#include "softnic/control/log.h"
#include "softnic/control/networks.h"
#include "softnic/control/server.h"
#include "softnic/device/device.h"

namespace verbena::softnic {

struct DaemonOptions {
  ControlConfig control;
  DeviceLimits limits;
  NetworkOptions network;
  uint32_t nics = 1;
  int ready_fd = -1;
  LogLevel log_level = LogLevel::kInfo;
  bool wants_help = false;
};

// Returns an empty string, or what is wrong with which flag, in plain words.
std::string ParseOptions(int argc, const char* const* argv, DaemonOptions* out);
std::string HelpText();

}  // namespace verbena::softnic

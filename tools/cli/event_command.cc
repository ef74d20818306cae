// `verbena event`: tells programs of an event that did not happen.
#include <cinttypes>
#include <cstdio>

#include "core/client/instance.h"
#include "tools/cli/admin.h"
#include "tools/cli/commands.h"

namespace verbena::cli {

int Event(const Arguments& arguments) {
  const EventWish& wish = arguments.event;
  const json::object request = {{"op", "event"},         {"nic", wish.nic},
                                {"event", wish.name},    {"kind", wish.kind},
                                {"number", wish.number}, {"session", wish.session}};
  const std::string directory = client::InstanceDirectory(false);
  json::object reply;
  std::string error;
  AskResult result = AskResult::kNotRunning;
  if (!directory.empty()) result = AskInstance(directory, request, &reply, &error);
  if (result != AskResult::kOk) {
    return Fail(result == AskResult::kNotRunning ? "no instance is running here." : error + ".");
  }
  const uint64_t told = FieldNumber(reply, "told");
  std::printf("Told %" PRIu64 " open device%s.\n", told, told == 1 ? "" : "s");
  return kExitOk;
}

}  // namespace verbena::cli

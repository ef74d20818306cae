// `verbena capture`, `verbena trace`, `verbena fault`: a running instance's packets recorded, or
// broken by rules.
#include <cstdio>
#include <cstring>

#include "core/base/read_file.h"
#include "core/client/instance.h"
#include "tools/cli/admin.h"
#include "tools/cli/commands.h"
#include "tools/cli/table.h"

namespace verbena::cli {
namespace {

// The caller's instance is asked; false with all said.
bool Ask(const json::object& request, json::object* reply) {
  const std::string directory = client::InstanceDirectory(false);
  std::string error;
  AskResult result = AskResult::kNotRunning;
  if (!directory.empty()) result = AskInstance(directory, request, reply, &error);
  if (result == AskResult::kOk) return true;
  Fail(result == AskResult::kNotRunning ? "no instance is running here." : error);
  return false;
}

}  // namespace

int Record(const std::string& kind, const Arguments& arguments) {
  json::object reply;
  if (!Ask({{"op", kind},
            {"action", arguments.action},
            {"file", arguments.file},
            {"limit_bytes", arguments.limit_bytes}},
           &reply)) {
    return kExitFailed;
  }
  const std::string counts = FieldText(reply, "packets") + " packets, " +
                             HumanBytes(FieldNumber(reply, "written_bytes")) + " written";
  const json::value* running = reply.if_contains("running");
  const bool is_running = running != nullptr && running->is_bool() && running->get_bool();
  const std::string error = FieldText(reply, "failure", "");
  if (arguments.action == "start") {
    std::printf("The %s goes to %s; `verbena %s stop` ends it.\n", kind.c_str(),
                arguments.file.c_str(), kind.c_str());
  } else if (is_running) {
    std::printf("A %s is running: %s.\n", kind.c_str(), counts.c_str());
  } else {
    std::printf("No %s is running; the last one: %s.\n", kind.c_str(), counts.c_str());
  }
  const double missed = FieldNumber(reply, "missed_packets");
  if (missed > 0) std::printf("%.0f packets are missing: the reader was too slow.\n", missed);
  if (!error.empty()) return Fail("the " + kind + " ended by itself: " + error + ".");
  return kExitOk;
}

int Fault(const Arguments& arguments) {
  std::string rules;
  if (arguments.action == "set") {
    const int error = ReadFile(arguments.file, kSettingsFileBytesMax, &rules);
    if (error != 0) return Fail("cannot read " + arguments.file + ": " + strerror(error) + ".");
  }
  json::object reply;
  const bool replaces = arguments.action != "report";
  if (!Ask({{"op", "faults"}, {"action", replaces ? "set" : "report"}, {"rules", rules}}, &reply)) {
    return kExitFailed;
  }
  const std::string report = FieldText(reply, "report", "");
  std::printf("%s", report.empty() ? "No fault rules.\n" : report.c_str());
  return kExitOk;
}

}  // namespace verbena::cli

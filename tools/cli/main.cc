// `verbena`, the command line: parses, dispatches, and turns the result into an exit code.
#include <cstdio>

#include "tools/cli/commands.h"
#include "tools/cli/version.h"

namespace verbena::cli {

int Fail(const std::string& text, int code) {
  std::fprintf(stderr, "verbena: %s%s", text.c_str(), text.ends_with('\n') ? "" : "\n");
  return code;
}

namespace {

int Dispatch(const Arguments& arguments) {
  switch (arguments.command) {
    case Command::kHelp:
      std::fputs(HelpText(arguments.topic).c_str(), stdout);
      return kExitOk;
    case Command::kVersion:
      std::printf("verbena %s\n", kVersion);
      return kExitOk;
    case Command::kRun:
      return RunProgram(arguments);
    case Command::kUp:
      return Up(arguments);
    case Command::kDown:
      return Down();
    case Command::kStatus:
      return Status(arguments);
    case Command::kEnv:
      return Environment(arguments);
    case Command::kDevices:
      return Devices(arguments);
    case Command::kShow:
      return Show(arguments);
    case Command::kDoctor:
      return Doctor(arguments);
    case Command::kCapture:
      return Record("capture", arguments);
    case Command::kTrace:
      return Record("trace", arguments);
    case Command::kFault:
      return Fault(arguments);
    case Command::kEvent:
      return Event(arguments);
  }
  return kExitFailed;
}

}  // namespace
}  // namespace verbena::cli

int main(int argc, char** argv) {
  using namespace verbena::cli;
  Arguments arguments;
  std::string error;
  if (!ParseArguments({argv + 1, argv + argc}, &arguments, &error)) return Fail(error, kExitUsage);
  return Dispatch(arguments);
}

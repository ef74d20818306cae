// What each command of `verbena` does. Every function returns the process's exit code and prints
// its own errors, one sentence on standard error that says what to do.
#pragma once

#include <string>

#include "tools/cli/args.h"
#include "tools/cli/exit_codes.h"

namespace verbena::cli {

int RunProgram(const Arguments& arguments);
int Up(const Arguments& arguments);
int Down();
int Status(const Arguments& arguments);
int Devices(const Arguments& arguments);
int Show(const Arguments& arguments);
int Environment(const Arguments& arguments);
int Doctor(const Arguments& arguments);
// `kind`: "capture" or "trace".
int Record(const std::string& kind, const Arguments& arguments);
int Fault(const Arguments& arguments);
int Event(const Arguments& arguments);

// Prints "verbena: TEXT" on standard error; returns `code`.
int Fail(const std::string& text, int code = kExitFailed);

}  // namespace verbena::cli

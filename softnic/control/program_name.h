// What a program says its name is: any bytes, which are passed on to logs, traces and JSON.
#pragma once

#include <cstddef>
#include <string>

namespace verbena::softnic {

// `bytes` of it at most, up to its end; what is no character that can be shown becomes '?'.
std::string ProgramNameOf(const char* name, size_t bytes);

}  // namespace verbena::softnic

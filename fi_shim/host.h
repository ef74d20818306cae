// The libfabric that loaded this library, and its log.
//
// It is found by who called fi_prov_ini, not by linking: a program may have brought its own, under
// any name, out of reach of the linker's global scope.
#pragma once

#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

namespace verbena::fi {

extern fi_provider g_provider;

// `code` is an address in the text of the libfabric. Once, before anything else.
void FindHost(const void* code);

// A line for who set FI_LOG_LEVEL; nothing otherwise. errno is kept.
void LogLine(fi_log_level level, fi_log_subsys subsystem, const char* function, int line,
             const char* format, ...) __attribute__((format(printf, 5, 6)));

// Why something was refused (FI_LOG_LEVEL=info).
#define VERBENA_FI_INFO(subsystem, ...) \
  ::verbena::fi::LogLine(FI_LOG_INFO, subsystem, __func__, __LINE__, __VA_ARGS__)
// What the program should know of (FI_LOG_LEVEL=warn).
#define VERBENA_FI_WARN(subsystem, ...) \
  ::verbena::fi::LogLine(FI_LOG_WARN, subsystem, __func__, __LINE__, __VA_ARGS__)

}  // namespace verbena::fi

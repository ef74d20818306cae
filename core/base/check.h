// CHECK for our own bugs in the daemon. A shim never uses it: it must not abort its host.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace verbena::internal {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace verbena::internal

#define VERBENA_CHECK(condition)                                                       \
  (__builtin_expect(static_cast<bool>(condition), 1)                                   \
       ? static_cast<void>(0)                                                          \
       : ::verbena::internal::CheckFailed(#condition, __FILE__, __LINE__))

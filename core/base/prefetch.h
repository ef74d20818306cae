// Cache lines asked for ahead of their use. Between two cores a line takes 0.1 to 0.3 µs, and those
// asked for together come together.
#pragma once

#include <cstddef>

namespace verbena {

inline void PrefetchForRead(const void* line) { __builtin_prefetch(line, 0); }

// Takes the line from other cores. Built without -mprfchw, the compiler's own would only read it.
inline void PrefetchForWrite(void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// All lines of an object.
inline void PrefetchObject(const void* object, size_t bytes) {
  constexpr size_t kLineBytes = 64;
  const auto* line = static_cast<const char*>(object);
  for (const char* end = line + bytes; line < end; line += kLineBytes) PrefetchForRead(line);
}

}  // namespace verbena

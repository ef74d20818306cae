// Lack of memory where std::string and std::vector are used, as an errno.
#pragma once

#include <cerrno>
#include <new>

namespace verbena::client {

// What `call` returns, 0 or errno; ENOMEM if it found no memory. An exception that left a function
// of C would end the host. Under NoCancel, as all cleanups.
template <typename Call>
int OrNoMemory(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

}  // namespace verbena::client

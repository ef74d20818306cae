// What an operation table has where there is nothing: it answers -FI_ENOSYS, whatever its form.
#pragma once

#include <rdma/fi_errno.h>

namespace verbena::fi {

struct Unsupported {
  template <typename R, typename... A>
  using Function = R (*)(A...);

  template <typename R, typename... A>
  constexpr operator Function<R, A...>() const {
    return [](A...) -> R { return static_cast<R>(-FI_ENOSYS); };
  }
};

inline constexpr Unsupported kUnsupported;

}  // namespace verbena::fi

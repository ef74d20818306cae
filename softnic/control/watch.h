// Having asio watch an fd, where the kernel may refuse: an epoll watch costs something, and a user
// has but so many (fs.epoll.max_user_watches, ENOSPC).
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

// 0: `out`, which had none, owns the fd. errno: it is still `fd`'s.
[[nodiscard]] inline int Watch(UniqueFd* fd, boost::asio::posix::stream_descriptor* out) {
  boost::system::error_code error;
  out->assign(fd->get(), error);
  if (error) return error.value();
  (void)fd->Release();
  return 0;
}

}  // namespace verbena::softnic

#include "transport/port/udp/netlink.h"

#include <linux/netlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::transport {

int OpenNetlink(uint32_t groups, int flags) {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
  if (fd < 0) return -1;
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK;
  name.nl_groups = groups;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace verbena::transport

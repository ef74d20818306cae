#include "softnic/control/cm_channel.h"

#include <errno.h>
#include <sys/socket.h>

namespace verbena::softnic {

int CmChannelFd::Open() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  own_end_.Reset(pair[0]);
  client_end_.Reset(pair[1]);
  return 0;
}

void CmChannelFd::SetReadable(bool is_readable) {
  if (is_readable_ == is_readable) return;
  is_readable_ = is_readable;
  if (is_readable) {
    Put();
  } else {
    Take();
  }
}

// Never without a token between the two.
void CmChannelFd::WakeAnother() {
  if (!is_readable_) return;
  Put();
  Take();
}

void CmChannelFd::Put() {
  const char token = 1;
  (void)!send(own_end_.get(), &token, sizeof(token), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void CmChannelFd::Take() {
  char token;
  (void)!recv(client_end_.get(), &token, sizeof(token), MSG_DONTWAIT);
}

}  // namespace verbena::softnic

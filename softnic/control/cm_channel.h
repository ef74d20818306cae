// The fd of an rdma_cm event channel: readable while its queue has events.
//
// A socket pair whose client's end is the program's to poll, and of which the daemon keeps both. To
// make it readable a byte goes in by our end; to make it quiet again that byte is taken out by our
// copy of the client's end, which the daemon alone reads. When the daemon ends, so does our end,
// and the program's hangs up.
//
// Trust: a program may read or write there; it then finds its own channel readable or not when it
// is otherwise, and nobody else's.
#pragma once

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

class CmChannelFd {
 public:
  // 0 or errno (EMFILE, ENFILE, ENOMEM).
  int Open();
  void SetReadable(bool is_readable);
  // An event was taken. If there are more, another of those wakes that wait in recv(MSG_PEEK): the
  // kernel wakes one for each message, and whom it woke for this one may ask for no more.
  void WakeAnother();
  // What the client gets a copy of. In blocking mode: how it looks there is the program's to
  // choose.
  int client_end() const { return client_end_.get(); }

 private:
  void Put();
  void Take();

  UniqueFd own_end_;
  UniqueFd client_end_;
  bool is_readable_ = false;
};

}  // namespace verbena::softnic

// The instance's socket: who may bind it, and what a path tells about a running daemon.
#pragma once

#include <string>

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

// Binds and listens on DIRECTORY/sock (SOCK_SEQPACKET, mode 0600), replacing the socket of a daemon
// that died. The directory stays locked for as long as `lock` lives, so that two daemons never
// serve one directory. Returns an empty string, or what is wrong in plain words.
class InstanceSocket {
 public:
  ~InstanceSocket();
  std::string Open(const std::string& directory);
  // Takes the path away, so that nobody finds the instance any more.
  void Unlink();
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  UniqueFd lock_;
  UniqueFd socket_;
  std::string path_;
  bool is_bound_ = false;
};

}  // namespace verbena::softnic

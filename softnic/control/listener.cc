#include "softnic/control/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace verbena::softnic {

namespace {

constexpr int kBacklog = 512;

}  // namespace

InstanceSocket::~InstanceSocket() { Unlink(); }

void InstanceSocket::Unlink() {
  if (!is_bound_) return;
  is_bound_ = false;
  unlink(path_.c_str());
}

std::string InstanceSocket::Open(const std::string& directory) {
  path_ = directory + "/sock";
  lock_.Reset(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.IsValid()) {
    if (errno == ENOENT) {
      return "the instance directory " + directory + " does not exist: create it (mode 0700)";
    }
    return "can't open the instance directory " + directory + ": " + strerror(errno);
  }
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return "another verbenad serves " + directory +
           " already: use it, or stop it with `verbena down`";
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return "the path " + path_ +
           " is too long for a socket (107 bytes): choose a shorter directory";
  }
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  // We hold the lock, so whatever lies there was left by a daemon that died.
  struct stat old = {};
  if (lstat(path_.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode)) return path_ + " exists and is no socket: remove it";
    unlink(path_.c_str());
  }
  socket_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.IsValid()) return std::string("can't make a socket: ") + strerror(errno);
  // Mode before bind: the path never exists with more rights than 0600.
  mode_t old_mask = umask(0177);
  int rc = bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  int error = errno;
  umask(old_mask);
  if (rc != 0) {
    if (error == ENOSPC)
      return "no space left where " + path_ + " is to be: free some, or --directory";
    return "can't bind " + path_ + ": " + strerror(error);
  }
  is_bound_ = true;
  if (listen(socket_.get(), kBacklog) != 0) {
    return "can't listen on " + path_ + ": " + strerror(errno);
  }
  return "";
}

}  // namespace verbena::softnic

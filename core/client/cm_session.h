// A process's connection-management session: what librdmacm.so.1 asks the daemon through.
//
// One connection to the attach socket, one request on it at a time (core/shm/cm.h). No threads, no
// exceptions, no logging. A forked child has no part in its parent's session: what it asks through
// that fails, and it gets one of its own.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>

#include "core/shm/cm.h"

namespace verbena::client {

class CmSession {
 public:
  // The session of this process, opened when there is none, or the daemon of the last one is gone;
  // starts a daemon where AutostartAllowed(). Sessions are never freed: identifiers name them.
  // Errors: ENODEV: no daemon, and none to be started; EPROTO: one of another version; ENOMEM;
  // EMFILE and what else connecting may give.
  static int ForThisProcess(CmSession** out);

  // Begins a session on a connection to the attach socket, whose fd it takes in any case.
  // Errors: ECONNRESET: the daemon ended first; EPROTO; ETIMEDOUT; ENOMEM; what the daemon says.
  static int Open(int socket_fd, CmSession** out);

  // Sends the request and waits for its reply. 0 or errno: that of the reply, or EIO when the
  // daemon is gone or this is a forked copy. `fd` (may be null) gets the reply's fd, or -1; the
  // caller owns it.
  int Execute(const shm::CmRequest& request, shm::CmReply* reply, int* fd = nullptr);

  // False once the daemon was found gone, and in a forked child.
  bool IsAlive() const;
  // In a child: a session of its parent.
  bool IsForkedCopy() const;

  CmSession(const CmSession&) = delete;
  CmSession& operator=(const CmSession&) = delete;

 private:
  CmSession(int socket_fd, pid_t owner_pid) : socket_fd_(socket_fd), owner_pid_(owner_pid) {}
  ~CmSession() = default;

  static int Join(CmSession** out);  // throws where there is no memory
  int Greet();
  int Exchange(const shm::CmRequest& request, shm::CmReply* reply, int* fd);
  void MarkDead();
  static void AfterForkInChild();

  std::atomic<int> socket_fd_;  // -1: the daemon is gone
  const pid_t owner_pid_;
  CmSession* earlier_ = nullptr;  // kept in reach, for a host that looks for leaks
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // a request and its reply
};

}  // namespace verbena::client

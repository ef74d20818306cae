// What a program sleeps on: the wait object of a CQ, counter, EQ or wait set.
//
// Behind each there is an epoll instance with the fds of all that can wake its owner (channels of
// the NIC's CQs, connection management) and a bell, an eventfd for what happens in this process.
// Nothing here looks at what the owner has: he arms, looks once more, and only then sleeps
// (Sleeper).
#pragma once

#include <pthread.h>
#include <rdma/fi_eq.h>

#include <atomic>
#include <cstdint>

#include "fi_shim/list.h"
#include "fi_shim/objects.h"
#include "fi_shim/turns.h"

namespace verbena::fi {

struct WaitSet;

// A point in time by which a call returns; of a timeout in milliseconds, where negative is never.
class Deadline {
 public:
  explicit Deadline(int timeout_ms);
  bool HasPassed() const;
  // For epoll_wait; rounded up, -1: never.
  int RemainingMs() const;

 private:
  int64_t at_ns_ = -1;
};

class Waiter {
 public:
  friend class Sleeper;
  Waiter() = default;
  ~Waiter() { Close(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // `set`: of FI_WAIT_SET, which it joins as `owner`. Errors: -FI_EINVAL: no such kind, no set;
  // -FI_ENOSYS: FI_WAIT_POLLFD, which only sets have; -FI_EMFILE; -FI_ENOMEM.
  int Open(const fi_wait_obj& wanted, fid_wait* set, fid* owner);
  void Close();

  fi_wait_obj kind() const { return kind_; }
  // Whether fi_cq_sread and the like may be called.
  bool MayBlock() const { return kind_ != FI_WAIT_NONE && kind_ != FI_WAIT_SET; }
  // Whether fds wake it; else its owner has to look again and again (FI_WAIT_YIELD).
  bool HasFd() const { return epoll_fd_ >= 0; }
  int fd() const { return epoll_fd_; }

  // -FI_ENOMEM. What is added several times is to be removed as often, before it is closed.
  int AddFd(int fd);
  void RemoveFd(int fd);
  // Whether one of them is readable, or it rings.
  bool IsReady();

  // Whoever is asleep, or is about to fall asleep after TakeTurn, wakes up.
  void Ring();

  // FI_GETWAIT, FI_GETWAITOBJ. -FI_ENOSYS: another command; -FI_ENODATA: no such object.
  int Control(int command, void* arg);

 private:
  // What the descriptors stand for is the parent's, who still sleeps on it; and so is the thread.
  bool IsForkedCopy() const;
  int StartSignaller();
  static void* Signal(void* self);
  void Quiet();
  bool Sleep(const Deadline& deadline);

  struct Fd {
    int fd;
    uint32_t times;
  };

  fi_wait_obj kind_ = FI_WAIT_NONE;
  pid_t process_ = 0;                                      // that opened it
  pthread_mutex_t fds_mutex_ = PTHREAD_MUTEX_INITIALIZER;  // guards fds_
  List<Fd> fds_;
  Turns turns_;  // of those who sleep on epoll_fd_ in our calls
  int epoll_fd_ = -1;
  int bell_fd_ = -1;
  WaitSet* set_ = nullptr;
  fid* owner_ = nullptr;
  // FI_WAIT_MUTEX_COND: somebody has to signal the condition when the NIC has something, and only a
  // thread can. It runs as long as the program has such an object.
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t cond_ = PTHREAD_COND_INITIALIZER;
  pthread_t signaller_ = {};
  bool has_signaller_ = false;
  int stop_fd_ = -1;
};

// A call that may sleep. It has no destructor: a thread that is cancelled in its sleep is unwound
// by glibc, which aborts at cleanups of ours (NoCancel).
class Sleeper {
 public:
  explicit Sleeper(Waiter* waiter) : waiter_(waiter) {}

  // Before the caller looks for the last time. True: he is to arm what wakes the waiter, and then
  // to have the others look (OthersLook). False: another thread has done so.
  bool TakeTurn();
  void OthersLook();
  // Until something rings, an fd is readable, another thread has found that so, or the deadline has
  // passed. It may return early. False: a signal has come to this thread.
  bool Sleep(const Deadline& deadline);
  // At the end of the call.
  void Leave();

 private:
  Waiter* waiter_;
  bool leads_ = false;
  uint32_t turn_ = 0;
};

// fi_wait_open.
struct WaitSet {
  fid_wait fid;
  Fabric* fabric = nullptr;
  std::atomic<uint32_t> users{0};
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards members
  List<struct ::fid*> members;
  Waiter waiter;
};
int OpenWaitSet(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set);

// 0: nothing waits to be read, and what comes will wake who sleeps on the object; -FI_EAGAIN.
// Each makes progress first.
int TryWait(fid* object);
int TryWait(Cq* cq);
int TryWait(Cntr* cntr);
int TryWait(Eq* eq);
int TryWaitAll(fid_fabric* fabric, fid** fids, int count);  // fi_trywait

}  // namespace verbena::fi

// pthread_cancel and a library in other people's threads.
#pragma once

#include <pthread.h>

namespace verbena::client {

// While one is alive, this thread is not cancelled: a thread that ended amid our code would take
// its locks along; and glibc unwinds it by an unwinder of its own, which aborts at our cleanups.
// Around system calls that are cancellation points, unless the program waits in them.
class NoCancel {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_;
};

}  // namespace verbena::client

// std::lock_guard throws, and is made for std::mutex, which has no static initialiser in C.
#pragma once

#include <pthread.h>

namespace verbena::client {

class ScopedLock {
 public:
  explicit ScopedLock(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~ScopedLock() { pthread_mutex_unlock(mutex_); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

}  // namespace verbena::client

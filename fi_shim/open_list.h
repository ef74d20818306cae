// All objects of one kind that are open, in the order in which they were opened.
#pragma once

#include <pthread.h>

#include "core/client/sync.h"

namespace verbena::fi {

// By their own `next_open`. Allocates nothing.
template <typename T>
class OpenList {
 public:
  void Add(T* object) {
    client::MutexGuard guard(mutex_);
    *Place([](const T&) { return false; }) = object;
  }
  // Precondition: it is in the list.
  void Remove(T* object) {
    client::MutexGuard guard(mutex_);
    *Place([object](const T& other) { return &other == object; }) = object->next_open;
  }
  // Calls `take` with the first that `is_it` says yes to, which is open until it returns. False:
  // there is none.
  template <typename IsIt, typename Take>
  bool With(IsIt is_it, Take take) {
    client::MutexGuard guard(mutex_);
    T* found = *Place(is_it);
    if (found != nullptr) take(*found);
    return found != nullptr;
  }

 private:
  // The link to it, or the last one.
  template <typename IsIt>
  T** Place(IsIt is_it) {
    T** at = &first_;
    while (*at != nullptr && !is_it(**at)) at = &(*at)->next_open;
    return at;
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  T* first_ = nullptr;
};

}  // namespace verbena::fi

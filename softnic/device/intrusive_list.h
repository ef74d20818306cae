// A doubly linked list through members of its elements: linking allocates nothing, and an element
// leaves in constant time when its object is destroyed.
#pragma once

#include <cstdint>

#include "core/base/check.h"

namespace verbena::softnic {

template <typename T>
struct ListHook {
  explicit ListHook(T* self) : owner(self) {}
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;
  bool IsLinked() const { return next != nullptr; }
  void Unlink() {
    if (!IsLinked()) return;
    prev->next = next;
    next->prev = prev;
    prev = next = nullptr;
  }

  T* const owner;  // nullptr: a list's own end
  ListHook* prev = nullptr;
  ListHook* next = nullptr;
};

template <typename T>
class IntrusiveList {
 public:
  IntrusiveList() { end_.prev = end_.next = &end_; }
  ~IntrusiveList() {
    while (!IsEmpty()) end_.next->Unlink();
  }
  bool IsEmpty() const { return end_.next == &end_; }
  T* First() const { return IsEmpty() ? nullptr : end_.next->owner; }
  void PushBack(ListHook<T>& hook) {
    VERBENA_CHECK(!hook.IsLinked());
    hook.prev = end_.prev;
    hook.next = &end_;
    end_.prev->next = &hook;
    end_.prev = &hook;
  }
  T* PopFront() {
    T* first = First();
    if (first != nullptr) end_.next->Unlink();
    return first;
  }
  // The first `count`; the visit leaves the list as it is.
  template <typename Visit>
  void ForFirst(uint32_t count, Visit visit) const {
    for (ListHook<T>* hook = end_.next; hook != &end_ && count != 0; hook = hook->next, --count) {
      visit(*hook->owner);
    }
  }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (ListHook<T>* hook = end_.next; hook != &end_;) {
      ListHook<T>* next = hook->next;  // before the visit, which may unlink this one
      visit(*hook->owner);
      hook = next;
    }
  }

 private:
  ListHook<T> end_{nullptr};
};

}  // namespace verbena::softnic

// A growing array of plain values, for code that throws nothing.
#pragma once

#include <stdlib.h>

#include <cstddef>

namespace verbena::fi {

template <typename T>
class List {
 public:
  List() = default;
  ~List() { free(items_); }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  // False: no memory; nothing has changed.
  bool Reserve(size_t count) {
    if (count <= capacity_) return true;
    size_t wanted = capacity_ == 0 ? 4 : capacity_;
    while (wanted < count) wanted *= 2;
    void* grown = realloc(static_cast<void*>(items_), wanted * sizeof(T));
    if (grown == nullptr) return false;
    items_ = static_cast<T*>(grown);
    capacity_ = wanted;
    return true;
  }
  bool Push(const T& item) {
    if (!Reserve(count_ + 1)) return false;
    items_[count_++] = item;
    return true;
  }
  // The last one takes its place.
  void RemoveAt(size_t index) { items_[index] = items_[--count_]; }
  void RemoveFirst(size_t count) {
    for (size_t i = count; i < count_; ++i) items_[i - count] = items_[i];
    count_ -= count;
  }
  void Clear() { count_ = 0; }

  size_t size() const { return count_; }
  T& operator[](size_t index) { return items_[index]; }
  const T& operator[](size_t index) const { return items_[index]; }
  T* begin() { return items_; }
  T* end() { return items_ + count_; }

 private:
  T* items_ = nullptr;
  size_t count_ = 0, capacity_ = 0;
};

}  // namespace verbena::fi

// A growing array and a queue of plain values, for code that throws nothing.
#pragma once

#include <stdlib.h>
#include <string.h>

#include <cstddef>
#include <type_traits>

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

// First in, first out. Both ends cost the same whatever is between them, on the average.
template <typename T>
class Queue {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  Queue() = default;
  ~Queue() { free(items_); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // False: no memory; nothing has changed.
  bool Push(const T& item) {
    if (begin_ + count_ == capacity_ && !MakeRoom()) return false;
    items_[begin_ + count_++] = item;
    return true;
  }
  // Precondition: size() is not 0, of both.
  T& First() { return items_[begin_]; }
  const T& First() const { return items_[begin_]; }
  void RemoveFirst() {
    ++begin_;
    if (--count_ == 0) begin_ = 0;
  }
  // The others keep their order. Precondition: index < size().
  void RemoveAt(size_t index) {
    T* item = begin() + index;
    memmove(static_cast<void*>(item), item + 1, (--count_ - index) * sizeof(T));
  }

  size_t size() const { return count_; }
  T* begin() { return items_ + begin_; }
  T* end() { return items_ + begin_ + count_; }

 private:
  // What is left moves to the front only when as many are gone, so that each moves once on the
  // average.
  bool MakeRoom() {
    if (count_ <= begin_ && begin_ != 0) {
      memmove(static_cast<void*>(items_), items_ + begin_, count_ * sizeof(T));
      begin_ = 0;
      return true;
    }
    const size_t wanted = capacity_ == 0 ? 4 : 2 * capacity_;
    void* grown = realloc(static_cast<void*>(items_), wanted * sizeof(T));
    if (grown == nullptr) return false;
    items_ = static_cast<T*>(grown);
    capacity_ = wanted;
    return true;
  }

  T* items_ = nullptr;
  size_t begin_ = 0, count_ = 0, capacity_ = 0;  // those before begin_ are gone
};

}  // namespace verbena::fi

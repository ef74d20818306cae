// Small numbers for things of a program: always the lowest that is free.
//
// Thread: the owner's lock.
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include <type_traits>

namespace verbena::ucm {

// As many as librdmacm can look up.
inline constexpr uint32_t kNumbersMax = 65'536;
inline constexpr uint32_t kNoNumber = UINT32_MAX;

template <typename T>
class Numbers {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Numbers() = default;
  ~Numbers() { free(entries_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  // kNoNumber: all are taken, or there is no memory.
  uint32_t Take(const T& value) {
    // Pages that nobody needs take no memory.
    if (entries_ == nullptr) entries_ = static_cast<Entry*>(calloc(kNumbersMax, sizeof(Entry)));
    if (entries_ == nullptr) return kNoNumber;
    while (lowest_free_ < end_ && entries_[lowest_free_].is_taken) ++lowest_free_;
    if (lowest_free_ == kNumbersMax) return kNoNumber;
    const uint32_t number = lowest_free_++;
    if (number >= end_) end_ = number + 1;
    entries_[number] = {true, value};
    return number;
  }
  void Release(uint32_t number) {
    entries_[number].is_taken = false;
    if (number < lowest_free_) lowest_free_ = number;
    while (end_ > 0 && !entries_[end_ - 1].is_taken) --end_;
  }
  // nullptr: nobody has that number.
  T* Find(uint32_t number) {
    return number < end_ && entries_[number].is_taken ? &entries_[number].value : nullptr;
  }
  uint32_t end() const { return end_; }  // all that are taken are below

 private:
  struct Entry {
    bool is_taken;
    T value;
  };

  uint32_t lowest_free_ = 0;  // none below is free
  uint32_t end_ = 0;
  Entry* entries_ = nullptr;
};

}  // namespace verbena::ucm

// The libc's functions that this library stands in front of.
//
// Found by reading the loaded objects' symbol tables: dlsym is in another library before
// glibc 2.34, has a newer version since, and may allocate.
#pragma once

#include <atomic>

namespace verbena::paths {

// The address of `name` in the first object behind this library that defines it; nullptr: none.
void* FindNext(const char* name);

// Any of the functions below, all of which lie in one section, one behind the other.
class NextAddress {
 public:
  explicit constexpr NextAddress(const char* name) : name_(name) {}

  void* Get() {
    // Written with the same value by whoever comes: no order is needed.
    void* found = found_.load(std::memory_order_relaxed);
    if (__builtin_expect(found == nullptr, 0)) {
      found = FindNext(name_);
      found_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<void*> found_ = nullptr;
};

// One function of libc. Found at the library's start, or by the first caller if a constructor of
// another library comes earlier.
template <typename Function>
class Next : public NextAddress {
 public:
  using NextAddress::NextAddress;

  // nullptr: this libc has none; then no program that was linked with it calls it.
  Function* Get() { return reinterpret_cast<Function*>(NextAddress::Get()); }
};

#define VERBENA_NEXT __attribute__((section("verbena_next"), used))

}  // namespace verbena::paths

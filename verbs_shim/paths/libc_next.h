// The libc's functions that this library stands in front of.
//
// Found by reading the loaded objects' symbol tables: dlsym is in another library before
// glibc 2.34, has a newer version since, and may allocate.
#pragma once

#include <errno.h>
#include <fcntl.h>

#include <atomic>
#include <type_traits>

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

// Names of our own with libc's as symbols: libc's headers promise that no path is null, and rename
// some of these functions.
#define DECLARE(type, name, ...)                                                                   \
  extern "C" __attribute__((visibility("default"))) type Front_##name(__VA_ARGS__) __asm__(#name); \
  VERBENA_NEXT static constinit verbena::paths::Next<type(__VA_ARGS__)> g_next_##name(#name);      \
  type Front_##name(__VA_ARGS__)

// What a function returns that this libc has not. No program was linked with it, then.
template <typename Result>
Result NotInLibc() {
  errno = ENOSYS;
  if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else {
    return -1;
  }
}

// Whether open(2) has a third argument.
constexpr bool NeedsMode(int flags) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

}  // namespace verbena::paths

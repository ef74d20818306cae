// A file of which a client maps pages over its program's memory, and the NIC maps them too: payload
// then moves without a system call. Sparse, and larger than any memory: each conversion has a slot
// of its own, in which the program may grow its mapping (mremap) without meeting another.
//
// Thread: the leader. Trust: the file can't shrink; a client that punches holes finds zeroes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "core/shm/attach.h"

namespace verbena::softnic {

// Part of a payload file, mapped here while regions use it.
struct PayloadWindow {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::byte* base = nullptr;
  uint32_t users = 0;
};

class PayloadFile {
 public:
  // What windows take of the daemon's address space.
  struct Use {
    size_t windows = 0;
    uint64_t bytes = 0;
    void Add(int sign, uint64_t more_bytes) {
      windows += static_cast<size_t>(sign);
      bytes += sign > 0 ? more_bytes : 0 - more_bytes;
    }
  };

  // nullptr, with *error: the kernel refuses the file (ulimit -f, no fds, no memory).
  static std::unique_ptr<PayloadFile> Create(int* error);
  ~PayloadFile();
  PayloadFile(const PayloadFile&) = delete;
  PayloadFile& operator=(const PayloadFile&) = delete;

  uint64_t id() const { return id_; }
  int fd() const { return fd_; }
  bool Holds(uint64_t offset, uint64_t bytes) const {
    return bytes != 0 && offset < shm::kPayloadFileBytes &&
           bytes <= shm::kPayloadFileBytes - offset;
  }

  // A window that holds the range, for one more user. nullptr: the client, or all of them, have too
  // many or too large ones.
  // Precondition: Holds(offset, bytes).
  PayloadWindow* Open(uint64_t offset, uint64_t bytes);
  // What nobody uses stays mapped for a while: programs register the same memory again.
  void Close(PayloadWindow* window);

 private:
  PayloadFile() = default;
  PayloadWindow* Find(uint64_t offset, uint64_t bytes);
  void Unmap(PayloadWindow* window);
  void Trim(size_t idle_max);

  uint64_t id_ = 0;
  int fd_ = -1;
  std::multimap<uint64_t, PayloadWindow> windows_;  // by offset
  Use use_;
  std::deque<PayloadWindow*> idle_;  // longest first
};

}  // namespace verbena::softnic

// Sealed memfds: memory the daemon makes, keeps mapped and shares with one client.
#pragma once

#include <cstddef>
#include <cstdint>

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

// Who may write through the fd the client gets.
enum class ClientAccess { kReadWrite, kReadOnly };

// A mapping with its fd. The fd may be closed once it was passed on; the mapping stays.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Makes `bytes` of sparse zeroed memory that nobody can shrink or grow. 0 or errno.
  int Create(const char* name, uint64_t bytes, ClientAccess access);
  // Backs [offset, offset + bytes) with pages, so that no access ends in SIGBUS. 0 or ENOMEM.
  int Back(uint64_t offset, uint64_t bytes);
  // Gives the pages back; the range reads as zeroes afterwards.
  void Unback(uint64_t offset, uint64_t bytes);

  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.Reset(); }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void Unmap();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Moves kHugePageBytes at `memory`, of a SharedMemory, aligned to as much and all backed, to one
// page. Contents stay, and who uses them notices nothing; it takes milliseconds. False: they stay
// on small pages, as with a kernel before Linux 6.1, or one without free memory of that size.
bool PutOnHugePage(std::byte* memory);

}  // namespace verbena::softnic

#include "softnic/control/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "core/base/huge_page_mapping.h"

namespace verbena::softnic {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

SharedMemory::~SharedMemory() { Unmap(); }

void SharedMemory::Unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
}

int SharedMemory::Create(const char* name, uint64_t bytes, ClientAccess access) {
  fd_.Reset(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_.IsValid()) return errno;
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return errno;
  // Mapped before sealing: F_SEAL_FUTURE_WRITE leaves this mapping writable and no later one.
  void* data = MapForHugePages(bytes, fd_.get());
  if (data == MAP_FAILED) return errno;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (access == ClientAccess::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(fd_.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) return errno;
  return 0;
}

int SharedMemory::Back(uint64_t offset, uint64_t bytes) {
  for (;;) {
    if (fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0) {
      return 0;
    }
    if (errno != EINTR) return ENOMEM;
  }
}

void SharedMemory::Unback(uint64_t offset, uint64_t bytes) {
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

bool PutOnHugePage(std::byte* memory) {
  constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, which the C library's headers may lack
  return madvise(memory, kHugePageBytes, kMadvCollapse) == 0;
}

}  // namespace verbena::softnic

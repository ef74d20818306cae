#include "softnic/dma/payload_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/check.h"

namespace verbena::softnic {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kIdleWindowsMax = 64;

// The kernel allows a process 65 530 mappings and 128 TB of addresses; what the rest of the daemon
// needs no client may take, nor most of what others want.
struct Budget {
  size_t windows;
  uint64_t bytes;
  bool Has(const PayloadFile::Use& use, uint64_t bytes_more) const {
    return use.windows < windows && use.bytes <= bytes && bytes_more <= bytes - use.bytes;
  }
};
// A program that wants all its memory mapped has as many regions as windows.
constexpr Budget kFileBudget = {16'384, 2ull << 40};
constexpr Budget kDaemonBudget = {30'000, 64ull << 40};

PayloadFile::Use all_files_use;

}  // namespace

std::unique_ptr<PayloadFile> PayloadFile::Create(int* error) {
  std::unique_ptr<PayloadFile> file(new PayloadFile());
  file->fd_ = memfd_create("verbena-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Sealed before anybody else has it: what is mapped here can't be cut off.
  const bool is_ready =
      file->fd_ >= 0 && ftruncate(file->fd_, static_cast<off_t>(shm::kPayloadFileBytes)) == 0 &&
      fcntl(file->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
      getrandom(&file->id_, sizeof(file->id_), 0) == sizeof(file->id_);
  if (is_ready) return file;
  *error = errno;
  return nullptr;
}

PayloadFile::~PayloadFile() {
  while (!windows_.empty()) {
    VERBENA_CHECK(windows_.begin()->second.users == 0);
    Unmap(&windows_.begin()->second);
  }
  if (fd_ >= 0) close(fd_);
}

PayloadWindow* PayloadFile::Find(uint64_t offset, uint64_t bytes) {
  // Windows of one slot begin at few different places: the nearest ones before the range will do.
  constexpr int kLooks = 8;
  auto it = windows_.upper_bound(offset);
  for (int i = 0; i < kLooks && it != windows_.begin(); ++i) {
    --it;
    PayloadWindow& window = it->second;
    if (offset - window.offset <= window.bytes &&
        bytes <= window.bytes - (offset - window.offset)) {
      return &window;
    }
  }
  return nullptr;
}

PayloadWindow* PayloadFile::Open(uint64_t offset, uint64_t bytes) {
  VERBENA_CHECK(Holds(offset, bytes));
  if (PayloadWindow* found = Find(offset, bytes); found != nullptr) {
    if (found->users++ == 0) std::erase(idle_, found);
    return found;
  }
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const uint64_t end = (offset + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto has_room = [&] {
    return kFileBudget.Has(use_, end - begin) && kDaemonBudget.Has(all_files_use, end - begin);
  };
  if (!has_room()) Trim(0);
  if (!has_room()) return nullptr;
  void* base = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                    static_cast<off_t>(begin));
  if (base == MAP_FAILED) return nullptr;
  // A core dump of the daemon shall not hold its clients' memory.
  madvise(base, end - begin, MADV_DONTDUMP);
  use_.Add(1, end - begin);
  all_files_use.Add(1, end - begin);
  auto it =
      windows_.emplace(begin, PayloadWindow{begin, end - begin, static_cast<std::byte*>(base), 1});
  return &it->second;
}

void PayloadFile::Close(PayloadWindow* window) {
  VERBENA_CHECK(window->users > 0);
  if (--window->users != 0) return;
  idle_.push_back(window);
  Trim(kIdleWindowsMax);
}

void PayloadFile::Trim(size_t idle_max) {
  while (idle_.size() > idle_max) {
    PayloadWindow* window = idle_.front();
    idle_.pop_front();
    Unmap(window);
  }
}

void PayloadFile::Unmap(PayloadWindow* window) {
  munmap(window->base, window->bytes);
  use_.Add(-1, window->bytes);
  all_files_use.Add(-1, window->bytes);
  auto [first, last] = windows_.equal_range(window->offset);
  auto it =
      std::find_if(first, last, [window](const auto& entry) { return &entry.second == window; });
  VERBENA_CHECK(it != last);
  windows_.erase(it);
}

}  // namespace verbena::softnic

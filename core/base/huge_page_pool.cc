#include "core/base/huge_page_pool.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <new>

#include "core/base/cache_line.h"
#include "core/base/huge_page_mapping.h"

namespace verbena {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsChecked = true;
#else
constexpr bool kIsChecked = false;
#endif

constexpr size_t kPooledBytesMax = 16 << 10;  // more is the heap's
constexpr size_t kClasses = kPooledBytesMax / kCacheLineBytes;

bool IsPooled(size_t bytes) { return !kIsChecked && bytes != 0 && bytes <= kPooledBytesMax; }

// Blocks of one huge page each, cut from front to back into pieces of whole lines. A freed piece is
// kept for the next of its size: QPs come and go, their number and sizes change little.
class Pool {
 public:
  void* Take(size_t bytes) {
    const size_t lines = (bytes + kCacheLineBytes - 1) / kCacheLineBytes;
    std::lock_guard lock(mutex_);
    Piece*& free = free_[lines - 1];
    if (free != nullptr) {
      Piece* piece = free;
      free = piece->next;
      return piece;
    }
    if (room_bytes_ < lines * kCacheLineBytes) AddBlock();
    void* piece = next_;
    next_ += lines * kCacheLineBytes;
    room_bytes_ -= lines * kCacheLineBytes;
    return piece;
  }

  void Give(void* memory, size_t bytes) {
    const size_t lines = (bytes + kCacheLineBytes - 1) / kCacheLineBytes;
    std::lock_guard lock(mutex_);
    free_[lines - 1] = new (memory) Piece{free_[lines - 1]};
  }

 private:
  struct Piece {
    Piece* next;
  };

  // What is left of the last block is lost: less than one object.
  void AddBlock() {
    void* block = MapAtHugePage(kHugePageBytes, PROT_READ | PROT_WRITE);
    if (block == MAP_FAILED) throw std::bad_alloc();
    next_ = static_cast<char*>(block);
    room_bytes_ = kHugePageBytes;
    // A kernel that has none gives small ones: slower, that is all.
    madvise(next_, kHugePageBytes, MADV_HUGEPAGE);
  }

  std::mutex mutex_;
  std::array<Piece*, kClasses> free_{};
  char* next_ = nullptr;
  size_t room_bytes_ = 0;
};

Pool& ThePool() {
  static auto* pool = new Pool();  // objects of static lifetime may outlive one with a destructor
  return *pool;
}

}  // namespace

void* AllocateOnHugePages(size_t bytes) {
  if (IsPooled(bytes)) return ThePool().Take(bytes);
  return ::operator new(bytes, std::align_val_t(kCacheLineBytes));
}

void FreeOnHugePages(void* memory, size_t bytes) noexcept {
  if (memory == nullptr) return;
  if (IsPooled(bytes)) return ThePool().Give(memory, bytes);
  ::operator delete(memory, std::align_val_t(kCacheLineBytes));
}

}  // namespace verbena

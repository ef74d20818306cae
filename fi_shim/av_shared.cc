#include "fi_shim/av_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <rdma/fi_errno.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace verbena::fi {

struct SharedAvStore::Head {
  uint64_t magic;  // last, once all else is there
  uint32_t type;
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> generation;
  uint32_t reserved[11];
};

namespace {

constexpr uint64_t kMagic = 0x3130'7661'6e65'6276;  // "vbenav01"
constexpr uint32_t kGrowEntries = 1024;

int FiError(int error) {
  switch (error) {
    case ENOENT:
      return -FI_ENOENT;
    case EMFILE:
    case ENFILE:
      return -FI_EMFILE;
    case EACCES:
    case EPERM:
    case ELOOP:
      return -FI_EACCES;
    default:
      return -FI_ENOMEM;
  }
}

// statx is older than the names that stat and fstat have in newer glibcs.
bool Stat(int fd, const char* path, struct statx* out) {
  return statx(path == nullptr ? fd : AT_FDCWD, path == nullptr ? "" : path,
               path == nullptr ? AT_EMPTY_PATH : 0, STATX_SIZE | STATX_INO, out) == 0;
}

int LockWhole(int fd, int operation) {
  int result;
  do {
    result = flock(fd, operation);
  } while (result != 0 && errno == EINTR);
  return result;
}

// Another kind of lock than that of being there, which does not meet it.
bool LockChanges(int fd, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  int result;
  do {
    result = fcntl(fd, F_OFD_SETLKW, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

SharedAvStore::~SharedAvStore() {
  const int saved_errno = errno;
  // Nobody else has it: it goes. Who opens it at this moment waits for the lock, and then finds
  // that the file is not the one of that name any more.
  if (fd_ >= 0 && !is_read_only_ && LockWhole(fd_, LOCK_EX | LOCK_NB) == 0) unlink(path_.c_str());
  if (head_ != nullptr) munmap(head_, sizeof(Head) + uint64_t{kAvEntriesMax} * sizeof(AvEntry));
  if (fd_ >= 0) close(fd_);
  errno = saved_errno;
}

int SharedAvStore::OpenFile(const std::string& path, bool read_only) {
  path_ = path;
  is_read_only_ = read_only;
  for (;;) {
    const int flags = O_CLOEXEC | O_NOFOLLOW | (read_only ? O_RDONLY : O_RDWR | O_CREAT);
    fd_ = open(path.c_str(), flags, 0600);
    if (fd_ < 0) return FiError(errno);
    // Alone with a file that exists: its users are dead. What they left is not shared with anybody.
    if (!read_only && LockWhole(fd_, LOCK_EX | LOCK_NB) == 0 && ftruncate(fd_, 0) != 0) {
      return FiError(errno);
    }
    if (LockWhole(fd_, LOCK_SH) != 0) return FiError(errno);
    struct statx opened, named;
    if (Stat(fd_, nullptr, &opened) && Stat(-1, path.c_str(), &named) &&
        opened.stx_ino == named.stx_ino) {
      break;
    }
    close(fd_);
    fd_ = -1;
  }
  return 0;
}

// All the room there may ever be, so that nothing moves; the file grows below it.
int SharedAvStore::Map(bool read_only) {
  void* base = mmap(nullptr, sizeof(Head) + uint64_t{kAvEntriesMax} * sizeof(AvEntry),
                    PROT_READ | (read_only ? 0 : PROT_WRITE), MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return -FI_ENOMEM;
  head_ = static_cast<Head*>(base);
  return 0;
}

int SharedAvStore::Begin(fi_av_type type) {
  struct statx status;
  if (!Stat(fd_, nullptr, &status)) return -FI_ENOMEM;
  if (status.stx_size == 0) {
    if (is_read_only_) return -FI_ENOENT;
    if (!Grow(kGrowEntries)) return -FI_ENOMEM;
    head_->type = type;
    head_->magic = kMagic;
  } else if (status.stx_size < sizeof(Head)) {
    return -FI_EINVAL;
  }
  const bool is_ours = head_->magic == kMagic;
  return is_ours && (type == FI_AV_UNSPEC || head_->type == type) ? 0 : -FI_EINVAL;
}

int SharedAvStore::Open(const std::string& path, fi_av_type type, bool read_only,
                        SharedAvStore** out) {
  auto* store = new (std::nothrow) SharedAvStore();
  if (store == nullptr) return -FI_ENOMEM;
  int error = store->OpenFile(path, read_only);
  if (error == 0) error = store->Map(read_only);
  if (error == 0) {
    const bool may_change = store->BeginChange();
    error = store->Begin(type);
    if (may_change) LockChanges(store->fd_, F_UNLCK);
  }
  if (error != 0) {
    delete store;
    return error;
  }
  *out = store;
  return 0;
}

fi_av_type SharedAvStore::type() const {
  return head_->type == FI_AV_TABLE ? FI_AV_TABLE : FI_AV_MAP;
}

const std::atomic<uint32_t>* SharedAvStore::generation() const { return &head_->generation; }

AvEntry* SharedAvStore::entries() { return reinterpret_cast<AvEntry*>(head_ + 1); }

uint32_t SharedAvStore::EntriesInFile() {
  struct statx status;
  if (!Stat(fd_, nullptr, &status) || status.stx_size < sizeof(Head)) return 0;
  const uint64_t count = (status.stx_size - sizeof(Head)) / sizeof(AvEntry);
  return static_cast<uint32_t>(std::min<uint64_t>(count, kAvEntriesMax));
}

uint32_t SharedAvStore::Count() {
  const uint32_t count = head_->count.load(std::memory_order_acquire);
  if (count > entries_in_file_) entries_in_file_ = EntriesInFile();
  return std::min(count, entries_in_file_);
}

uint32_t SharedAvStore::Generation() { return head_->generation.load(std::memory_order_acquire); }

bool SharedAvStore::BeginChange() { return !is_read_only_ && LockChanges(fd_, F_WRLCK); }

void SharedAvStore::EndChange() {
  head_->generation.fetch_add(1, std::memory_order_release);
  LockChanges(fd_, F_UNLCK);
}

bool SharedAvStore::Grow(uint32_t count) {
  if (count <= entries_in_file_) return true;
  entries_in_file_ = EntriesInFile();
  if (count <= entries_in_file_) return true;
  const uint64_t wanted = (uint64_t{count} + kGrowEntries - 1) / kGrowEntries * kGrowEntries;
  // With blocks behind it: a full file system is an error now, and no SIGBUS later.
  const auto bytes = static_cast<off_t>(sizeof(Head) + wanted * sizeof(AvEntry));
  if (posix_fallocate(fd_, 0, bytes) != 0) return false;
  entries_in_file_ = static_cast<uint32_t>(wanted);
  return true;
}

void SharedAvStore::SetCount(uint32_t count) {
  head_->count.store(count, std::memory_order_release);  // pairs with the acquire in Count
}

}  // namespace verbena::fi

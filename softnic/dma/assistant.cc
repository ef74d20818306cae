#include "softnic/dma/assistant.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "softnic/dma/bus_error.h"
#include "softnic/dma/move_bytes.h"

namespace verbena::softnic {

namespace {

// Looks at an answer before it sleeps: a helper that spins takes a microsecond or two, one that
// sleeps takes longer, and one that shares our CPU can't answer while we look.
constexpr uint32_t kSpinsMax = 300;
constexpr uint32_t kSpinsMin = 4;
// Rings without an answer that a helper may make: one of an earlier request is left over now and
// then, and more only a liar makes.
constexpr uint32_t kIdleRingsMax = 64;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t TotalBytes(const iovec* pieces, uint32_t count) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; ++i) total += pieces[i].iov_len;
  return total;
}

// The client may punch holes into the file, and the host have no memory to fill them again.
bool MoveGuarded(const iovec* to, const iovec* from, uint64_t bytes) {
  uintptr_t fault;
  return Guarded(&fault, [&] { MovePieces(to, 0, from, 0, bytes); });
}

}  // namespace

std::unique_ptr<Assistant> Assistant::Create(ClientFds* fds, int* error,
                                             std::atomic<uint32_t>* hanging,
                                             std::function<void()> tell) {
  CatchBusErrors();
  std::unique_ptr<Assistant> assistant(new Assistant());
  assistant->hanging_ = hanging;
  assistant->tell_ = std::move(tell);
  fds->file = memfd_create("verbena-assist", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int ends[2] = {-1, -1};
  void* base = MAP_FAILED;
  const bool is_ready =
      fds->file >= 0 && ftruncate(fds->file, shm::kAssistFileBytes) == 0 &&
      fallocate(fds->file, FALLOC_FL_KEEP_SIZE, 0, shm::kAssistFileBytes) == 0 &&
      fcntl(fds->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
      (base = mmap(nullptr, shm::kAssistFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds->file,
                   0)) != MAP_FAILED &&
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0;
  if (!is_ready) *error = errno == ENOSPC ? ENOMEM : errno;
  if (base != MAP_FAILED) {
    // A core dump of the daemon shall not hold its clients' bytes.
    madvise(base, shm::kAssistFileBytes, MADV_DONTDUMP);
    assistant->area_ = new (base) shm::AssistArea();
    assistant->staging_ = static_cast<std::byte*>(base) + shm::kAssistStagingOffset;
  }
  assistant->socket_ = ends[0];
  fds->socket = ends[1];
  if (is_ready) return assistant;
  if (fds->file >= 0) close(fds->file);
  *fds = {};
  return nullptr;
}

Assistant::~Assistant() {
  if (area_ != nullptr) munmap(area_, shm::kAssistFileBytes);
  if (socket_ >= 0) close(socket_);
}

void Assistant::End() {
  has_ended_.store(true, std::memory_order_release);
  shutdown(socket_, SHUT_RDWR);
}

bool Assistant::RingHelper() {
  const char bell = 0;
  for (;;) {
    if (send(socket_, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    // A full socket wakes it just as well.
    if (errno != EINTR) return errno == EAGAIN;
  }
}

// False: there will be none. *hangs: it is counted among those that hang.
bool Assistant::AwaitRing(bool* hangs) {
  for (;;) {
    pollfd event = {socket_, POLLIN, 0};
    const int ready = poll(&event, 1, *hangs || hanging_ == nullptr ? -1 : kPatienceMs);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (ready < 0) continue;
    *hangs = true;
    hanging_->fetch_add(1, std::memory_order_release);
    tell_();
  }
}

// False: there will be none.
bool Assistant::AwaitAnswer(uint32_t number) {
  // Acquire throughout: pairs with the helper's store of its answer.
  for (uint32_t i = 0; i < spins_; ++i) {
    if (area_->answered.load(std::memory_order_acquire) == number) {
      spins_ = std::min(spins_ * 2, kSpinsMax);
      return true;
    }
    Pause();
  }
  spins_ = std::max(spins_ / 2, kSpinsMin);
  // Says so, then looks again: pairs with the helper, which answers and then looks whether we wait.
  area_->nic_waits.store(1, std::memory_order_seq_cst);
  bool is_answered = area_->answered.load(std::memory_order_seq_cst) == number;
  bool hangs = false;
  for (uint32_t rings = 0; !is_answered && rings < kIdleRingsMax; ++rings) {
    if (!AwaitRing(&hangs)) break;
    char bells[64];
    const ssize_t n = recv(socket_, bells, sizeof(bells), MSG_DONTWAIT);
    is_answered = area_->answered.load(std::memory_order_acquire) == number;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  if (hangs) hanging_->fetch_sub(1, std::memory_order_release);
  area_->nic_waits.store(0, std::memory_order_relaxed);
  return is_answered;
}

int64_t Assistant::Transfer(shm::AssistKind kind, const iovec* remote, uint32_t pieces,
                            uint64_t bytes) {
  static_assert(sizeof(iovec) == sizeof(shm::AssistPiece));
  if (HasEnded()) return -EIO;
  area_->kind = static_cast<uint32_t>(kind);
  area_->piece_count = pieces;
  for (uint32_t i = 0; i < pieces; ++i) {
    area_->pieces[i] = {reinterpret_cast<uint64_t>(remote[i].iov_base), remote[i].iov_len};
  }
  number_ += 1;
  // seq_cst: pairs with the helper, which says that it sleeps and then looks here.
  area_->requested.store(number_, std::memory_order_seq_cst);
  const bool sleeps = area_->helper_sleeps.load(std::memory_order_seq_cst) != 0;
  if ((sleeps && !RingHelper()) || !AwaitAnswer(number_)) {
    End();
    return -EIO;
  }
  const int64_t result = static_cast<volatile shm::AssistArea*>(area_)->result;
  if (result < 0 || static_cast<uint64_t>(result) > bytes) return -EFAULT;
  return result;
}

int64_t Assistant::Read(const iovec* local, uint32_t local_pieces, const iovec* remote,
                        uint32_t pieces) {
  const uint64_t bytes = TotalBytes(remote, pieces);
  VERBENA_CHECK(pieces <= shm::kAssistPiecesMax && bytes <= shm::kAssistStagingBytes);
  VERBENA_CHECK(bytes <= TotalBytes(local, local_pieces));
  std::lock_guard lock(mutex_);
  const int64_t moved = Transfer(shm::AssistKind::kGather, remote, pieces, bytes);
  if (moved <= 0) return moved;
  const iovec staging = {staging_, static_cast<size_t>(moved)};
  return MoveGuarded(local, &staging, static_cast<uint64_t>(moved)) ? moved : -EFAULT;
}

int64_t Assistant::Write(const iovec* local, uint32_t local_pieces, const iovec* remote,
                         uint32_t pieces) {
  const uint64_t bytes = TotalBytes(remote, pieces);
  VERBENA_CHECK(pieces <= shm::kAssistPiecesMax && bytes <= shm::kAssistStagingBytes);
  VERBENA_CHECK(bytes <= TotalBytes(local, local_pieces));
  std::lock_guard lock(mutex_);
  const iovec staging = {staging_, static_cast<size_t>(bytes)};
  if (!MoveGuarded(&staging, local, bytes)) return -EFAULT;
  return Transfer(shm::AssistKind::kScatter, remote, pieces, bytes);
}

}  // namespace verbena::softnic

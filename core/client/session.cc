// The command queue's client end, doorbells and liveness. Attaching is in session_attach.cc.
#include "core/client/session.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/client/no_cancel.h"
#include "core/client/waiting.h"

namespace verbena::client {
namespace {

// Looks at a completion this often before it sleeps. About 10 µs: a shard that is awake answers
// sooner, and one that shares our CPU can't answer while we look.
constexpr int kSpinPolls = 300;

void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

std::atomic<uint32_t> Session::process_fork_generation_{0};

void Session::CountForks() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { process_fork_generation_.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;  // ENOMEM: a child's calls are then refused no more, as on hardware
}

bool Session::IsAlive() {
  if (KnownDead()) return false;
  bool alive = status_->stopping.load(std::memory_order_acquire) == 0;
  if (alive) {
    NoCancel no_cancel;
    int saved = errno;
    pollfd entry = {socket_fd_, POLLRDHUP, 0};  // hang-up of the daemon's end, or a closed fd
    alive = poll(&entry, 1, 0) <= 0;            // an interrupted poll says nothing
    errno = saved;
  }
  if (!alive) MarkDead();
  return alive;
}

void Session::WakeNic(uint32_t sleep) {
  NoCancel no_cancel;
  int saved = errno;
  uint64_t one = 1;
  // A full counter (EAGAIN) already wakes the NIC, and there is nobody to tell of other failures.
  [[maybe_unused]] ssize_t written = write(doorbell_fd_, &one, sizeof(one));
  woken_from_.store(sleep, std::memory_order_relaxed);
  errno = saved;
}

int Session::ClaimSlot() {
  for (;;) {
    uint64_t free_slots = free_slots_.load(std::memory_order_relaxed);
    while (free_slots != 0) {
      int slot = __builtin_ctzll(free_slots);
      // Acquire: pairs with ReleaseSlot, the last holder's writes to slot_uses_ come first.
      if (free_slots_.compare_exchange_weak(free_slots, free_slots & ~(uint64_t{1} << slot),
                                            std::memory_order_acquire, std::memory_order_relaxed)) {
        return slot;
      }
    }
    // Announce, then look again: pairs with ReleaseSlot, which frees, then looks for waiters.
    slot_waiters_.fetch_add(1, std::memory_order_seq_cst);
    uint32_t releases = slot_releases_.load(std::memory_order_seq_cst);
    if (free_slots_.load(std::memory_order_seq_cst) == 0) {
      FutexWait(slot_releases_, releases, kLivenessIntervalMs, /*shared=*/false);
    }
    slot_waiters_.fetch_sub(1, std::memory_order_seq_cst);
    if (!IsAlive()) return -1;
  }
}

void Session::ReleaseSlot(int slot) {
  free_slots_.fetch_or(uint64_t{1} << slot, std::memory_order_seq_cst);
  if (slot_waiters_.load(std::memory_order_seq_cst) != 0) {
    slot_releases_.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeOne(slot_releases_);
  }
}

bool Session::AwaitCompletion(const shm::CommandCompletion& completion, uint32_t use) {
  // Acquire throughout: pairs with the NIC's release of `done` after the reply.
  for (int i = 0; i < kSpinPolls; ++i) {
    if (completion.done.load(std::memory_order_acquire) == use) return true;
    SpinPause();
  }
  for (;;) {
    uint32_t seen = completion.done.load(std::memory_order_acquire);
    if (seen == use) return true;
    FutexWait(completion.done, seen, kLivenessIntervalMs, /*shared=*/true);
    if (completion.done.load(std::memory_order_acquire) == use) return true;
    // A daemon that died may have finished this command before.
    if (!IsAlive()) return completion.done.load(std::memory_order_acquire) == use;
  }
}

int Session::Execute(shm::CommandOp op, const void* request, uint32_t request_bytes, void* reply,
                     uint32_t reply_bytes, uint32_t* detail) {
  if (detail != nullptr) *detail = 0;
  if (request_bytes > shm::kCommandPayloadBytes || reply_bytes > shm::kCommandPayloadBytes) {
    return EINVAL;
  }
  if (KnownDead()) return EIO;
  NoCancel no_cancel;
  int index = ClaimSlot();
  if (index < 0) return EIO;

  shm::CommandSlot& slot = control_->slots[index];
  slot.request.op = static_cast<uint32_t>(op);
  slot.request.payload_bytes = request_bytes;
  if (request_bytes != 0) std::memcpy(slot.request.payload, request, request_bytes);
  uint32_t use = ++slot_uses_[index];
  // Release: pairs with the NIC's acquire of `submitted`.
  slot.submitted.store(use, std::memory_order_release);
  RingDoorbell({static_cast<uint32_t>(index)});
  // After a failure the slot stays taken: the NIC may still write to it, and no later command of
  // this session will be answered anyway.
  if (!AwaitCompletion(slot.completion, use)) return EIO;

  int error = slot.completion.error;
  if (detail != nullptr) *detail = slot.completion.detail;
  if (error == 0 && reply_bytes != 0) {
    uint32_t sent = slot.completion.payload_bytes;
    uint32_t copied = sent < reply_bytes ? sent : reply_bytes;
    std::memcpy(reply, slot.completion.payload, copied);
    std::memset(static_cast<uint8_t*>(reply) + copied, 0, reply_bytes - copied);
  }
  ReleaseSlot(index);
  return error;
}

}  // namespace verbena::client

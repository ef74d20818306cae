#include "core/client/assist_mover.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "core/client/waiting.h"

// glibc 2.34 moved it to libc under a new version; the old one is there as before.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
#endif

namespace verbena::client {

struct Mover {
  shm::AssistArea* area = nullptr;
  void* mapped = MAP_FAILED;
  int socket_fd = -1;
  MoveFunctions functions;
  std::atomic<uint32_t> has_ended{0};  // futex word
};

namespace {

// As of the helper: some microseconds, in which a NIC that is busy asks again.
constexpr uint32_t kSpinsMax = 300;
constexpr uint32_t kSpinsMin = 4;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t Move(const Mover& mover) {
  const shm::AssistArea& area = *mover.area;
  const uint32_t count = area.piece_count;
  if (count > shm::kAssistPiecesMax) return -EINVAL;
  shm::AssistPiece pieces[shm::kAssistPiecesMax];
  memcpy(pieces, area.pieces, count * sizeof(pieces[0]));
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (pieces[i].bytes > shm::kAssistStagingBytes - bytes) return -EINVAL;
    bytes += pieces[i].bytes;
  }
  auto* staging = static_cast<char*>(mover.mapped) + shm::kAssistStagingOffset;
  const MoveFunctions& functions = mover.functions;
  if (area.kind == static_cast<uint32_t>(shm::AssistKind::kGather)) {
    return functions.gather(functions.context, staging, pieces, count);
  }
  return functions.scatter(functions.context, pieces, count, staging, bytes);
}

void Serve(Mover* mover, uint32_t number) {
  shm::AssistArea* area = mover->area;
  area->result = Move(*mover);
  // seq_cst: pairs with the NIC, which says that it waits and then looks here.
  area->answered.store(number, std::memory_order_seq_cst);
  if (area->nic_waits.load(std::memory_order_seq_cst) == 0) return;
  const char bell = 0;
  send(mover->socket_fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// False: there will be no request any more.
bool Sleep(const Mover& mover) {
  pollfd event = {mover.socket_fd, POLLIN, 0};
  if (poll(&event, 1, -1) <= 0) return true;
  char bells[64];
  const ssize_t n = recv(mover.socket_fd, bells, sizeof(bells), MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void* Run(void* argument) {
  auto* mover = static_cast<Mover*>(argument);
  shm::AssistArea* area = mover->area;
  uint32_t served = 0;
  uint32_t spins = kSpinsMin;
  for (bool goes_on = true; goes_on;) {
    uint32_t number = served;
    for (uint32_t i = 0; i < spins && number == served; ++i) {
      if (i != 0) Pause();
      number = area->requested.load(std::memory_order_acquire);
    }
    if (number != served) {
      spins = spins * 2 < kSpinsMax ? spins * 2 : kSpinsMax;
    } else {
      spins = spins / 2 > kSpinsMin ? spins / 2 : kSpinsMin;
      // Says so, then looks again: pairs with the NIC, which asks and then looks whether we sleep.
      area->helper_sleeps.store(1, std::memory_order_seq_cst);
      number = area->requested.load(std::memory_order_seq_cst);
      if (number == served) goes_on = Sleep(*mover);
      area->helper_sleeps.store(0, std::memory_order_relaxed);
    }
    if (number == served) continue;
    Serve(mover, number);
    served = number;
  }
  mover->has_ended.store(1, std::memory_order_release);  // pairs with StopMover
  FutexWakeOne(mover->has_ended);
  return nullptr;
}

int StartThread(Mover* mover) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return ENOMEM;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);  // of this thread alone, on Linux
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, Run, mover);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

void Free(Mover* mover) {
  if (mover->mapped != MAP_FAILED) munmap(mover->mapped, shm::kAssistFileBytes);
  if (mover->socket_fd >= 0) close(mover->socket_fd);
  delete mover;
}

}  // namespace

int StartMover(int area_fd, int socket_fd, const MoveFunctions& functions, Mover** out) {
  *out = nullptr;
  auto* mover = new (std::nothrow) Mover();
  if (mover == nullptr) {
    close(area_fd);
    close(socket_fd);
    return ENOMEM;
  }
  mover->socket_fd = socket_fd;
  mover->functions = functions;
  mover->mapped =
      mmap(nullptr, shm::kAssistFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, area_fd, 0);
  close(area_fd);
  int error = mover->mapped == MAP_FAILED ? ENOMEM : 0;
  if (error == 0 && madvise(mover->mapped, shm::kAssistFileBytes, MADV_DONTFORK) != 0) {
    error = EOPNOTSUPP;
  }
  mover->area = static_cast<shm::AssistArea*>(mover->mapped);
  if (error == 0) error = StartThread(mover);
  if (error != 0) {
    Free(mover);
    return error;
  }
  *out = mover;
  return 0;
}

void StopMover(Mover* mover) {
  shutdown(mover->socket_fd, SHUT_RDWR);
  while (mover->has_ended.load(std::memory_order_acquire) == 0) {
    constexpr int kLookMs = 100;
    FutexWait(mover->has_ended, 0, kLookMs, /*shared=*/false);
  }
  Free(mover);
}

void ForgetMover(Mover* mover) {
  mover->mapped = MAP_FAILED;  // not there in a child
  Free(mover);
}

}  // namespace verbena::client

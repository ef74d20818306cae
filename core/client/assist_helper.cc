// The helper's own code. It shares memory with a host that may end, or reuse, any thread's stack
// and thread-local storage at any time: so it calls no library, has no errno, no stack protector
// and no sanitizer, and is alone on a stack of its own. It handles no signal, and a bad address is
// the kernel's to find.
#include "core/client/assist_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/sched_attr.h"

// Nothing of the host's may be needed to run these.
#define VERBENA_BARE \
  __attribute__((no_stack_protector, no_sanitize("address", "thread", "undefined")))

namespace verbena::client::internal {
namespace {

static_assert(sizeof(shm::AssistPiece) == sizeof(iovec));

// Looks at the area this often before it sleeps, while it has found something lately: some
// microseconds, in which a NIC that is busy asks again.
constexpr uint32_t kSpinsMax = 300;
constexpr uint32_t kSpinsMin = 4;

#if defined(__x86_64__)
VERBENA_BARE inline long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0,
                              long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
VERBENA_BARE inline void Pause() { asm volatile("pause"); }
#elif defined(__aarch64__)
VERBENA_BARE inline long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0,
                              long e = 0, long f = 0) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc #0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
}
VERBENA_BARE inline void Pause() { asm volatile("yield"); }
#else
inline long Call(long, ...) { return -ENOSYS; }
inline void Pause() {}
#endif

VERBENA_BARE inline long Address(const volatile void* p) { return reinterpret_cast<long>(p); }

// std::atomic is a library, too.
VERBENA_BARE inline uint32_t* Word(std::atomic<uint32_t>* word) {
  return reinterpret_cast<uint32_t*>(word);
}

[[noreturn]] VERBENA_BARE void Exit() {
  for (;;) Call(SYS_exit_group, 0);
}

VERBENA_BARE void Tell(HelperBlock* block, uint32_t state) {
  __atomic_store_n(Word(&block->state), state, __ATOMIC_RELEASE);  // pairs with the host's acquire
  Call(SYS_futex, Address(Word(&block->state)), FUTEX_WAKE_PRIVATE, 1);
}

[[noreturn]] VERBENA_BARE void Fail(HelperBlock* block, long error) {
  block->error = static_cast<int32_t>(-error);
  Tell(block, kHelperFailed);
  Exit();
}

// All fds but ours: while we hold a copy of the host's, their other ends read no end of file.
VERBENA_BARE long CloseOthers(const HelperBlock* block) {
  long from = 0;
  for (;;) {
    long kept = ~0u;  // the lowest of ours that is not below `from`
    if (block->area_fd >= from && block->area_fd < kept) kept = block->area_fd;
    if (block->socket_fd >= from && block->socket_fd < kept) kept = block->socket_fd;
    if (block->host_pidfd >= from && block->host_pidfd < kept) kept = block->host_pidfd;
    const bool is_last = kept == ~0u;
    if (kept > from) {
      const long error = Call(SYS_close_range, from, is_last ? kept : kept - 1, 0);
      if (error != 0) return error;
    }
    if (is_last) return 0;
    from = kept + 1;
  }
}

// Work, if it is refused, only takes longer.
VERBENA_BARE void AskForShortTurns() {
  SchedulingAttributes attributes;
  if (Call(SYS_sched_getattr, 0, Address(&attributes), sizeof(attributes), 0) != 0) return;
  if (attributes.policy != 0 /* SCHED_OTHER */) return;
  attributes.flags = 0;
  attributes.runtime_ns = kShortTurnNs;
  Call(SYS_sched_setattr, 0, Address(&attributes), 0);
}

VERBENA_BARE void Prepare(HelperBlock* block) {
  // Before anything else: no signal of the host's process group, nor its terminal's.
  unsigned long all = ~0ul;
  Call(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, Address(&all), 0, sizeof(all));
  Call(SYS_setsid);
  if (const long error = CloseOthers(block); error != 0) Fail(block, error);
  const char root[] = {'/', 0};  // what the host's working directory is on may be unmounted
  Call(SYS_chdir, Address(root));
  const char name[] = {'v', 'e', 'r', 'b', 'e', 'n', 'a', '-', 'd', 'm', 'a', 0};
  Call(SYS_prctl, PR_SET_NAME, Address(name));
  // Files may be smaller than the staging area, by the host's choice: the limit is our own copy.
  rlimit limit = {};
  if (Call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, Address(&limit)) == 0) {
    limit.rlim_cur = limit.rlim_max;
    Call(SYS_prlimit64, 0, RLIMIT_FSIZE, Address(&limit), 0);
  }
  AskForShortTurns();
  // What every request needs, once before anybody relies on it: its last byte.
  char byte = 0;
  iovec piece = {&byte, 1};
  const long last = shm::kAssistFileBytes - 1;
  long n = Call(SYS_preadv, block->area_fd, Address(&piece), 1, last, 0);
  if (n == 1) n = Call(SYS_pwritev, block->area_fd, Address(&piece), 1, last, 0);
  if (n != 1) Fail(block, n < 0 ? n : -EIO);
}

VERBENA_BARE void Serve(const HelperBlock* block, uint32_t number) {
  shm::AssistArea* area = block->area;
  const uint32_t kind = area->kind;
  const uint32_t count = area->piece_count;
  long result = -EINVAL;
  if (count <= shm::kAssistPiecesMax) {
    const bool is_gather = kind == static_cast<uint32_t>(shm::AssistKind::kGather);
    result = Call(is_gather ? SYS_pwritev : SYS_preadv, block->area_fd, Address(area->pieces),
                  count, shm::kAssistStagingOffset, 0);
  }
  area->result = result;
  // seq_cst: pairs with the NIC, which says that it waits and then looks here.
  __atomic_store_n(Word(&area->answered), number, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(Word(&area->nic_waits), __ATOMIC_SEQ_CST) == 0) return;
  const char bell = 0;
  Call(SYS_sendto, block->socket_fd, Address(&bell), 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
}

// Until there may be a request. Ends the helper if there will be none.
VERBENA_BARE void Sleep(const HelperBlock* block) {
  pollfd events[2] = {{block->socket_fd, POLLIN, 0}, {block->host_pidfd, POLLIN, 0}};
  const long ready = Call(SYS_ppoll, Address(events), 2, 0, 0, 0);
  if (ready < 0 && ready != -EINTR && ready != -EAGAIN) Exit();
  if (ready <= 0) return;
  if (events[1].revents != 0) Exit();
  char bells[64];
  const long n = Call(SYS_recvfrom, block->socket_fd, Address(bells), sizeof(bells), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR)) Exit();
}

}  // namespace

VERBENA_BARE int HelperMain(void* argument) {
  auto* block = static_cast<HelperBlock*>(argument);
  Prepare(block);
  Tell(block, kHelperWorks);
  shm::AssistArea* area = block->area;
  uint32_t served = 0;
  uint32_t spins = kSpinsMin;
  for (;;) {
    uint32_t number = served;
    for (uint32_t i = 0; i < spins && number == served; ++i) {
      if (i != 0) Pause();
      number = __atomic_load_n(Word(&area->requested), __ATOMIC_ACQUIRE);
    }
    if (number != served) {
      spins = spins * 2 < kSpinsMax ? spins * 2 : kSpinsMax;
    } else {
      spins = spins / 2 > kSpinsMin ? spins / 2 : kSpinsMin;
      // Says so, then looks again: pairs with the NIC, which asks and then looks whether we sleep.
      __atomic_store_n(Word(&area->helper_sleeps), 1, __ATOMIC_SEQ_CST);
      number = __atomic_load_n(Word(&area->requested), __ATOMIC_SEQ_CST);
      if (number == served) Sleep(block);
      __atomic_store_n(Word(&area->helper_sleeps), 0, __ATOMIC_RELAXED);
    }
    if (number == served) continue;
    Serve(block, number);
    served = number;
  }
}

}  // namespace verbena::client::internal

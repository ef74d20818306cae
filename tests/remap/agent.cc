#include "tests/remap/agent.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/remap/state.h"
#include "tests/remap/world.h"

namespace verbena::remap {

using client::Mapping;
using programs::Random;

How how = How::kOff;
int64_t calls_until_step = 0;
State state;

namespace {

std::atomic<bool> is_ending{false};
Random* random_numbers = nullptr;
alignas(Random) char random_space[sizeof(Random)];
thread_local bool is_inside __attribute__((tls_model("initial-exec"))) = false;

const char* ProgramName() { return program_invocation_short_name; }

void ReportWith(const char* difference) {
  const Counts& c = state.counts;
  char line[1400];
  std::snprintf(
      line, sizeof(line),
      "{\"pid\": %d, \"program\": \"%.40s\", \"seed\": %llu, \"steps\": %llu, \"registered\": "
      "%llu, "
      "\"refused\": %llu, \"deregistered\": %llu, \"compared\": %llu, \"bytes\": %llu, "
      "\"atomics\": %llu, \"blocks\": %llu, \"stale\": %llu, \"flickers\": %llu, \"errors\": %llu, "
      "\"mapped_bytes\": %llu, \"forks\": %llu, \"stops\": %llu, \"stop_failures\": %llu, "
      "\"difference\": \"%.600s\"}\n",
      static_cast<int>(state.pid), ProgramName(), static_cast<unsigned long long>(state.seed),
      static_cast<unsigned long long>(c.steps), static_cast<unsigned long long>(c.registered),
      static_cast<unsigned long long>(c.refused), static_cast<unsigned long long>(c.deregistered),
      static_cast<unsigned long long>(c.compared), static_cast<unsigned long long>(c.bytes),
      static_cast<unsigned long long>(c.atomics), static_cast<unsigned long long>(c.blocks),
      static_cast<unsigned long long>(c.stale), static_cast<unsigned long long>(c.flickers),
      static_cast<unsigned long long>(c.errors),
      static_cast<unsigned long long>(c.mapped_bytes_max), static_cast<unsigned long long>(c.forks),
      static_cast<unsigned long long>(world_stops),
      static_cast<unsigned long long>(world_stop_failures), difference);
  Append(line);
}

bool IsForcedMapped() {
  const char* wanted = getenv("VERBENA_DMA");
  return wanted != nullptr && std::strcmp(wanted, "mapped") == 0;
}

}  // namespace

Random& Draw() { return *random_numbers; }

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void Append(const char* line) {
  rlimit limit;
  // Writing might be the death of who may write no files.
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return;
  const int fd = open(state.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return;
  (void)!write(fd, line, std::strlen(line));
  close(fd);
}

[[noreturn]] void Differ(const char* what) {
  ReportWith(what);
  if (IsWorldStopped()) LetWorldGo();
  syscall(SYS_exit_group, kExitDifference);
  __builtin_trap();
}

namespace {

// --- steps ---------------------------------------------------------------------------------------

// Plain loops: memcpy and memcmp may be a sanitizer's.
void Copy(uint8_t* to, const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = const_cast<const volatile uint8_t*>(from)[i];
}

// The library's own record of the objects used here, with its locks, and libc's of this thread,
// with whether it may be cancelled: the NIC may look before what posted has returned, if it takes
// our CPU for that.
bool IsRecord(const uint8_t* at) {
  const void* const records[] = {state.context, state.qp,
                                 state.peer,    state.cq,
                                 state.peer_cq, reinterpret_cast<void*>(pthread_self())};
  constexpr uintptr_t kBefore = 256, kAfter = 4096;
  return std::any_of(std::begin(records), std::end(records), [at](const void* record) {
    return reinterpret_cast<uintptr_t>(at) - (reinterpret_cast<uintptr_t>(record) - kBefore) <
           kBefore + kAfter;
  });
}

// Compares what the NIC sees of a region with what is there. Bytes that change from one look to the
// next are nobody's fault; those that differ the same way each time are.
void Compare(const Held& held, const char* when) {
  const auto* at = static_cast<const uint8_t*>(held.mr->addr);
  const size_t bytes = held.mr->length;
  constexpr int kLooks = 6;
  size_t where = bytes;
  for (int look = 0; look < kLooks; ++look) {
    uint8_t* seen;
    Copy(state.snapshot, at, bytes);
    if (!NicReads(held.mr, reinterpret_cast<uintptr_t>(at), bytes, &seen)) {
      state.has_failed = true;
      return;
    }
    size_t first = bytes;
    for (size_t i = 0; i < bytes; ++i) {
      if (seen[i] != state.snapshot[i] && seen[i] != const_cast<const volatile uint8_t*>(at)[i] &&
          (look == 0 || i >= where) && !IsRecord(at + i)) {
        first = i;
        break;
      }
    }
    if (first == bytes) {
      if (look != 0) ++state.counts.flickers;
      ++state.counts.compared;
      state.counts.bytes += bytes;
      return;
    }
    if (look != 0 && first != where) look = 0;  // other bytes than before
    where = first;
    if (look == kLooks - 1) {
      char text[400];
      std::snprintf(
          text, sizeof(text),
          "step %llu: %s: byte %zu of %zu at %p is %02x, the NIC read %02x; %u runs mapped",
          static_cast<unsigned long long>(state.counts.steps), when, where, bytes, held.mr->addr,
          at[where], seen[where], held.run_count);
      Differ(text);
    }
  }
}

// As Compare, with nobody else running; not at all beside threads that write.
void CompareAtRest(const Held& held, const char* when) {
  if (how == How::kBeside) return;
  if (how == How::kParking && !StopWorld()) return;
  if (IsWhereItWas(held)) {
    Compare(held, when);
  } else {
    ++state.counts.stale;
  }
  if (how == How::kParking) LetWorldGo();
}

void RegisterAny() {
  Mapping mapping;
  if (!PickMapping(&mapping)) return;
  const size_t room = mapping.end - mapping.begin;
  size_t bytes = std::min<size_t>(size_t{1} << Draw().Between(0, 22), room);
  bytes = 1 + Draw().Next() % bytes;
  uintptr_t begin = mapping.begin + Draw().Next() % (room - bytes + 1);
  uintptr_t end = begin + bytes;
  if (Draw().Percent(40)) {
    begin &= ~(kPageBytes - 1);
    end = std::min<uintptr_t>((end + kPageBytes - 1) & ~(kPageBytes - 1), mapping.end);
  }
  end = std::min(end, begin + kRangeBytesMax);
  const uint32_t access = mapping.is_writable ? (Draw().Percent(80) ? kAll : kRead) : kRead;
  Held* held = &state.held[state.held_count];
  held->mr = Register(reinterpret_cast<void*>(begin), end - begin, access);
  if (held->mr == nullptr) {
    ++state.counts.refused;
    const bool may_be_refused =
        errno == EFAULT || errno == ENOMEM || (state.is_forced && errno == EOPNOTSUPP);
    if (!may_be_refused) Differ(std::strerror(errno));
    return;
  }
  ++state.counts.registered;
  if (!FindRuns(begin, end, held)) {
    ibv_dereg_mr(held->mr);
    return;
  }
  ++state.held_count;
  CompareAtRest(*held, "registered");
}

void Deregister(uint32_t index) {
  if (ibv_dereg_mr(state.held[index].mr) != 0) Differ("a region can't be deregistered");
  ++state.counts.deregistered;
  state.held[index] = state.held[--state.held_count];
}

void LookAtHeld() {
  const uint32_t index = Draw().Below(state.held_count);
  Held& held = state.held[index];
  CompareAtRest(held, "held");
  if (how == How::kCalls && !IsWhereItWas(held)) Deregister(index);
}

// Adds nothing to a word of the program's: right beside anybody, as the NIC's atomics are the CPU's
// there. Where memory is not mapped they are not.
void AddNothing() {
  const Held& held = state.held[Draw().Below(state.held_count)];
  if (held.run_count == 0 || held.is_odd || how == How::kBeside) return;
  const Run& run = held.runs[Draw().Below(held.run_count)];
  const uintptr_t begin = (run.begin + 7) & ~uintptr_t{7};
  if (begin + 8 > run.end) return;
  if (how == How::kParking && !StopWorld()) return;
  ibv_sge sge = {reinterpret_cast<uint64_t>(state.seen), 8, state.seen_mr->lkey};
  ibv_send_wr wr = Request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 0, 0);
  wr.wr.atomic.remote_addr = begin + (Draw().Next() % ((run.end - begin) / 8)) * 8;
  wr.wr.atomic.rkey = held.mr->rkey;
  if (IsWhereItWas(held) && (held.mr->length >= 8)) {
    if (Execute(&wr)) {
      ++state.counts.atomics;
    } else {
      state.has_failed = true;  // READ only, most likely
    }
  }
  if (how == How::kParking) LetWorldGo();
}

uint8_t Expected(const Block& block, size_t i) {
  return static_cast<uint8_t>((block.seed + i) * 0x9e37'79b9 >> 13);
}

void FillBlock(const Block& block) {
  for (size_t i = 0; i < block.bytes; ++i) block.at[i] = Expected(block, i);
}

void CheckBlock(const Block& block, size_t bytes, const char* when) {
  for (size_t i = 0; i < bytes; ++i) {
    if (block.at[i] == Expected(block, i)) continue;
    char text[300];
    std::snprintf(text, sizeof(text), "step %llu: %s: byte %zu of %zu at %p is %02x, not %02x",
                  static_cast<unsigned long long>(state.counts.steps), when, i, block.bytes,
                  static_cast<void*>(block.at), block.at[i], Expected(block, i));
    Differ(text);
  }
}

void NewBlock() {
  Block& block = state.blocks[state.block_count];
  block = {};
  block.bytes = 1 + Draw().Next() % (size_t{1} << Draw().Between(4, 20));
  const bool is_zeroed = Draw().Percent(30);
  block.at = static_cast<uint8_t*>(is_zeroed ? calloc(1, block.bytes) : malloc(block.bytes));
  if (block.at == nullptr) return;
  for (size_t i = 0; is_zeroed && i < block.bytes; ++i) {
    if (block.at[i] != 0) Differ("calloc gave memory that is not zero");
  }
  block.seed = Draw().Next();
  FillBlock(block);
  if (Draw().Percent(70)) block.mr = Register(block.at, block.bytes, kAll);
  CheckBlock(block, block.bytes, "registering a block");
  ++state.block_count;
  ++state.counts.blocks;
}

// The NIC writes new contents.
void WriteBlock(Block* block) {
  if (block->mr == nullptr) return;
  Block next = *block;
  next.seed = Draw().Next();
  uint8_t* source = state.seen + Draw().Below(64);
  for (size_t i = 0; i < next.bytes; ++i) source[i] = Expected(next, i);
  ibv_sge sge = {reinterpret_cast<uint64_t>(source), static_cast<uint32_t>(next.bytes),
                 state.seen_mr->lkey};
  ibv_send_wr wr =
      Request(IBV_WR_RDMA_WRITE, &sge, reinterpret_cast<uint64_t>(next.at), next.mr->rkey);
  if (Draw().Percent(50)) {
    sge = {reinterpret_cast<uint64_t>(next.at), static_cast<uint32_t>(next.bytes), next.mr->lkey};
    wr = Request(IBV_WR_RDMA_READ, &sge, reinterpret_cast<uint64_t>(source), state.seen_mr->rkey);
  }
  if (!Execute(&wr)) Differ("the NIC can't write to a block");
  *block = next;
  CheckBlock(*block, block->bytes, "what the NIC wrote to a block");
}

void EndBlock(uint32_t index) {
  Block& block = state.blocks[index];
  CheckBlock(block, block.bytes, "a block kept for a while");
  if (block.mr != nullptr && ibv_dereg_mr(block.mr) != 0) Differ("a block can't be deregistered");
  block.mr = nullptr;
  if (Draw().Percent(40)) {
    const size_t kept = block.bytes;
    const size_t bytes = 1 + Draw().Next() % (2 * kept);
    auto* moved = static_cast<uint8_t*>(realloc(block.at, bytes));
    if (moved != nullptr) {
      block.at = moved;
      block.bytes = bytes;
      CheckBlock(block, std::min(kept, bytes), "a block of another size");
      FillBlock(block);
      return;
    }
  }
  free(block.at);
  block = state.blocks[--state.block_count];
}

void StepBlocks() {
  const uint32_t what = Draw().Below(100);
  if (state.block_count == 0 || (what < 35 && state.block_count < kBlocksMax)) return NewBlock();
  const uint32_t index = Draw().Below(state.block_count);
  if (what < 75) return WriteBlock(&state.blocks[index]);
  EndBlock(index);
}

void Step() {
  if (state.is_broken) return;
  if (!state.is_open) {
    state.is_open = true;
    state.is_broken = !OpenNic();
    if (state.is_broken) Append("{\"no NIC\": true}\n");
    return;
  }
  ++state.counts.steps;
  if (state.has_failed) Reconnect();
  if (state.is_broken) return;
  const uint32_t what = Draw().Below(100);
  if (what < 25) return StepBlocks();
  if (state.held_count == 0 || (what < 60 && state.held_count < kHeldMax)) return RegisterAny();
  if (what < 80) return LookAtHeld();
  if (what < 85) return AddNothing();
  Deregister(Draw().Below(state.held_count));
}

// --- life ----------------------------------------------------------------------------------------

uint64_t HashOf(const char* text) {
  uint64_t hash = 14695981039346656037u;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 1099511628211u;
  return hash;
}

void Seed(uint64_t seed) {
  random_numbers = new (random_space) Random(seed);
  calls_until_step = static_cast<int64_t>(1 + Draw().Next() % (2 * state.every));
}

void* RunThread(void*) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  is_inside = true;
  while (!is_ending.load()) {
    const timespec pause = {0, static_cast<long>(state.every) * 1000};
    nanosleep(&pause, nullptr);  // the pace of the test
    Step();
  }
  return nullptr;
}

// The child has its parent's regions no more, and draws other numbers.
void AfterForkInChild() {
  state.pid = getpid();
  state.is_open = state.is_broken = false;
  state.held_count = state.block_count = 0;
  const uint64_t forks = state.counts.forks;
  state.counts = {};
  state.seed = state.seed * 31 + forks;
  Seed(state.seed);
  if (how != How::kCalls) how = How::kOff;
}

void BeforeFork() { ++state.counts.forks; }

__attribute__((constructor)) void Begin() {
  const char* seed = getenv("VERBENA_REMAP_SEED");
  const char* log = getenv("VERBENA_REMAP_LOG");
  const char* way = getenv("VERBENA_REMAP_HOW");
  const char* every = getenv("VERBENA_REMAP_EVERY");
  const char* only = getenv("VERBENA_REMAP_ONLY");
  if (seed == nullptr || log == nullptr || way == nullptr) return;
  if (only != nullptr && std::strcmp(only, ProgramName()) != 0) return;
  std::snprintf(state.log, sizeof(state.log), "%s", log);
  state.pid = getpid();
  state.every = every == nullptr ? 100 : std::max<uint64_t>(1, std::strtoull(every, nullptr, 10));
  state.seed = std::strtoull(seed, nullptr, 10) + HashOf(ProgramName());
  state.is_forced = IsForcedMapped();
  Seed(state.seed);
  pthread_atfork(BeforeFork, nullptr, AfterForkInChild);
  if (std::strcmp(way, "calls") == 0) {
    how = How::kCalls;
    return;
  }
  how = std::strcmp(way, "parking") == 0 ? How::kParking : How::kBeside;
  const char* stop_signal = getenv("VERBENA_REMAP_SIGNAL");
  if (how == How::kParking) {
    PrepareToStop(stop_signal != nullptr ? std::atoi(stop_signal) : kStopSignal);
  }
  pthread_create(&state.thread, nullptr, RunThread, nullptr);
}

// The library's own end comes after.
__attribute__((destructor)) void End() {
  if (how == How::kBeside || how == How::kParking) {
    is_ending.store(true);
    pthread_join(state.thread, nullptr);
  }
  Report();
}

}  // namespace

// In a child of vfork nothing is done: its memory is its parent's. Nor within a call of the
// library's: it may hold locks.
void StepAtCall(const void* caller) {
  if (is_inside) return;
  const int saved = errno;
  is_inside = true;
  Dl_info library;
  const bool is_library = dladdr(caller, &library) != 0 && library.dli_fname != nullptr &&
                          std::strstr(library.dli_fname, "/libibverbs.so") != nullptr;
  if (is_library) {
    calls_until_step = 1;
  } else if (syscall(SYS_getpid) == state.pid && syscall(SYS_gettid) == state.pid) {
    Step();
    calls_until_step = static_cast<int64_t>(1 + Draw().Next() % (2 * state.every));
  } else {
    calls_until_step = 1000;
  }
  is_inside = false;
  errno = saved;
}

bool EnterFork() {
  const bool was_inside = is_inside;
  is_inside = true;
  return was_inside;
}
void LeaveFork(bool was_inside) { is_inside = was_inside; }

void Report() {
  if (how == How::kOff || state.counts.steps == 0 || syscall(SYS_getpid) != state.pid) return;
  how = How::kOff;
  ReportWith("");
}

}  // namespace verbena::remap

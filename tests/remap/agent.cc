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

#include "core/client/maps_reader.h"
#include "tests/conformance/connect_rc.h"
#include "tests/programs/random.h"
#include "tests/remap/world.h"

namespace verbena::remap {

How how = How::kOff;
int64_t calls_until_step = 0;

namespace {

using client::Mapping;
using client::MapsReader;
using programs::Random;

constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kRangeBytesMax = 4 << 20;
constexpr uint32_t kHeldMax = 24;
constexpr uint32_t kRunsMax = 24;
constexpr uint32_t kBlocksMax = 32;
constexpr uint8_t kReadsMax = 4;
constexpr uint32_t kRead = IBV_ACCESS_REMOTE_READ;
constexpr uint32_t kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int64_t kFlagLimitNs = 60'000'000'000;

// Consecutive pages of the NIC's file, as a region had them when it was registered.
struct Run {
  uintptr_t begin, end;
  uint64_t inode, offset;
};

struct Held {
  ibv_mr* mr;
  Run runs[kRunsMax];
  uint32_t run_count;
  bool is_odd;  // more runs than these
};

// The agent's own, in the program's heap: what is in it is known.
struct Block {
  uint8_t* at;
  size_t bytes;
  uint64_t seed;
  ibv_mr* mr;
};

struct Counts {
  uint64_t steps, registered, refused, deregistered, compared, bytes, atomics, blocks, stale,
      flickers, errors, mapped_bytes_max, forks;
};

struct State {
  pid_t pid;
  bool is_open, is_broken, has_failed;  // a request has: not to be mended while the world stops
  uint64_t seed, every;
  bool is_forced;
  ibv_context* context;
  ibv_pd *pd, *unlocked_pd;
  ibv_td* td;
  ibv_cq *cq, *peer_cq;
  ibv_qp *qp, *peer;
  ibv_gid gid;
  uint8_t* seen;      // what the NIC read
  uint8_t* snapshot;  // what is there
  uint64_t* flag;     // flag[0] is written by the NIC, from flag[1]
  ibv_mr *seen_mr, *flag_mr;
  Held held[kHeldMax];
  uint32_t held_count;
  Block blocks[kBlocksMax];
  uint32_t block_count;
  Counts counts;
  char log[256];
  pthread_t thread;
};

State state;
std::atomic<bool> is_ending{false};
Random* random_numbers = nullptr;
alignas(Random) char random_space[sizeof(Random)];
thread_local bool is_inside __attribute__((tls_model("initial-exec"))) = false;
thread_local bool is_registering __attribute__((tls_model("initial-exec"))) = false;

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

[[noreturn]] void Differ(const char* what) {
  ReportWith(what);
  if (IsWorldStopped()) LetWorldGo();
  syscall(SYS_exit_group, kExitDifference);
  __builtin_trap();
}

// --- the NIC -------------------------------------------------------------------------------------

bool IsForcedMapped() {
  const char* wanted = getenv("VERBENA_DMA");
  return wanted != nullptr && std::strcmp(wanted, "mapped") == 0;
}

ibv_mr* Register(void* at, size_t bytes, uint32_t access) {
  is_registering = true;
  ibv_mr* mr = ibv_reg_mr(state.pd, at, bytes, static_cast<int>(access));
  const int saved = errno;
  is_registering = false;
  if (IsWorldStopped()) LetWorldGo();  // stopped by the hook of open(2)
  errno = saved;
  return mr;
}

ibv_qp* CreateQp() {
  ibv_qp_init_attr attr = {};
  attr.send_cq = state.cq;
  attr.recv_cq = state.peer_cq;
  attr.cap = {16, 1, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  return ibv_create_qp(state.unlocked_pd, &attr);
}

bool ConnectQps() {
  state.qp = CreateQp();
  state.peer = CreateQp();
  if (state.qp == nullptr || state.peer == nullptr) return false;
  return conformance::ConnectRc(state.qp, kAll, state.peer->qp_num, state.gid, 0, kReadsMax) == 0 &&
         conformance::ConnectRc(state.peer, kAll, state.qp->qp_num, state.gid, 0, kReadsMax) == 0;
}

void* MapOwn(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

bool OpenNic() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) return false;
  state.context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  if (state.context == nullptr) return false;
  state.pd = ibv_alloc_pd(state.context);
  state.cq = ibv_create_cq(state.context, 64, nullptr, nullptr, 0);
  state.peer_cq = ibv_create_cq(state.context, 64, nullptr, nullptr, 0);
  // Without locks, which the NIC might see held.
  ibv_td_init_attr td_attr = {};
  state.td = ibv_alloc_td(state.context, &td_attr);
  if (state.pd == nullptr || state.cq == nullptr || state.peer_cq == nullptr ||
      state.td == nullptr) {
    return false;
  }
  ibv_parent_domain_init_attr domain = {};
  domain.pd = state.pd;
  domain.td = state.td;
  state.unlocked_pd = ibv_alloc_parent_domain(state.context, &domain);
  if (state.unlocked_pd == nullptr) return false;
  if (state.seen == nullptr) {
    state.seen = static_cast<uint8_t*>(MapOwn(kRangeBytesMax + 2 * kPageBytes));
    state.snapshot = static_cast<uint8_t*>(MapOwn(kRangeBytesMax + 2 * kPageBytes));
    state.flag = static_cast<uint64_t*>(MapOwn(kPageBytes));
    if (state.seen == nullptr || state.snapshot == nullptr || state.flag == nullptr) return false;
  }
  std::memset(state.seen, 1, kRangeBytesMax + 2 * kPageBytes);
  std::memset(state.snapshot, 1, kRangeBytesMax + 2 * kPageBytes);
  state.seen_mr = Register(state.seen, kRangeBytesMax + kPageBytes, kAll);
  state.flag_mr = Register(state.flag, 2 * sizeof(uint64_t), kAll);
  if (state.seen_mr == nullptr || state.flag_mr == nullptr) return false;
  return ibv_query_gid(state.context, 1, 0, &state.gid) == 0 && ConnectQps();
}

// A request failed, and with it the QPs. What completions say is of no interest any more.
void Reconnect() {
  state.has_failed = false;
  ++state.counts.errors;
  if (state.qp != nullptr) ibv_destroy_qp(state.qp);
  if (state.peer != nullptr) ibv_destroy_qp(state.peer);
  ibv_wc wc;
  while (ibv_poll_cq(state.cq, 1, &wc) > 0 || ibv_poll_cq(state.peer_cq, 1, &wc) > 0) {
  }
  if (!ConnectQps()) state.is_broken = true;
}

ibv_send_wr Request(ibv_wr_opcode opcode, ibv_sge* sge, uint64_t remote, uint32_t rkey) {
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.sg_list = sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  return wr;
}

// Carries one request out. When the NIC does so, and until it says by a flag in memory that it has,
// nothing in this thread writes anywhere: what it reads stands still. So before the request there
// is a message that nobody is ready for until all is posted. False: it failed.
bool Execute(ibv_send_wr* request) {
  const uint64_t number = state.flag[1] + 1;
  state.flag[1] = number;
  ibv_sge from = {reinterpret_cast<uint64_t>(&state.flag[1]), 8, state.flag_mr->lkey};
  ibv_send_wr flag = Request(IBV_WR_RDMA_WRITE, &from, reinterpret_cast<uint64_t>(state.flag),
                             state.flag_mr->rkey);
  flag.send_flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED;
  request->next = &flag;
  ibv_send_wr gate = Request(IBV_WR_SEND, nullptr, 0, 0);
  gate.num_sge = 0;
  gate.next = request;
  ibv_send_wr* bad;
  ibv_recv_wr go = {}, *bad_go;
  ibv_wc wc;
  while (ibv_poll_cq(state.peer_cq, 1, &wc) > 0) {
  }
  if (ibv_post_send(state.qp, &gate, &bad) != 0) return false;
  if (ibv_post_recv(state.peer, &go, &bad_go) != 0) return false;
  const int64_t end_ns = NowNs() + kFlagLimitNs;
  for (uint32_t i = 0; __atomic_load_n(state.flag, __ATOMIC_ACQUIRE) != number; ++i) {
    if (i < 100'000) {
      __builtin_ia32_pause();
      continue;
    }
    // Failed, or slow.
    const int found = ibv_poll_cq(state.cq, 1, &wc);
    if (found < 0 || (found == 1 && wc.status != IBV_WC_SUCCESS)) return false;
    if (found == 1) return true;
    if (NowNs() > end_ns) Differ("a request never completed");
    i = 0;
    syscall(SYS_sched_yield);
  }
  while (ibv_poll_cq(state.cq, 1, &wc) == 0) {
  }
  return wc.status == IBV_WC_SUCCESS;
}

// Has the NIC read [at, at + bytes), by a local or a remote key, to `seen`, where it is a few bytes
// off so that nothing is aligned alike.
bool NicReads(const ibv_mr* mr, uintptr_t at, size_t bytes, uint8_t** seen) {
  *seen = state.seen + Draw().Below(64);
  ibv_sge sge;
  ibv_send_wr wr;
  if (Draw().Percent(50)) {
    sge = {at, static_cast<uint32_t>(bytes), mr->lkey};
    wr = Request(IBV_WR_RDMA_WRITE, &sge, reinterpret_cast<uint64_t>(*seen), state.seen_mr->rkey);
  } else {
    sge = {reinterpret_cast<uint64_t>(*seen), static_cast<uint32_t>(bytes), state.seen_mr->lkey};
    wr = Request(IBV_WR_RDMA_READ, &sge, at, mr->rkey);
  }
  return Execute(&wr);
}

// --- what is where -------------------------------------------------------------------------------

bool IsPayload(const Mapping& mapping) {
  return mapping.is_shared && std::strncmp(mapping.name, "/memfd:verbena-payload", 22) == 0;
}

bool Overlaps(const Mapping& mapping, const void* at, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  return mapping.begin < begin + bytes && begin < mapping.end;
}

// Memory whose reading has no effect. Not the agent's own: it changes while it is compared.
bool MayBePicked(const Mapping& mapping) {
  if (!mapping.is_readable) return false;
  int here;
  if (Overlaps(mapping, &here, 1) || Overlaps(mapping, &state, sizeof(state)) ||
      Overlaps(mapping, state.seen, kRangeBytesMax + 2 * kPageBytes) ||
      Overlaps(mapping, state.snapshot, kRangeBytesMax + 2 * kPageBytes) ||
      Overlaps(mapping, state.flag, kPageBytes)) {
    return false;
  }
  if (IsPayload(mapping)) return true;
  // A file may be cut off meanwhile, a device's memory may act.
  return mapping.inode == 0 && !mapping.is_shared && mapping.name[0] != '(' &&
         (mapping.name[0] == '\0' || std::strcmp(mapping.name, "[heap]") == 0 ||
          std::strncmp(mapping.name, "[anon:", 6) == 0);
}

// One of the mappings, those with writable memory much rather than others.
bool PickMapping(Mapping* out) {
  MapsReader maps;
  Mapping mapping;
  uint32_t weight = 0;
  uint64_t mapped_bytes = 0;
  while (maps.IsOpen() && maps.Next(&mapping)) {
    if (IsPayload(mapping)) mapped_bytes += mapping.end - mapping.begin;
    if (!MayBePicked(mapping)) continue;
    const uint32_t more = !mapping.is_writable ? 1 : mapping.name[0] == '[' ? 40 : 10;
    weight += more;
    if (Draw().Below(weight) < more) *out = mapping;
  }
  state.counts.mapped_bytes_max = std::max(state.counts.mapped_bytes_max, mapped_bytes);
  return weight != 0;
}

// What of the range is in the NIC's file now. False: not all of it may be read.
bool FindRuns(uintptr_t begin, uintptr_t end, Held* held) {
  held->run_count = 0;
  held->is_odd = false;
  MapsReader maps;
  Mapping mapping;
  uintptr_t next = begin;
  while (maps.IsOpen() && maps.Next(&mapping)) {
    const uintptr_t from = std::max(mapping.begin, begin), to = std::min(mapping.end, end);
    if (from >= to) continue;
    if (from != next || !mapping.is_readable) return false;
    next = to;
    if (!IsPayload(mapping)) continue;
    const Run run = {from, to, mapping.inode, mapping.offset + (from - mapping.begin)};
    if (held->run_count == kRunsMax) {
      held->is_odd = true;
    } else {
      held->runs[held->run_count++] = run;
    }
  }
  return next == end;
}

// Whether what the NIC had mapped is where it was: what was unmapped, or mapped anew, it does not
// follow, as no NIC does.
bool IsWhereItWas(const Held& held) {
  static Held now;
  const auto begin = reinterpret_cast<uintptr_t>(held.mr->addr);
  if (!FindRuns(begin, begin + held.mr->length, &now) || held.is_odd || now.is_odd) return false;
  for (uint32_t i = 0; i < held.run_count; ++i) {
    const Run& old = held.runs[i];
    uintptr_t next = old.begin;
    for (uint32_t k = 0; k < now.run_count; ++k) {
      const Run& run = now.runs[k];
      const uintptr_t from = std::max(run.begin, old.begin), to = std::min(run.end, old.end);
      if (from >= to) continue;
      if (from != next || run.inode != old.inode ||
          run.offset - run.begin != old.offset - old.begin) {
        return false;
      }
      next = to;
    }
    if (next != old.end) return false;
  }
  return true;
}

// --- steps ---------------------------------------------------------------------------------------

// Plain loops: memcpy and memcmp may be a sanitizer's.
void Copy(uint8_t* to, const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = const_cast<const volatile uint8_t*>(from)[i];
}

// The library's own record of the objects used here, with its locks: the NIC may look before what
// posted has returned, if it takes our CPU for that.
bool IsRecord(const uint8_t* at) {
  const void* const records[] = {state.context, state.qp, state.peer, state.cq, state.peer_cq};
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

bool IsRegistering() { return is_registering; }

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

// What the agent's parts share: its state, the NIC, and what is where in the program.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "core/client/maps_reader.h"
#include "tests/programs/random.h"

namespace verbena::remap {

constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kRangeBytesMax = 4 << 20;
constexpr uint32_t kHeldMax = 24;
constexpr uint32_t kRunsMax = 24;
constexpr uint32_t kBlocksMax = 32;
constexpr uint32_t kRead = IBV_ACCESS_REMOTE_READ;
constexpr uint32_t kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

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

extern State state;

programs::Random& Draw();
int64_t NowNs();
// One line to the log.
void Append(const char* line);
// The end of the process.
[[noreturn]] void Differ(const char* what);

// --- the NIC (nic.cc) ---

ibv_mr* Register(void* at, size_t bytes, uint32_t access);
bool OpenNic();
// A request failed, and with it the QPs. What completions say is of no interest any more.
void Reconnect();
ibv_send_wr Request(ibv_wr_opcode opcode, ibv_sge* sge, uint64_t remote, uint32_t rkey);
// Carries one request out. When the NIC does so, and until it says by a flag in memory that it has,
// nothing in this thread writes anywhere: what it reads stands still. So before the request there
// is a message that nobody is ready for until all is posted. False: it failed.
bool Execute(ibv_send_wr* request);
// Has the NIC read [at, at + bytes), by a local or a remote key, to `seen`, where it is a few bytes
// off so that nothing is aligned alike.
bool NicReads(const ibv_mr* mr, uintptr_t at, size_t bytes, uint8_t** seen);

// --- what is where (places.cc) ---

// One of the mappings, those with writable memory much rather than others.
bool PickMapping(client::Mapping* out);
// What of the range is in the NIC's file now. False: not all of it may be read.
bool FindRuns(uintptr_t begin, uintptr_t end, Held* held);
// Whether what the NIC had mapped is where it was: what was unmapped, or mapped anew, it does not
// follow, as no NIC does.
bool IsWhereItWas(const Held& held);

}  // namespace verbena::remap

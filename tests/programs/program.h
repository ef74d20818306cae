// A verbs program as data: steps, each one call. What a step means does not depend on the steps
// around it: objects have numbers of their own, so that a program from which steps were removed is
// a program.
//
// Two peers, sides 0 and 1, have a context each, on the first two NICs, and an arena of memory
// each. Addresses are offsets into the arena of their side. QPs come in pairs that only know each
// other.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/v64.h"

namespace verbena::programs {

using Id = uint32_t;  // of an object; 0: none
inline constexpr uint32_t kArenaBytes = 32 * 1024;
inline constexpr uint32_t kDmBytes = 4096;  // device memory of each side
inline constexpr int kArenas = 4;           // of the sides, then their device memory
constexpr uint32_t BytesOf(int arena) { return arena < 2 ? kArenaBytes : kDmBytes; }

// What v64's headers have and v44's lack.
using conformance::v64::kAccessFlushGlobal;
using conformance::v64::kAccessFlushPersistent;
using conformance::v64::kFlushGlobal;
using conformance::v64::kFlushMr;
using conformance::v64::kFlushPersistent;
using conformance::v64::kFlushRange;
using conformance::v64::kWcFlush;
using conformance::v64::kWrFlush;

enum class Op : uint8_t {
  kAllocPd,
  kParentDomain,  // of `pd`, with a thread domain
  kDeallocPd,
  kRegMr,
  kReregMr,  // `mask`: IBV_REREG_MR_CHANGE_*
  kDeregMr,
  kAllocMw,
  kDeallocMw,
  kBindMw,  // ibv_bind_mw, by `qp`
  kCreateCq,
  kResizeCq,
  kDestroyCq,
  kNotifyCq,
  kCreateSrq,
  kModifySrq,  // `mask`: IBV_SRQ_*
  kQuerySrq,
  kDestroySrq,
  kCreateQp,
  kModifyQp,
  kQueryQp,
  kDestroyQp,
  kCreateAh,
  kDestroyAh,
  kAttachMcast,
  kDetachMcast,
  kPostSend,
  kPostRecv,
  kPostSrqRecv,
  kAllocNullMr,
  kRegDmMr,  // `offset`: into the device memory of its side
  kHoldCq,   // it is not polled from now on
  kReleaseCq,
};

struct Sge {
  Id mr = 0;
  uint32_t offset = 0;  // into the arena, or the device memory that `mr` is of
  uint32_t length = 0;
  uint32_t key_flip = 0;  // xor'ed to the key
};

// Both for send and receive queues.
struct Wr {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  uint32_t flags = 0;  // IBV_SEND_*
  std::vector<Sge> sges;
  uint32_t imm = 0;
  // The remote end, or what is to be invalidated: an MR or MW.
  Id remote = 0;
  uint32_t remote_offset = 0;  // in the arena of the peer, or of a zero-based window or region
  uint32_t remote_flip = 0;
  uint32_t key_age = 0;  // of an MW: how many keys ago this one was current
  uint64_t compare_add = 0, swap = 0;
  // FLUSH.
  uint32_t flush_length = 0;
  uint8_t flush_type = kFlushGlobal, flush_level = kFlushRange;
  // UD.
  Id ah = 0, remote_qp = 0;
  uint32_t qkey = 0;
  // BIND_MW.
  Id mw = 0, bind_mr = 0;
  uint32_t bind_offset = 0, bind_length = 0, bind_access = 0;
};

struct Step {
  Op op = Op::kAllocPd;
  int side = 0;
  Id id = 0;  // of what it makes or acts on
  Id pd = 0, send_cq = 0, recv_cq = 0, srq = 0, qp = 0, mr = 0;
  uint32_t offset = 0, length = 0, access = 0;
  uint32_t mask = 0;
  uint32_t entries = 0;  // CQ, SRQ
  uint32_t limit = 0;
  ibv_qp_type type = IBV_QPT_RC;
  ibv_mw_type mw_type = IBV_MW_TYPE_1;
  ibv_qp_cap cap = {};
  bool sq_sig_all = false;
  bool is_extended =
      false;  // ibv_create_cq_ex, ibv_create_qp_ex for ibv_wr_*; of a post: by ibv_wr_*
  bool is_aborted = false;     // of such a post: ibv_wr_abort
  bool to_self = false;        // an AH towards the own NIC; notify: solicited only
  bool to_group = false;       // an AH of the multicast group
  bool other_channel = false;  // a CQ made with the channel of the other side's context
  // Of a post: the next step follows at once, before anything of this one is waited for.
  bool with_next = false;
  Id peer = 0;  // of a QP: its pair's other one
  // What is not named in `mask` is zero. The address, its AV and number are those of the peer.
  ibv_qp_attr attr = {};
  std::vector<Wr> wrs;
  std::string wrong;  // what the generator meant to be wrong with it; empty: nothing
};

using Program = std::vector<Step>;

const char* Name(Op op);
const char* Name(ibv_wr_opcode opcode);
const char* Name(ibv_qp_state state);
// As a C-like call, one line, more for lists of requests.
std::string ToString(const Step& step);
// Whether the step makes the object `id`.
bool IsMaker(Op op);

}  // namespace verbena::programs

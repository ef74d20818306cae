// The shared-memory ABI between a client and the NIC: plain data, fixed layout, little-endian host.
//
// Trust: every word here may hold anything when the daemon reads it. Words marked [client] are
// written by the client, words marked [nic] by the daemon only; the daemon never reads a [nic] word
// back: its progress lives in its own memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/cache_line.h"

namespace verbena::shm {

// Raised with every incompatible change of anything in core/shm. Client and daemon must agree.
inline constexpr uint32_t kAbiVersion = 13;
inline constexpr uint64_t kAbiMagic = 0x0061'6e65'6272'6576;  // "verbena\0"

inline constexpr uint32_t kMaxSge = 32;
inline constexpr uint32_t kMaxInlineBytes = 1024;

// ---------------------------------------------------------------------------------------------
// Work queues

// One scatter/gather element. Same layout as struct ibv_sge.
struct Sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};
static_assert(sizeof(Sge) == 16);

// Values equal enum ibv_wr_opcode.
enum class WrOpcode : uint8_t {
  kRdmaWrite = 0,
  kRdmaWriteWithImm = 1,
  kSend = 2,
  kSendWithImm = 3,
  kRdmaRead = 4,
  kAtomicCmpAndSwp = 5,
  kAtomicFetchAndAdd = 6,
  kLocalInv = 7,
  kBindMw = 8,
  kSendWithInv = 9,
  kTso = 10,
  kDriver1 = 11,
  kFlush = 14,
  kAtomicWrite = 15,
};

// Bits of SendWqe.flags. Values equal enum ibv_send_flags.
inline constexpr uint8_t kSendFence = 1u << 0;
inline constexpr uint8_t kSendSignaled = 1u << 1;
inline constexpr uint8_t kSendSolicited = 1u << 2;
inline constexpr uint8_t kSendInline = 1u << 3;
// Not a program's: the body is SendWqe.small_body, and what is behind the head means nothing.
inline constexpr uint8_t kSendSmallBody = 1u << 7;
inline constexpr uint32_t kSmallBodyBytes = 16;  // an Sge

// Fixed head of a send WQE; the body follows in the same entry: num_sge Sge, or, with kSendInline,
// inline_bytes bytes of payload. A small one is in the head itself (PlaceSendBody): a request is
// one cache line then. Entry stride: SendWqeStride().
struct SendWqe {
  uint64_t wr_id;
  uint8_t opcode;  // WrOpcode
  uint8_t flags;
  uint8_t num_sge;
  uint8_t reserved0;
  uint32_t imm_or_rkey;  // immediate (as in ibv_send_wr.imm_data, big-endian) or rkey to invalidate
  uint64_t remote_addr;
  uint32_t rkey;  // kBindMw has its own meanings for these three: see `bind`
  uint32_t inline_bytes;
  uint32_t ah;           // UD: handle of the address handle
  uint32_t remote_qpn;   // UD
  uint32_t remote_qkey;  // UD
  uint32_t srqn;         // XRC
  union {
    struct {
      uint64_t compare_add;
      uint64_t swap;
    } atomic;
    // kBindMw: imm_or_rkey is the window's rkey from now on, rkey the region's lkey, remote_addr
    // where in the region the window starts.
    struct {
      uint64_t length;
      uint32_t mw;      // handle of the window
      uint32_t access;  // of the window
    } bind;
    // kFlush: of the range; a placement type and a selectivity level as of a FETH.
    struct {
      uint64_t length;
      uint32_t type;
      uint32_t level;
    } flush;
    std::byte small_body[kSmallBodyBytes];  // kSendSmallBody
  };
};
static_assert(sizeof(SendWqe) == 64);

// Where the client writes the body of `wqe`, whose opcode is set: into the head if the opcode has
// nothing of its own there, else to `behind` it. Sets or clears kSendSmallBody.
inline std::byte* PlaceSendBody(SendWqe* wqe, size_t bytes, std::byte* behind) {
  constexpr uint32_t kFitting =
      1u << static_cast<int>(WrOpcode::kRdmaWrite) |
      1u << static_cast<int>(WrOpcode::kRdmaWriteWithImm) |
      1u << static_cast<int>(WrOpcode::kSend) | 1u << static_cast<int>(WrOpcode::kSendWithImm) |
      1u << static_cast<int>(WrOpcode::kRdmaRead) | 1u << static_cast<int>(WrOpcode::kSendWithInv);
  const bool is_small =
      bytes <= kSmallBodyBytes && wqe->opcode < 32 && (kFitting >> wqe->opcode & 1) != 0;
  const auto others = static_cast<uint8_t>(wqe->flags & ~kSendSmallBody);
  wqe->flags = static_cast<uint8_t>(others | (is_small ? kSendSmallBody : 0));
  return is_small ? wqe->small_body : behind;
}
inline std::byte* PlaceSendBody(SendWqe* wqe, size_t bytes) {
  return PlaceSendBody(wqe, bytes, reinterpret_cast<std::byte*>(wqe + 1));
}

// Fixed head of a receive WQE; num_sge Sge follow in the same entry.
struct RecvWqe {
  uint64_t wr_id;
  uint32_t num_sge;
  uint32_t reserved0;
};
static_assert(sizeof(RecvWqe) == 16);

constexpr uint32_t RoundUp(uint32_t n, uint32_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr uint32_t SendWqeStride(uint32_t max_sge, uint32_t max_inline_bytes) {
  uint32_t sge_bytes = max_sge * static_cast<uint32_t>(sizeof(Sge));
  uint32_t body = sge_bytes > max_inline_bytes ? sge_bytes : max_inline_bytes;
  return RoundUp(static_cast<uint32_t>(sizeof(SendWqe)) + body, kCacheLineBytes);
}
constexpr uint32_t RecvWqeStride(uint32_t max_sge) {
  return RoundUp(static_cast<uint32_t>(sizeof(RecvWqe) + max_sge * sizeof(Sge)), 32);
}

// Head of a work queue (SQ, RQ, SRQ) in ring memory; entries follow at kWorkQueueHeadBytes. Where
// the program has the entries in memory of its own, those are the NIC's copies; likewise for CQs.
// Indices are free-running and reduced modulo the power-of-two entry count only on use.
struct WorkQueueHead {
  alignas(64) std::atomic<uint32_t> producer;  // [client] entries published
  alignas(64) std::atomic<uint32_t> consumer;  // [nic] entries whose slot may be written again
  std::atomic<uint32_t> wants_doorbell;  // [nic] of an RQ: 1: ring when something is published
};
inline constexpr uint32_t kWorkQueueHeadBytes = 128;
static_assert(sizeof(WorkQueueHead) == kWorkQueueHeadBytes);

// ---------------------------------------------------------------------------------------------
// Completion queues

// Values equal enum ibv_wc_opcode.
enum class WcOpcode : uint8_t {
  kSend = 0,
  kRdmaWrite = 1,
  kRdmaRead = 2,
  kCompSwap = 3,
  kFetchAdd = 4,
  kBindMw = 5,
  kLocalInv = 6,
  kTso = 7,
  kFlush = 8,
  kAtomicWrite = 9,
  kRecv = 128,
  kRecvRdmaWithImm = 129,
};

// Bits of Cqe.wc_flags. Values equal enum ibv_wc_flags.
inline constexpr uint16_t kWcGrh = 1u << 0;
inline constexpr uint16_t kWcWithImm = 1u << 1;
inline constexpr uint16_t kWcWithInv = 1u << 3;
// The NIC's own, in completions of marked receives (rdm.h): no more messages come into this one;
// and that is all that the completion says, there is no message.
inline constexpr uint16_t kWcRecvReleased = 1u << 15;
inline constexpr uint16_t kWcRecvNoMessage = 1u << 14;

struct Cqe {
  uint64_t wr_id;
  uint64_t timestamp_ns;  // device clock at completion
  uint32_t byte_len;
  uint32_t imm_or_rkey;  // big-endian immediate, or the invalidated rkey
  uint32_t qpn;
  uint32_t src_qpn;
  uint32_t vendor_err;  // core/shm/vendor_err.h explains
  uint32_t qp_handle;   // which QP object of the session (QPNs of other NICs may repeat)
  uint16_t wc_flags;
  uint16_t pkey_index;
  uint8_t status;  // WcStatus
  uint8_t opcode;  // WcOpcode
  uint8_t sl;
  uint8_t is_send;  // 1: of the send queue, 0: of a receive queue (flushes have no opcode)
  uint32_t recv_offset_bytes;  // of a marked receive (rdm.h): where in it the message begins
  uint32_t place;              // of a receive by a lane (rdm.h): whose; else 0
  uint32_t reserved;
  std::atomic<uint32_t> valid;  // [nic] index + 1 of this entry, written last with release
};
static_assert(sizeof(Cqe) == 64);
static_assert(offsetof(Cqe, valid) == 60);

// Head of a CQ in ring memory; `entries` Cqe (a power of two) follow at kCqHeadBytes.
//
// Arming without a lost wake-up: the client writes `arm`, a full fence, then polls once more. The
// NIC writes a CQE, a full fence, then reads `arm`. One of them sees the other.
//
// Both words are the client's. `arm` has a line of its own: the NIC reads it after each CQE, and
// `consumer` changes with each poll.
struct CqHead {
  alignas(64) std::atomic<uint32_t> consumer;  // [client] entries polled
  alignas(64) std::atomic<uint32_t> arm;       // [client] see below
};
inline constexpr uint32_t kCqHeadBytes = 128;
static_assert(sizeof(CqHead) == kCqHeadBytes);

// `arm`: bits 31..2 a sequence number raised by each ibv_req_notify_cq; bit 1: armed for any
// completion, bit 0: armed for solicited (or failed) ones. The NIC remembers the last sequence
// number it fired for; equal numbers mean "not armed".
inline constexpr uint32_t kArmSolicited = 1u << 0;
inline constexpr uint32_t kArmAny = 1u << 1;
inline constexpr uint32_t kArmSequenceShift = 2;

// ---------------------------------------------------------------------------------------------
// Doorbells: one two-level bitmap per client. After publishing an index the client sets (atomic OR,
// seq_cst) the queue's bit in its leaf, then the leaf's bit in its summary, and then looks at the
// status page: if the NIC sleeps, it writes its eventfd. The NIC takes summary bits, then leaf
// words, before it reads any queue.

inline constexpr uint32_t kDoorbellLeaves = 1024;  // 65 536 doorbells a client
inline constexpr uint32_t kDoorbellSummaries = kDoorbellLeaves / 64;
inline constexpr uint32_t kMaxDoorbells = kDoorbellLeaves * 64;

//
// The leaf that most clients need, of their first 64 queues, stands beside `last_cpu`, has no
// summary bit and is polled itself: between two cores each cache line, and each look at one that
// the other side has just written, costs 0.1 to 0.5 µs.
inline constexpr uint32_t kNearLeaf = 1;

struct DoorbellPage {
  std::atomic<uint64_t>& Leaf(uint32_t i) { return i == kNearLeaf ? near_leaf : far_leaves[i]; }
  // The client's half, all but the look at the status page. Leaf before summary: the NIC exchanges
  // the summary first, so a bit it misses now it finds later. seq_cst orders both before that look.
  void Set(uint32_t doorbell) {
    uint32_t leaf = doorbell / 64;
    Leaf(leaf).fetch_or(uint64_t{1} << (doorbell % 64), std::memory_order_seq_cst);
    if (leaf == kNearLeaf) return;
    summary[leaf / 64].fetch_or(uint64_t{1} << (leaf % 64), std::memory_order_seq_cst);
  }

  alignas(64) std::atomic<uint32_t> last_cpu;  // [client] CPU of the last ring
  std::atomic<uint64_t> near_leaf;             // [client] sets, NIC clears; and so below
  alignas(64) std::atomic<uint64_t> summary[kDoorbellSummaries];
  std::atomic<uint64_t> far_leaves[kDoorbellLeaves];  // [kNearLeaf] is not used
};

// Doorbells of a thread domain, in a page of their own: no other thread of the client writes there.
// Bit i is doorbell kFirstThreadDoorbell + kThreadDoorbells * page + i. As a near leaf it has no
// summary bit, and is polled itself.
inline constexpr uint32_t kThreadDoorbellPages = 64;  // of one client
inline constexpr uint32_t kThreadDoorbells = 64;      // in a page
inline constexpr uint32_t kFirstThreadDoorbell = kMaxDoorbells;
inline constexpr uint32_t kDoorbellsEnd =
    kFirstThreadDoorbell + kThreadDoorbellPages * kThreadDoorbells;
inline constexpr uint32_t kThreadDoorbellPageBytes = 4096;

struct ThreadDoorbellPage {
  void Set(uint32_t doorbell) {
    bits.fetch_or(uint64_t{1} << (doorbell % kThreadDoorbells), std::memory_order_seq_cst);
  }

  alignas(64) std::atomic<uint32_t> last_cpu;  // [client] CPU of the last ring
  std::atomic<uint64_t> bits;                  // [client] sets, NIC clears
};

// One per client, in memory the client maps read-only (F_SEAL_FUTURE_WRITE): a liar can't suppress
// another's wake-up.
struct StatusPage {
  // [nic] 0: it polls the doorbells, or will once it has a CPU. Otherwise ring the eventfd after
  // the doorbell; no two sleeps one after the other have the same number.
  alignas(64) std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> cpu;       // [nic] where it polls them
  std::atomic<uint32_t> stopping;  // [nic] 1: the NIC works no more, the daemon ends
};

}  // namespace verbena::shm

// The command queue: control verbs as commands in shared memory, with opcodes and completions, as
// on a NIC (mlx5's command interface, EFA's admin queue). File descriptors travel on the attach
// socket.
//
// A session has kCommandSlots slots. To issue: claim a free slot, write `request`, store
// slot.submitted = n (release; n grows by one for each use of the slot, from 1), ring doorbell
// number = slot index (slots own leaf word 0), then wait until completion.done == n (the word is a
// futex the daemon wakes). Slots complete in any order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/shm/layout.h"

namespace verbena::shm {

inline constexpr uint32_t kCommandSlots = 64;  // exactly one doorbell leaf word
inline constexpr uint32_t kCommandPayloadBytes = 480;

enum class CommandOp : uint32_t {
  kNop = 0,
  kQueryDevice,
  kQueryPort,
  kQueryGidTable,
  kQueryPkey,
  kAllocPd,
  kDeallocPd,
  kRegMr,
  kDeregMr,
  kCreateChannel,
  kDestroyChannel,
  kCreateCq,
  kResizeCq,
  kDestroyCq,
  kCreateSrq,
  kModifySrq,
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
  kOpenPayload,
  kAllocTd,
  kDeallocTd,
  kModifyCq,
  kAllocMw,
  kDeallocMw,
  kReregMr,
  kAllocNullMr,
  kAllocDm,
  kFreeDm,
  kRegDmMr,
  kImportPd,
  kImportMr,
  kImportDm,
  kOpenAssist,
  // Of libfabric's endpoints: rdm.h.
  kAllocOwnKeyPd,
  kEnableMr,
  kCreateCounter,
  kDestroyCounter,
  kBindMrCounter,
  kBindQpCounter,
  kCancelRecv,
  kCreatePlace,
  kDestroyPlace,
  kNameSource,
  kQuerySource,
  kCount,
};
const char* CommandOpName(CommandOp op);

struct CommandRequest {
  uint32_t op;  // CommandOp
  uint32_t payload_bytes;
  uint64_t reserved;
  alignas(8) uint8_t payload[kCommandPayloadBytes];
};

struct CommandCompletion {
  std::atomic<uint32_t> done;  // [nic] slot.submitted of the finished command; futex word
  int32_t error;               // 0 or a positive errno, as verbs return them
  uint32_t payload_bytes;
  uint32_t detail;  // VendorErr-like code that says which rule refused; 0 if none
  alignas(8) uint8_t payload[kCommandPayloadBytes];
};

struct CommandSlot {
  alignas(64) std::atomic<uint32_t> submitted;  // [client]
  alignas(64) CommandRequest request;           // [client]
  alignas(64) CommandCompletion completion;     // [nic]
};

// First arena of every session: doorbells, then the command queue.
struct ControlArea {
  DoorbellPage doorbells;
  alignas(4096) CommandSlot slots[kCommandSlots];
};

// ---------------------------------------------------------------------------------------------
// Payloads. A handle is an index into the session's table of that kind plus a generation: a stale
// handle is refused (EINVAL), never taken for a new object. 0 is "none".

using Handle = uint32_t;

// Where a queue lives: `arena` is an id the client maps once (see attach.h), offset and bytes of
// it.
struct QueuePlace {
  uint32_t arena;
  uint32_t stride_bytes;
  uint64_t offset;
  uint64_t bytes;
  uint32_t entries;   // power of two
  uint32_t doorbell;  // number to ring; 0 if the queue has none
};

// Memory of the program for a queue's entries (an allocator of a parent domain): its address in the
// calling process; 0: the entries are in the arena. As many bytes as core/ring says.
using EntryAddress = uint64_t;

struct HandleRequest {
  Handle handle;
  uint32_t reserved;
};
struct HandleReply {
  Handle handle;
  uint32_t reserved;
};

struct QueryDeviceReply {
  uint8_t fw_ver[64];
  uint64_t node_guid;       // big-endian, as the verb returns it
  uint64_t sys_image_guid;  // big-endian
  uint64_t max_mr_size;
  uint64_t page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  uint32_t max_qp, max_qp_wr, device_cap_flags;
  uint32_t max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
  uint32_t max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom;
  uint32_t atomic_cap;
  uint32_t max_mw, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
  uint32_t max_ah, max_srq, max_srq_wr, max_srq_sge;
  uint32_t max_pkeys, local_ca_ack_delay, phys_port_cnt;
  uint32_t max_inline_bytes;
  uint32_t num_comp_vectors;
  uint64_t completion_timestamp_mask, hca_core_clock_khz;
  uint64_t device_cap_flags_ex;
  uint32_t max_cq_moderation_count, max_cq_moderation_period_us;
  uint32_t qp_rate_limit_min_kbps, qp_rate_limit_max_kbps;
  uint32_t rate_limit_qpts;  // bits 1 << enum ibv_qp_type
  uint32_t reserved;
  uint64_t max_dm_size;
};

struct PortRequest {
  uint32_t port;   // 1-based
  uint32_t index;  // P_Key index, or first GID index
};
struct QueryPortReply {
  uint32_t state, max_mtu, active_mtu;  // enum ibv_port_state, enum ibv_mtu
  uint32_t gid_tbl_len, port_cap_flags, port_cap_flags2, max_msg_sz;
  uint32_t bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len;
  uint32_t lid, sm_lid;
  uint32_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
  uint32_t active_width, active_speed, phys_state, link_layer, flags;
};
struct GidEntry {
  uint8_t raw[16];
  uint32_t index;
  uint32_t type;     // enum ibv_gid_type: 2 = RoCE v2
  uint32_t ifindex;  // of the network interface, 0 if none
  uint32_t reserved;
};
inline constexpr uint32_t kGidEntriesPerReply = 14;
struct QueryGidTableReply {
  uint32_t count;       // valid (non-empty) entries in this reply, from PortRequest.index upwards
  uint32_t next_index;  // ask again from here; 0 when complete
  GidEntry entries[kGidEntriesPerReply];
};
struct QueryPkeyReply {
  uint32_t pkey;  // host order
  uint32_t reserved;
};

// A program may have a payload file from another session of this process; the reply names one of
// the known ones if the daemon has it too, else a new one, whose fd is on its way (kPayload, id 0).
inline constexpr uint32_t kPayloadsKnownMax = 8;
struct OpenPayloadRequest {
  uint64_t known[kPayloadsKnownMax];  // 0: none
};
struct OpenPayloadReply {
  uint64_t payload;  // id
};

// Pages at `addr` are those of the payload file at `offset`.
struct MappedPiece {
  uint64_t addr;
  uint64_t bytes;
  uint64_t offset;
};
inline constexpr uint32_t kMappedPiecesMax = 16;

// What can't be mapped fails, instead of being reached another way.
inline constexpr uint32_t kRegMrMapped = 1u << 0;
// The NIC reaches it through the helper, be there another way or not.
inline constexpr uint32_t kRegMrAssisted = 1u << 1;
// These are explained in rdm.h.
inline constexpr uint32_t kRegMrOwnKey = 1u << 2;
inline constexpr uint32_t kRegMrWholeProcess = 1u << 3;
inline constexpr uint32_t kRegMrDisabled = 1u << 4;
// Whether the memory is there is not looked at: what isn't when it is used is a memory fault then.
inline constexpr uint32_t kRegMrUnprobed = 1u << 5;

struct RegMrRequest {
  Handle pd;
  uint32_t access;
  uint64_t addr;  // in the calling process
  uint64_t length;
  uint64_t iova;   // address by which work requests name the first byte
  uint32_t flags;  // kRegMr…
  uint32_t piece_count;
  uint64_t payload;                      // file of the pieces
  MappedPiece pieces[kMappedPiecesMax];  // ascending, apart, within the range
  uint32_t own_key = 0;                  // kRegMrOwnKey
  uint32_t reserved = 0;
};
struct RegMrReply {
  Handle mr;
  uint32_t lkey;
  uint32_t rkey;
  uint32_t reserved;
};

// place.bytes == 0: there are as many pages as a client can have; its queues ring as others do.
struct AllocTdReply {
  Handle td;
  uint32_t reserved;
  QueuePlace place;  // a ThreadDoorbellPage
};

inline constexpr uint32_t kMwType1 = 1;  // enum ibv_mw_type
inline constexpr uint32_t kMwType2 = 2;
struct AllocMwRequest {
  Handle pd;
  uint32_t type;
};
struct AllocMwReply {
  Handle mw;
  uint32_t rkey;  // until it is bound, a key to nothing
};

// Values equal enum ibv_rereg_mr_flags.
inline constexpr uint32_t kReregTranslation = 1u << 0;
inline constexpr uint32_t kReregPd = 1u << 1;
inline constexpr uint32_t kReregAccess = 1u << 2;
inline constexpr uint32_t kReregKnown = kReregTranslation | kReregPd | kReregAccess;
struct ReregMrRequest {
  Handle mr;
  uint32_t changes;
  RegMrRequest region;  // of it only what changes is looked at; iova is not
};

// The fd of a device memory (kDeviceMemory, id = handle) is on its way when these complete.
struct AllocDmRequest {
  uint64_t length;
  uint32_t log_align;
  uint32_t reserved;
};
struct DmReply {
  Handle dm;
  uint32_t reserved;
  uint64_t length;
};
struct RegDmMrRequest {
  Handle pd;
  Handle dm;
  uint64_t offset;
  uint64_t length;
  uint32_t access;
  uint32_t reserved;
};
struct ImportMrRequest {
  Handle pd;
  Handle mr;
};
struct ImportMrReply {
  uint32_t lkey;
  uint32_t rkey;
  uint64_t length;
};

// Beside the values of enum ibv_create_cq_attr_flags: what completes is stamped with the time at
// which it does, not with that at which the NIC's turn began.
inline constexpr uint32_t kCqTimestamps = 1u << 31;

// The channel's fd arrives on the attach socket (kFdChannel, id = handle) before the completion.
struct CreateCqRequest {
  Handle channel;  // 0: none
  uint32_t comp_vector;
  uint32_t entries;
  uint32_t flags;
  uint64_t cookie;  // returned in channel events, so that the shim finds its ibv_cq
  EntryAddress memory;
};
struct CreateCqReply {
  Handle cq;
  uint32_t reserved;
  QueuePlace place;
};
struct ResizeCqRequest {
  Handle cq;
  uint32_t entries;
  EntryAddress memory;  // of a CQ that had some before, and of no other
};

// An event of an armed CQ waits for `count` completions or `period_us`; 0 of either: for nothing.
struct ModifyCqRequest {
  Handle cq;
  uint16_t count;
  uint16_t period_us;
};

// What a helper needs (assist.h) is on its way when this completes. Once in a session: EBUSY.
inline constexpr uint32_t kAssistEntries = 1u << 0;  // it moves entries of queues, too, in any case
struct OpenAssistRequest {
  uint32_t flags;
  uint32_t reserved;
};

inline constexpr uint32_t kSrqMarked = 1u << 0;     // its receives have marks: rdm.h
inline constexpr uint32_t kSrqTruncates = 1u << 1;  // what is too long for a receive is cut: rdm.h
struct CreateSrqRequest {
  Handle pd;
  uint32_t max_wr, max_sge, srq_limit;
  uint64_t cookie;
  EntryAddress memory;
  uint32_t flags = 0;  // kSrq…
  uint32_t reserved = 0;
};
struct CreateSrqReply {
  Handle srq;
  uint32_t srqn;
  uint32_t max_wr, max_sge;
  QueuePlace place;
};
inline constexpr uint32_t kSrqMaxWr = 1u << 0;  // enum ibv_srq_attr_mask
inline constexpr uint32_t kSrqLimit = 1u << 1;
struct ModifySrqRequest {
  Handle srq;
  uint32_t mask;
  uint32_t max_wr, srq_limit;
  EntryAddress memory;  // as of ResizeCqRequest, where the size changes
};
struct ModifySrqReply {  // place.bytes == 0: unchanged
  uint32_t max_wr;
  uint32_t reserved;
  QueuePlace place;
};
struct QuerySrqReply {
  uint32_t max_wr, max_sge, srq_limit, reserved;
};

struct CreateQpRequest {
  Handle pd, send_cq, recv_cq, srq;
  uint32_t service;  // Service
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_bytes;
  uint32_t sq_sig_all;
  uint32_t create_flags;
  uint64_t cookie;
  EntryAddress sq_memory, rq_memory;
  Handle td;  // 0: none
  uint32_t reserved;
};
struct CreateQpReply {
  Handle qp;
  uint32_t qpn;
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_bytes, reserved;
  QueuePlace sq;
  QueuePlace rq;  // bytes == 0 with an SRQ
};

// Address vector, as struct ibv_ah_attr.
struct AhAttr {
  uint8_t dgid[16];
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class, is_global;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, port_num;
  uint16_t reserved;
};

// As struct ibv_qp_attr.
struct QpAttr {
  uint32_t qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_bytes;
  AhAttr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
  uint8_t min_rnr_timer, port_num, timeout, retry_cnt;
  uint8_t rnr_retry, alt_port_num, alt_timeout, reserved0;
  uint32_t rate_limit;
};
// Bits of ModifyQpRequest.mask. Values equal enum ibv_qp_attr_mask.
namespace qp_mask {
inline constexpr uint32_t kState = 1u << 0;
inline constexpr uint32_t kCurState = 1u << 1;
inline constexpr uint32_t kEnSqdAsyncNotify = 1u << 2;
inline constexpr uint32_t kAccessFlags = 1u << 3;
inline constexpr uint32_t kPkeyIndex = 1u << 4;
inline constexpr uint32_t kPort = 1u << 5;
inline constexpr uint32_t kQkey = 1u << 6;
inline constexpr uint32_t kAv = 1u << 7;
inline constexpr uint32_t kPathMtu = 1u << 8;
inline constexpr uint32_t kTimeout = 1u << 9;
inline constexpr uint32_t kRetryCnt = 1u << 10;
inline constexpr uint32_t kRnrRetry = 1u << 11;
inline constexpr uint32_t kRqPsn = 1u << 12;
inline constexpr uint32_t kMaxQpRdAtomic = 1u << 13;
inline constexpr uint32_t kAltPath = 1u << 14;
inline constexpr uint32_t kMinRnrTimer = 1u << 15;
inline constexpr uint32_t kSqPsn = 1u << 16;
inline constexpr uint32_t kMaxDestRdAtomic = 1u << 17;
inline constexpr uint32_t kPathMigState = 1u << 18;
inline constexpr uint32_t kCap = 1u << 19;
inline constexpr uint32_t kDestQpn = 1u << 20;
inline constexpr uint32_t kRateLimit = 1u << 25;
}  // namespace qp_mask

struct ModifyQpRequest {
  Handle qp;
  uint32_t mask;
  QpAttr attr;
  // With kRateLimit: 0 is what the NIC finds right.
  uint32_t max_burst_bytes = 0;
  uint32_t typical_packet_bytes = 0;
  // Of RC, to the error state and with no other bit: the peer has said by other means than an ACK,
  // as its connection's end, that it has carried out all requests before `peer_psn`. They complete
  // first; the rest is flushed.
  uint32_t has_peer_psn = 0;
  uint32_t peer_psn = 0;
};
struct ModifyQpReply {
  uint32_t state;  // QpState afterwards
  uint32_t reserved;
};
struct QueryQpReply {
  QpAttr attr;  // qp_state is the state now
  // Of RC: how far what was posted to send has come.
  uint32_t unacked_psn;    // of the oldest request that the peer has not acknowledged
  uint8_t has_unfinished;  // something that was posted is not done
  uint8_t awaits_receive;  // the peer has refused that request for want of a receive
  uint8_t reserved[2];
};

struct CreateAhRequest {
  Handle pd;
  uint32_t reserved;
  AhAttr attr;
};

struct McastRequest {
  Handle qp;
  uint32_t lid;
  uint8_t gid[16];
};

static_assert(sizeof(QueryDeviceReply) <= kCommandPayloadBytes);
static_assert(sizeof(QueryGidTableReply) <= kCommandPayloadBytes);
static_assert(sizeof(ModifyQpRequest) <= kCommandPayloadBytes);
static_assert(sizeof(CreateQpReply) <= kCommandPayloadBytes);
static_assert(sizeof(RegMrRequest) <= kCommandPayloadBytes);
static_assert(sizeof(ReregMrRequest) <= kCommandPayloadBytes);

}  // namespace verbena::shm

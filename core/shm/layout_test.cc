// The shared-memory ABI as numbers: a change that moves any of them needs a new kAbiVersion.
#include "core/shm/layout.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <set>
#include <string>
#include <type_traits>

#include "core/shm/attach.h"
#include "core/shm/cm.h"
#include "core/shm/command.h"
#include "core/shm/rdm.h"

namespace verbena::shm {
namespace {

static_assert(kAbiVersion == 13, "the offsets below belong to this version");
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Nothing in shared memory has a pointer, a vtable or a constructor that matters.
template <typename T>
constexpr bool kIsPlain = std::is_standard_layout_v<T>&& std::is_trivially_destructible_v<T>;
static_assert(kIsPlain<SendWqe> && kIsPlain<RecvWqe> && kIsPlain<Sge> && kIsPlain<Cqe>);
static_assert(kIsPlain<WorkQueueHead> && kIsPlain<CqHead> && kIsPlain<DoorbellPage>);
static_assert(kIsPlain<StatusPage> && kIsPlain<CommandSlot> && kIsPlain<ControlArea>);
static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Welcome>);
static_assert(sizeof(Hello) == 104 && offsetof(Hello, netns) == 96);
static_assert(std::is_trivially_copyable_v<ListReply> && std::is_trivially_copyable_v<FdMessage>);

static_assert(std::is_trivially_copyable_v<CmRequest> && std::is_trivially_copyable_v<CmReply>);
static_assert(sizeof(CmRequest) == 328 && sizeof(CmReply) == 368 && sizeof(CmWelcome) == 16);

static_assert(kIsPlain<RecvMark> && kIsPlain<RdmCounter>);
static_assert(sizeof(CreatePlaceRequest) == 56 && sizeof(QuerySourceReply) == 32);
static_assert(sizeof(RdmRequestData) == 36 && sizeof(RdmRejectData) == 4);
static_assert(sizeof(ModifyQpRequest) == 164 && sizeof(QueryQpReply) == 148);
static_assert(sizeof(RegMrRequest) == 440 && sizeof(CreateSrqRequest) == 40);

static_assert(offsetof(SendWqe, wr_id) == 0 && offsetof(SendWqe, opcode) == 8);
static_assert(offsetof(SendWqe, imm_or_rkey) == 12 && offsetof(SendWqe, remote_addr) == 16);
static_assert(offsetof(SendWqe, rkey) == 24 && offsetof(SendWqe, inline_bytes) == 28);
static_assert(offsetof(SendWqe, ah) == 32 && offsetof(SendWqe, atomic) == 48);
static_assert(offsetof(SendWqe, small_body) == 48 && kSmallBodyBytes == sizeof(Sge));
static_assert(kSendSmallBody == 128);
static_assert(offsetof(Cqe, timestamp_ns) == 8 && offsetof(Cqe, byte_len) == 16);
static_assert(offsetof(Cqe, qpn) == 24 && offsetof(Cqe, vendor_err) == 32);
static_assert(offsetof(Cqe, wc_flags) == 40 && offsetof(Cqe, status) == 44);

// Words of the two writers never share a cache line.
static_assert(offsetof(WorkQueueHead, consumer) == 64);
static_assert(offsetof(WorkQueueHead, wants_doorbell) == 68);
static_assert(offsetof(CqHead, consumer) == 0 && offsetof(CqHead, arm) == 64);
static_assert(offsetof(CommandSlot, request) % kCacheLineBytes == 0);
static_assert(offsetof(CommandSlot, completion) % kCacheLineBytes == 0);
static_assert(offsetof(CommandSlot, completion) >=
              offsetof(CommandSlot, request) + sizeof(CommandRequest));
static_assert(offsetof(DoorbellPage, near_leaf) == 8 && offsetof(DoorbellPage, summary) == 64);
static_assert(offsetof(DoorbellPage, far_leaves) == 192);
static_assert(offsetof(ControlArea, doorbells) == 0 && offsetof(ControlArea, slots) % 4096 == 0);
static_assert(offsetof(StatusPage, cpu) == 4 && offsetof(StatusPage, stopping) == 8);
static_assert(sizeof(StatusPage) <= 4096);
static_assert(kCommandSlots == 64, "one leaf word, and one word of free slots in the client");
static_assert(kMaxDoorbells == 65'536 && kDoorbellSummaries * 64 == kDoorbellLeaves);

static_assert(sizeof(Sge) == sizeof(ibv_sge));
static_assert(offsetof(Sge, length) == offsetof(ibv_sge, length));
static_assert(offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<uint32_t>(ours) == static_cast<uint32_t>(theirs);
}

static_assert(Same(WrOpcode::kRdmaWrite, IBV_WR_RDMA_WRITE));
static_assert(Same(WrOpcode::kRdmaWriteWithImm, IBV_WR_RDMA_WRITE_WITH_IMM));
static_assert(Same(WrOpcode::kSend, IBV_WR_SEND));
static_assert(Same(WrOpcode::kSendWithImm, IBV_WR_SEND_WITH_IMM));
static_assert(Same(WrOpcode::kRdmaRead, IBV_WR_RDMA_READ));
static_assert(Same(WrOpcode::kAtomicCmpAndSwp, IBV_WR_ATOMIC_CMP_AND_SWP));
static_assert(Same(WrOpcode::kAtomicFetchAndAdd, IBV_WR_ATOMIC_FETCH_AND_ADD));
static_assert(Same(WrOpcode::kLocalInv, IBV_WR_LOCAL_INV));
static_assert(Same(WrOpcode::kBindMw, IBV_WR_BIND_MW));
static_assert(Same(WrOpcode::kSendWithInv, IBV_WR_SEND_WITH_INV));
static_assert(Same(WrOpcode::kTso, IBV_WR_TSO));
static_assert(Same(kSendFence, IBV_SEND_FENCE) && Same(kSendSignaled, IBV_SEND_SIGNALED));
static_assert(Same(kSendSolicited, IBV_SEND_SOLICITED) && Same(kSendInline, IBV_SEND_INLINE));
static_assert(Same(WcOpcode::kSend, IBV_WC_SEND) && Same(WcOpcode::kRecv, IBV_WC_RECV));
static_assert(Same(WcOpcode::kRdmaWrite, IBV_WC_RDMA_WRITE));
static_assert(Same(WcOpcode::kRdmaRead, IBV_WC_RDMA_READ));
static_assert(Same(WcOpcode::kCompSwap, IBV_WC_COMP_SWAP));
static_assert(Same(WcOpcode::kFetchAdd, IBV_WC_FETCH_ADD));
static_assert(Same(WcOpcode::kBindMw, IBV_WC_BIND_MW));
static_assert(Same(WcOpcode::kLocalInv, IBV_WC_LOCAL_INV) && Same(WcOpcode::kTso, IBV_WC_TSO));
static_assert(Same(WcOpcode::kRecvRdmaWithImm, IBV_WC_RECV_RDMA_WITH_IMM));
static_assert(Same(kWcGrh, IBV_WC_GRH) && Same(kWcWithImm, IBV_WC_WITH_IMM));
static_assert(Same(kWcWithInv, IBV_WC_WITH_INV));
static_assert(Same(qp_mask::kState, IBV_QP_STATE) && Same(qp_mask::kCurState, IBV_QP_CUR_STATE));
static_assert(Same(qp_mask::kEnSqdAsyncNotify, IBV_QP_EN_SQD_ASYNC_NOTIFY));
static_assert(Same(qp_mask::kAccessFlags, IBV_QP_ACCESS_FLAGS));
static_assert(Same(qp_mask::kPkeyIndex, IBV_QP_PKEY_INDEX) && Same(qp_mask::kPort, IBV_QP_PORT));
static_assert(Same(qp_mask::kQkey, IBV_QP_QKEY) && Same(qp_mask::kAv, IBV_QP_AV));
static_assert(Same(qp_mask::kPathMtu, IBV_QP_PATH_MTU));
static_assert(Same(qp_mask::kTimeout, IBV_QP_TIMEOUT));
static_assert(Same(qp_mask::kRetryCnt, IBV_QP_RETRY_CNT));
static_assert(Same(qp_mask::kRnrRetry, IBV_QP_RNR_RETRY) && Same(qp_mask::kRqPsn, IBV_QP_RQ_PSN));
static_assert(Same(qp_mask::kMaxQpRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC));
static_assert(Same(qp_mask::kAltPath, IBV_QP_ALT_PATH));
static_assert(Same(qp_mask::kMinRnrTimer, IBV_QP_MIN_RNR_TIMER));
static_assert(Same(qp_mask::kSqPsn, IBV_QP_SQ_PSN));
static_assert(Same(qp_mask::kMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC));
static_assert(Same(qp_mask::kPathMigState, IBV_QP_PATH_MIG_STATE));
static_assert(Same(qp_mask::kCap, IBV_QP_CAP) && Same(qp_mask::kDestQpn, IBV_QP_DEST_QPN));
static_assert(Same(qp_mask::kRateLimit, IBV_QP_RATE_LIMIT));
static_assert(Same(kSrqMaxWr, IBV_SRQ_MAX_WR) && Same(kSrqLimit, IBV_SRQ_LIMIT));

TEST(Layout, ASmallBodyIsInTheHeadWhereTheOpcodeLeavesRoom) {
  alignas(64) std::byte entry[128] = {};
  auto* wqe = reinterpret_cast<SendWqe*>(entry);
  wqe->flags = kSendSignaled;
  for (int opcode = 0; opcode < 256; ++opcode) {
    wqe->opcode = static_cast<uint8_t>(opcode);
    const bool has_room = opcode <= 4 || opcode == 9;
    EXPECT_EQ(PlaceSendBody(wqe, kSmallBodyBytes), has_room ? wqe->small_body : entry + 64)
        << opcode;
    EXPECT_EQ(wqe->flags, has_room ? kSendSignaled | kSendSmallBody : kSendSignaled) << opcode;
  }
  wqe->opcode = static_cast<uint8_t>(WrOpcode::kSend);
  EXPECT_EQ(PlaceSendBody(wqe, 0), wqe->small_body);
  EXPECT_EQ(PlaceSendBody(wqe, kSmallBodyBytes + 1), entry + 64);
  EXPECT_EQ(wqe->flags, kSendSignaled) << "one that was small before";
}

TEST(Layout, MagicSpellsTheName) {
  char text[sizeof(kAbiMagic)];
  std::memcpy(text, &kAbiMagic, sizeof(text));
  EXPECT_STREQ(text, "verbena");
}

// An entry holds its head and its body whatever the limits, and never ends inside a line.
TEST(Layout, StridesHoldTheirEntries) {
  for (uint32_t sge = 0; sge <= kMaxSge; ++sge) {
    uint32_t recv = RecvWqeStride(sge);
    EXPECT_GE(recv, sizeof(RecvWqe) + sge * sizeof(Sge));
    EXPECT_LT(recv, sizeof(RecvWqe) + sge * sizeof(Sge) + 32);
    EXPECT_EQ(recv % 32, 0u);
    for (uint32_t inline_bytes = 0; inline_bytes <= kMaxInlineBytes; ++inline_bytes) {
      uint32_t send = SendWqeStride(sge, inline_bytes);
      ASSERT_GE(send, sizeof(SendWqe) + sge * sizeof(Sge));
      ASSERT_GE(send, sizeof(SendWqe) + inline_bytes);
      ASSERT_EQ(send % kCacheLineBytes, 0u);
    }
  }
  EXPECT_EQ(SendWqeStride(0, 0), 64u);
  EXPECT_EQ(SendWqeStride(4, 64), 128u);
  EXPECT_EQ(RecvWqeStride(1), 32u);
}

TEST(Command, EveryOpHasANameOfItsOwn) {
  std::set<std::string> names;
  for (uint32_t op = 0; op < static_cast<uint32_t>(CommandOp::kCount); ++op) {
    names.insert(CommandOpName(static_cast<CommandOp>(op)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(CommandOp::kCount));
  EXPECT_EQ(names.count("UNKNOWN"), 0u);
  EXPECT_STREQ(CommandOpName(CommandOp::kDetachMcast), "DETACH_MCAST");
  EXPECT_STREQ(CommandOpName(CommandOp::kCount), "UNKNOWN");
  EXPECT_STREQ(CommandOpName(static_cast<CommandOp>(~0u)), "UNKNOWN");
}

}  // namespace
}  // namespace verbena::shm

#include "core/base/types.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <type_traits>

#include "core/base/instant.h"

namespace verbena {
namespace {

static_assert(!std::is_convertible_v<uint32_t, LKey>, "numbers do not become keys by themselves");
static_assert(!std::is_convertible_v<LKey, RKey>);
static_assert(!std::is_assignable_v<RKey&, LKey>);
static_assert(sizeof(Qpn) == sizeof(uint32_t) && sizeof(PKey) == sizeof(uint16_t));
static_assert(sizeof(Gid) == sizeof(ibv_gid));

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<uint32_t>(ours) == static_cast<uint32_t>(theirs);
}

// What the headers promise: these pass the ABI unchanged.
static_assert(Same(QpState::kReset, IBV_QPS_RESET) && Same(QpState::kInit, IBV_QPS_INIT));
static_assert(Same(QpState::kRtr, IBV_QPS_RTR) && Same(QpState::kRts, IBV_QPS_RTS));
static_assert(Same(QpState::kSqd, IBV_QPS_SQD) && Same(QpState::kSqe, IBV_QPS_SQE));
static_assert(Same(QpState::kErr, IBV_QPS_ERR));
static_assert(Same(WcStatus::kSuccess, IBV_WC_SUCCESS));
static_assert(Same(WcStatus::kLocLenErr, IBV_WC_LOC_LEN_ERR));
static_assert(Same(WcStatus::kLocQpOpErr, IBV_WC_LOC_QP_OP_ERR));
static_assert(Same(WcStatus::kLocEecOpErr, IBV_WC_LOC_EEC_OP_ERR));
static_assert(Same(WcStatus::kLocProtErr, IBV_WC_LOC_PROT_ERR));
static_assert(Same(WcStatus::kWrFlushErr, IBV_WC_WR_FLUSH_ERR));
static_assert(Same(WcStatus::kMwBindErr, IBV_WC_MW_BIND_ERR));
static_assert(Same(WcStatus::kBadRespErr, IBV_WC_BAD_RESP_ERR));
static_assert(Same(WcStatus::kLocAccessErr, IBV_WC_LOC_ACCESS_ERR));
static_assert(Same(WcStatus::kRemInvReqErr, IBV_WC_REM_INV_REQ_ERR));
static_assert(Same(WcStatus::kRemAccessErr, IBV_WC_REM_ACCESS_ERR));
static_assert(Same(WcStatus::kRemOpErr, IBV_WC_REM_OP_ERR));
static_assert(Same(WcStatus::kRetryExcErr, IBV_WC_RETRY_EXC_ERR));
static_assert(Same(WcStatus::kRnrRetryExcErr, IBV_WC_RNR_RETRY_EXC_ERR));
static_assert(Same(WcStatus::kLocRddViolErr, IBV_WC_LOC_RDD_VIOL_ERR));
static_assert(Same(WcStatus::kRemInvRdReqErr, IBV_WC_REM_INV_RD_REQ_ERR));
static_assert(Same(WcStatus::kRemAbortErr, IBV_WC_REM_ABORT_ERR));
static_assert(Same(WcStatus::kInvEecnErr, IBV_WC_INV_EECN_ERR));
static_assert(Same(WcStatus::kInvEecStateErr, IBV_WC_INV_EEC_STATE_ERR));
static_assert(Same(WcStatus::kFatalErr, IBV_WC_FATAL_ERR));
static_assert(Same(WcStatus::kRespTimeoutErr, IBV_WC_RESP_TIMEOUT_ERR));
static_assert(Same(WcStatus::kGeneralErr, IBV_WC_GENERAL_ERR));
static_assert(Same(EventType::kCqErr, IBV_EVENT_CQ_ERR));
static_assert(Same(EventType::kQpFatal, IBV_EVENT_QP_FATAL));
static_assert(Same(EventType::kQpReqErr, IBV_EVENT_QP_REQ_ERR));
static_assert(Same(EventType::kQpAccessErr, IBV_EVENT_QP_ACCESS_ERR));
static_assert(Same(EventType::kCommEst, IBV_EVENT_COMM_EST));
static_assert(Same(EventType::kSqDrained, IBV_EVENT_SQ_DRAINED));
static_assert(Same(EventType::kPathMig, IBV_EVENT_PATH_MIG));
static_assert(Same(EventType::kPathMigErr, IBV_EVENT_PATH_MIG_ERR));
static_assert(Same(EventType::kDeviceFatal, IBV_EVENT_DEVICE_FATAL));
static_assert(Same(EventType::kPortActive, IBV_EVENT_PORT_ACTIVE));
static_assert(Same(EventType::kPortErr, IBV_EVENT_PORT_ERR));
static_assert(Same(EventType::kLidChange, IBV_EVENT_LID_CHANGE));
static_assert(Same(EventType::kPkeyChange, IBV_EVENT_PKEY_CHANGE));
static_assert(Same(EventType::kSmChange, IBV_EVENT_SM_CHANGE));
static_assert(Same(EventType::kSrqErr, IBV_EVENT_SRQ_ERR));
static_assert(Same(EventType::kSrqLimitReached, IBV_EVENT_SRQ_LIMIT_REACHED));
static_assert(Same(EventType::kQpLastWqeReached, IBV_EVENT_QP_LAST_WQE_REACHED));
static_assert(Same(EventType::kClientReregister, IBV_EVENT_CLIENT_REREGISTER));
static_assert(Same(EventType::kGidChange, IBV_EVENT_GID_CHANGE));
static_assert(Same(EventType::kWqFatal, IBV_EVENT_WQ_FATAL));
static_assert(Same(access::kLocalWrite, IBV_ACCESS_LOCAL_WRITE));
static_assert(Same(access::kRemoteWrite, IBV_ACCESS_REMOTE_WRITE));
static_assert(Same(access::kRemoteRead, IBV_ACCESS_REMOTE_READ));
static_assert(Same(access::kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC));
static_assert(Same(access::kMwBind, IBV_ACCESS_MW_BIND));
static_assert(Same(access::kZeroBased, IBV_ACCESS_ZERO_BASED));
static_assert(Same(access::kOnDemand, IBV_ACCESS_ON_DEMAND));
static_assert(Same(access::kHugetlb, IBV_ACCESS_HUGETLB));
static_assert(Same(access::kRelaxedOrdering, IBV_ACCESS_RELAXED_ORDERING));
static_assert(Same(access::kOptionalMask, IBV_ACCESS_OPTIONAL_RANGE));

TEST(Gid, EveryByteCounts) {
  const Gid gid = Gid::FromIpv4(0x0a0b'0c0d);
  EXPECT_TRUE(gid.IsIpv4Mapped());
  for (size_t i = 0; i < gid.raw.size(); ++i) {
    Gid other = gid;
    EXPECT_EQ(other, gid);
    other.raw[i] ^= 0x40;
    EXPECT_NE(other, gid) << i;
    EXPECT_EQ(other.IsIpv4Mapped(), i >= 12) << i;
  }
}

TEST(Gid, Ipv4MappedIsInNetworkOrder) {
  Gid gid = Gid::FromIpv4(0x7f00'0102);
  const uint8_t expected[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 1, 2};
  EXPECT_EQ(std::memcmp(gid.raw.data(), expected, 16), 0);
  EXPECT_TRUE(gid.IsIpv4Mapped());
  EXPECT_FALSE(gid.IsZero());
  EXPECT_FALSE(gid.IsMulticast());
}

TEST(Gid, EveryByteOfThePrefixCounts) {
  for (size_t i = 0; i < 12; ++i) {
    Gid gid = Gid::FromIpv4(0x7f00'0001);
    gid.raw[i] ^= 1;
    EXPECT_FALSE(gid.IsIpv4Mapped()) << i;
  }
  EXPECT_TRUE(Gid{}.IsZero());
  Gid multicast;
  multicast.raw[0] = 0xff;
  EXPECT_TRUE(multicast.IsMulticast());
}

TEST(Instant, NeverIsLaterThanAnything) {
  EXPECT_TRUE(Instant::Never().IsNever());
  EXPECT_LT(Instant{INT64_MAX - 1}, Instant::Never());
  EXPECT_FALSE(Instant{}.IsNever());
  Instant start{5};
  EXPECT_EQ((start + Microseconds(2)).ns, 2005);
  EXPECT_EQ(((start + Seconds(1)) - start).ns, Milliseconds(1000).ns);
  EXPECT_EQ((Nanoseconds(3) * 4 - Nanoseconds(2)).ns, 10);
}

}  // namespace
}  // namespace verbena

// What a QP offers beside its states and its work: rate limits, ECE, the order of its data.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_query_qp_data_in_order = VerbsTest;

class Verb_ibv_modify_qp_rate_limit : public VerbsTest {
 protected:
  static int Limit(ibv_qp* qp, uint32_t kbps, uint32_t burst_bytes = 0, uint16_t packet_bytes = 0,
                   uint32_t comp_mask = 0) {
    ibv_qp_rate_limit_attr attr = {};
    attr.rate_limit = kbps;
    attr.max_burst_sz = burst_bytes;
    attr.typical_pkt_sz = packet_bytes;
    attr.comp_mask = comp_mask;
    return ibv_modify_qp_rate_limit(qp, &attr);
  }
  static uint32_t Rate(ibv_qp* qp) {
    ibv_qp_attr attr = {};
    ibv_qp_init_attr init = {};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init), 0);
    return attr.rate_limit;
  }
  // `count` messages of `bytes`, and how long they took.
  Clock::duration Send(uint64_t count, uint32_t bytes, ibv_ah* ah = nullptr) {
    ibv_send_wr wr = {};
    wr.opcode = ah != nullptr ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (ah != nullptr) {
      wr.wr.ud = {ah, b->qp->qp_num, kQKey};
    } else {
      wr.wr.rdma = {b->buffer.address(), b->mr->rkey};
    }
    const Clock::time_point begin = Clock::now();
    for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(a->Post(wr, {a->Sge(0, bytes)}), 0);
    for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    return Clock::now() - begin;
  }
};

TEST_F(Verb_ibv_modify_qp_rate_limit, TellsItsLimits) {
  MakePair();
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(a->context, nullptr, &attr), 0);
  const ibv_packet_pacing_caps& caps = attr.packet_pacing_caps;
  EXPECT_EQ(caps.qp_rate_limit_min, 1u);
  EXPECT_EQ(caps.qp_rate_limit_max, 100'000'000u);
  EXPECT_EQ(caps.supported_qpts, 1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD);
  EXPECT_EQ(Limit(a->qp, caps.qp_rate_limit_max), 0);
  EXPECT_EQ(Rate(a->qp), caps.qp_rate_limit_max);
  EXPECT_EQ(Limit(a->qp, caps.qp_rate_limit_max + 1), EINVAL);
  EXPECT_EQ(Limit(a->qp, 0, 4096), EINVAL) << "a burst without a rate";
  EXPECT_EQ(Limit(a->qp, 0, 0, 1024), EINVAL) << "a packet size without a rate";
  EXPECT_EQ(Limit(a->qp, 1000, 0, 0, 1), EINVAL) << "an unknown attribute";
  EXPECT_EQ(Rate(a->qp), caps.qp_rate_limit_max);
  EXPECT_EQ(Limit(a->qp, 1000, 4096, 1024), 0);
  EXPECT_EQ(Limit(a->qp, 0), 0);
  EXPECT_EQ(Rate(a->qp), 0u);
}

TEST_F(Verb_ibv_modify_qp_rate_limit, NeedsAQpInRts) {
  a = std::make_unique<Side>(SideOptions{});
  EXPECT_EQ(Limit(a->qp, 1000), EINVAL);
  ASSERT_EQ(a->ToInit(), 0);
  EXPECT_EQ(Limit(a->qp, 1000), EINVAL);
}

// 20 messages of 5 KB at 16 Mb/s: 50 ms, less the burst.
TEST_F(Verb_ibv_modify_qp_rate_limit, HoldsForRcUcAndUd) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    SCOPED_TRACE(type);
    ibv_ah* ah = nullptr;
    const uint32_t bytes = type == IBV_QPT_UD ? 1000 : 5000;
    const uint64_t count = type == IBV_QPT_UD ? 60 : 20;
    if (type == IBV_QPT_UD) {
      MakeUdPair();
      ibv_ah_attr address = AddressOf(b->gid());
      ah = ibv_create_ah(a->pd, &address);
      ASSERT_NE(ah, nullptr);
    } else {
      MakePair(SideOptions{.type = type});
    }
    const auto least = std::chrono::microseconds((count * bytes - bytes - 5000) * 8 / 16);
    ASSERT_EQ(Limit(a->qp, 16'000, 5000), 0);
    EXPECT_GE(Send(count, bytes, ah), least);
    // At 0.1 Mb/s as much would take 5 to 8 s, which no busy machine does to what has no limit.
    ASSERT_EQ(Limit(a->qp, 100, 5000), 0);
    ASSERT_EQ(Limit(a->qp, 0), 0);
    Send(1, bytes, ah);  // the last rest
    EXPECT_LT(Send(count, bytes, ah), 80 * least) << "no limit any more";
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
  }
}

// The peer must not take a rest for a loss, nor may this side: the timeout is 8 ms.
TEST_F(Verb_ibv_modify_qp_rate_limit, ARestIsNoTimeout) {
  ConnectOptions connect;
  connect.timeout = 10;
  connect.retry_cnt = 1;
  MakePair({}, connect);
  ASSERT_EQ(Limit(a->qp, 1'600, 1000), 0);
  EXPECT_GE(Send(4, 8000), Milliseconds(100));
  EXPECT_EQ(a->State(), IBV_QPS_RTS);
}

TEST_F(Verb_ibv_modify_qp_rate_limit, GoesWithTheWayToRts) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ConnectOptions connect;
  ASSERT_EQ(a->ToInit(), 0);
  ASSERT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), connect), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 10;
  attr.retry_cnt = attr.rnr_retry = 3;
  attr.max_rd_atomic = 1;
  attr.rate_limit = 5000;
  ASSERT_EQ(ibv_modify_qp(a->qp, &attr,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RATE_LIMIT),
            0);
  EXPECT_EQ(Rate(a->qp), 5000u);
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  EXPECT_EQ(Rate(a->qp), 0u);
}

bool IsMapped() {
  const char* backend = getenv("VERBENA_DMA");
  return backend != nullptr && std::string(backend) == "mapped";
}

TEST_F(Verb_ibv_query_qp_data_in_order, SaysSoOfMappedMemoryOnly) {
  MakePair();
  for (ibv_wr_opcode op : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
                           IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ}) {
    EXPECT_EQ(ibv_query_qp_data_in_order(a->qp, op, 0), IsMapped() ? 1 : 0);
    EXPECT_EQ(ibv_query_qp_data_in_order(a->qp, op, 1), IsMapped() ? 3 : 0) << "v64: as a set";
  }
  EXPECT_EQ(ibv_query_qp_data_in_order(a->qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 0), 0);
  EXPECT_EQ(ibv_query_qp_data_in_order(a->qp, IBV_WR_SEND, 1u << 31), 0) << "an unknown flag";
}

// If it says so: who sees the last byte sees them all.
TEST_F(Verb_ibv_query_qp_data_in_order, SpeaksTheTruth) {
  MakePair();
  if (ibv_query_qp_data_in_order(b->qp, IBV_WR_RDMA_WRITE, 0) == 0) GTEST_SKIP() << "it does not";
  constexpr uint32_t kBytes = 60'000;
  std::atomic_ref<uint8_t> last(b->buffer[kBytes - 1]);
  for (int round = 1; round <= 250; ++round) {
    const auto value = static_cast<uint8_t>(round);
    memset(a->buffer.data(), value, kBytes);
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, kBytes, *b, 0), 0);
    ASSERT_TRUE(Eventually([&] { return last.load(std::memory_order_acquire) == value; }));
    for (uint32_t i = 0; i < kBytes; ++i) ASSERT_EQ(b->buffer[i], value) << i;
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace verbena::conformance

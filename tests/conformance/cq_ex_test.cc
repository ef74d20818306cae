// Extended CQs: every field, the flags of their creation, and resizing while they are in use.
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint64_t kTimes = uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP} |
                            uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};

// Side a's QP completes into an extended CQ.
class ExTest : public VerbsTest {
 protected:
  void Make(int cqe, uint32_t flags = 0, uint64_t wc_flags = IBV_WC_STANDARD_FLAGS,
            bool with_channel = false) {
    a = std::make_unique<Side>(SideOptions{.with_channel = with_channel});
    b = std::make_unique<Side>(SideOptions{.nic = 1});
    ibv_cq_init_attr_ex attr = {};
    attr.cqe = static_cast<uint32_t>(cqe);
    attr.wc_flags = wc_flags;
    attr.channel = a->channel;
    attr.comp_mask = flags != 0 ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0;
    attr.flags = flags;
    cq = ibv_create_cq_ex(a->context, &attr);
    ASSERT_NE(cq, nullptr) << strerror(errno);
    ASSERT_EQ(ibv_destroy_qp(a->qp), 0);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    init.qp_type = IBV_QPT_RC;
    init.cap = {256, 16, 2, 2, 0};
    a->qp = ibv_create_qp(a->pd, &init);
    ASSERT_NE(a->qp, nullptr);
    Connect(*a, *b, {});
  }
  void TearDown() override {
    if (cq == nullptr) return;
    EXPECT_EQ(ibv_destroy_qp(std::exchange(a->qp, nullptr)), 0);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  }
  int Write(uint64_t wr_id) { return a->Rdma(IBV_WR_RDMA_WRITE, wr_id, 0, 8, *b, 0); }
  bool Start() {
    ibv_poll_cq_attr attr = {};
    return Eventually([&] { return ibv_start_poll(cq, &attr) == 0; });
  }

  ibv_cq_ex* cq = nullptr;
};

using Verb_ibv_create_cq_ex = ExTest;
using Verb_ibv_resize_cq = ExTest;
using Verb_ibv_wc_read_completion_ts = ExTest;
using Verb_ibv_wc_read_completion_wallclock_ns = ExTest;

TEST_F(Verb_ibv_create_cq_ex, RefusesTagsAndTagMatching) {
  a = std::make_unique<Side>(SideOptions{});
  for (uint64_t flag : {uint64_t{IBV_WC_EX_WITH_CVLAN}, uint64_t{IBV_WC_EX_WITH_FLOW_TAG},
                        uint64_t{IBV_WC_EX_WITH_TM_INFO}}) {
    ibv_cq_init_attr_ex attr = {};
    attr.cqe = 16;
    attr.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | flag;
    errno = 0;
    EXPECT_EQ(ibv_create_cq_ex(a->context, &attr), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP) << flag;
  }
}

TEST_F(Verb_ibv_create_cq_ex, RefusesUnknownFlagsAndMasks) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 16;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = 1u << 7;
  errno = 0;
  EXPECT_EQ(ibv_create_cq_ex(a->context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.comp_mask = 1u << 9;
  errno = 0;
  EXPECT_EQ(ibv_create_cq_ex(a->context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verb_ibv_create_cq_ex, RefusesAPollWithAnUnknownMask) {
  Make(16);
  ibv_poll_cq_attr attr = {};
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(cq, &attr), EINVAL);
}

TEST_F(Verb_ibv_create_cq_ex, TellsOpcodesApart) {
  Make(64);
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ASSERT_EQ(Write(1), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 2, 64, 100, *b, 0), 0);
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 3, 0, *b, 0, 1), 0);
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 4, 0, *b, 0, 1), 0);
  ASSERT_EQ(a->Send(5, 0, 8), 0);
  ASSERT_EQ(a->PostRecv(6, 0, 64), 0);
  const ibv_wc_opcode kExpected[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD,
                                     IBV_WC_COMP_SWAP, IBV_WC_SEND};
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(Start());
    EXPECT_EQ(cq->wr_id, i + 1);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_wc_read_opcode(cq), kExpected[i]);
    EXPECT_EQ(ibv_wc_read_qp_num(cq), a->qp->qp_num);
    EXPECT_EQ(ibv_wc_read_vendor_err(cq), 0u);
    EXPECT_EQ(ibv_wc_read_slid(cq), 0u);
    EXPECT_EQ(ibv_wc_read_sl(cq), 0);
    EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
    EXPECT_EQ(ibv_wc_read_wc_flags(cq), 0u);
    if (i == 1) {
      EXPECT_EQ(ibv_wc_read_byte_len(cq), 100u);
    }
    ibv_end_poll(cq);
  }
  ASSERT_EQ(b->Send(9, 0, 33), 0);
  ASSERT_TRUE(Start());
  EXPECT_EQ(cq->wr_id, 6u);
  EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 33u);
  EXPECT_EQ(ibv_wc_read_src_qp(cq), b->qp->qp_num);
  ibv_end_poll(cq);
}

// An unfinished poll holds its place: what was not read comes again.
TEST_F(Verb_ibv_create_cq_ex, WorksAsAnOrdinaryCqToo) {
  Make(64);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(Write(i), 0);
  ASSERT_TRUE(Start());
  EXPECT_EQ(cq->wr_id, 0u);
  ibv_end_poll(cq);
  for (uint64_t i = 1; i < 4; ++i) EXPECT_EQ(a->Wait(ibv_cq_ex_to_cq(cq)).wr_id, i);
}

TEST_F(Verb_ibv_create_cq_ex, HasEventsAsAnyOther) {
  Make(64, 0, IBV_WC_STANDARD_FLAGS, /*with_channel=*/true);
  ASSERT_EQ(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0), 0);
  ASSERT_EQ(Write(1), 0);
  pollfd fd = {a->channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 5000), 1);
  ibv_cq* told = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(a->channel, &told, &context), 0);
  EXPECT_EQ(told, ibv_cq_ex_to_cq(cq));
  ibv_ack_cq_events(told, 1);
  ASSERT_TRUE(Start());
  ibv_end_poll(cq);
}

TEST_F(Verb_ibv_create_cq_ex, SingleThreadedCarriesTraffic) {
  Make(64, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
  for (uint64_t i = 0; i < 5'000; i += 50) {
    for (uint64_t k = 0; k < 50; ++k) ASSERT_EQ(Write(i + k), 0);
    for (uint64_t k = 0; k < 50; ++k) {
      ASSERT_TRUE(Start());
      ASSERT_EQ(cq->wr_id, i + k);
      ibv_end_poll(cq);
    }
  }
}

// The program has said that it does not mind: what does not fit is lost, and nothing else.
TEST_F(Verb_ibv_create_cq_ex, IgnoresAnOverrunIfAsked) {
  Make(8, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
  const int capacity = ibv_cq_ex_to_cq(cq)->cqe;
  ASSERT_LT(capacity, 100);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(Write(static_cast<uint64_t>(i)), 0);
  b->buffer.words()[4] = 0x77;
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 200, 64, 8, *b, 32), 0);  // behind them all
  volatile uint64_t* landed = &a->buffer.words()[8];
  ASSERT_TRUE(Eventually([&] { return *landed == 0x77; }));
  EXPECT_FALSE(a->WaitEvent(IBV_EVENT_CQ_ERR, Milliseconds(30)));
  EXPECT_EQ(a->State(), IBV_QPS_RTS);
  int polled = 0;
  ibv_poll_cq_attr attr = {};
  while (ibv_start_poll(cq, &attr) == 0) {
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    ++polled;
    ibv_end_poll(cq);
  }
  EXPECT_GT(polled, 0);
  EXPECT_LE(polled, capacity + 1);
  ASSERT_EQ(Write(777), 0);
  do {
    ASSERT_TRUE(Start());
    const uint64_t wr_id = cq->wr_id;
    ibv_end_poll(cq);
    if (wr_id == 777) break;
  } while (true);
}

TEST_F(Verb_ibv_wc_read_completion_ts, LiesBetweenTwoLooksAtTheClock) {
  Make(64, 0, kTimes);
  auto now = [this] {
    ibv_values_ex values = {};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(a->context, &values), 0);
    return static_cast<uint64_t>(values.raw_clock.tv_sec) * 1'000'000'000 +
           static_cast<uint64_t>(values.raw_clock.tv_nsec);
  };
  for (int i = 0; i < 10; ++i) {
    const uint64_t before = now();
    ASSERT_EQ(Write(1), 0);
    ASSERT_TRUE(Start());
    const uint64_t then = ibv_wc_read_completion_ts(cq);
    ibv_end_poll(cq);
    EXPECT_GE(then, before);
    EXPECT_LE(then, now());
  }
}

TEST_F(Verb_ibv_wc_read_completion_wallclock_ns, AgreesWithTheDevicesClock) {
  Make(64, 0, kTimes);
  int64_t ticks[2], wall[2];
  for (int i : {0, 1}) {
    ASSERT_EQ(Write(1), 0);
    ASSERT_TRUE(Start());
    ticks[i] = static_cast<int64_t>(ibv_wc_read_completion_ts(cq));
    wall[i] = static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(cq));
    ibv_end_poll(cq);
    if (i == 0) {
      ASSERT_TRUE(NeverWithin([] { return false; }, Milliseconds(20)));
    }
  }
  EXPECT_GE(ticks[1] - ticks[0], 20'000'000);
  // Two clocks are read one after the other, perhaps with a switch of tasks between.
  EXPECT_NEAR(static_cast<double>(wall[1] - wall[0]), static_cast<double>(ticks[1] - ticks[0]),
              10'000'000.0);
}

// One thread posts and polls, another gives the CQ ever new memory, as often as there is some new
// completion: a lock that two take all the time may be one's for long.
TEST_F(Verb_ibv_resize_cq, LosesNothingWhileInUse) {
  Make(300);
  std::atomic<bool> is_done = false;
  std::atomic<int> resized = 0;
  std::atomic<uint64_t> polled = 0;
  std::thread resizer([&] {
    const int kSizes[] = {4000, 600, 10'000, 300};
    for (int i = 0; !is_done; ++i) {
      const uint64_t seen = polled;
      while (!is_done && polled == seen) std::this_thread::yield();
      const int error = ibv_resize_cq(ibv_cq_ex_to_cq(cq), kSizes[i % 4]);
      EXPECT_EQ(error, 0);
      if (error != 0) return;
      ++resized;
    }
  });
  uint64_t posted = 0;
  const Clock::time_point limit = Clock::now() + kPatience * 4;
  while ((polled < 20'000 || resized < 20) && Clock::now() < limit && !HasFailure()) {
    while (posted - polled < 200) EXPECT_EQ(Write(posted++), 0);
    ibv_poll_cq_attr attr = {};
    if (ibv_start_poll(cq, &attr) != 0) continue;
    do {
      EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
      EXPECT_EQ(cq->wr_id, polled);
      ++polled;
    } while (ibv_next_poll(cq) == 0);
    ibv_end_poll(cq);
  }
  is_done = true;
  resizer.join();
  EXPECT_GE(polled, 20'000u);
  EXPECT_GE(resized, 20);
  for (; polled < posted; ++polled) {
    ASSERT_TRUE(Start());
    EXPECT_EQ(cq->wr_id, polled);
    ibv_end_poll(cq);
  }
}

TEST_F(Verb_ibv_resize_cq, RefusesSizesThatCannotBe) {
  Make(64);
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
  EXPECT_EQ(ibv_resize_cq(ibv_cq_ex_to_cq(cq), 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(ibv_cq_ex_to_cq(cq), -5), EINVAL);
  EXPECT_EQ(ibv_resize_cq(ibv_cq_ex_to_cq(cq), attr.max_cqe + 1), EINVAL);
  ASSERT_EQ(Write(1), 0);
  ASSERT_TRUE(Start());
  ibv_end_poll(cq);
}

}  // namespace
}  // namespace verbena::conformance

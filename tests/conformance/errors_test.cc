// The state machine, and what happens when things go wrong: RNR, retries, flushes, drains.
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_modify_qp = VerbsTest;
using Verb_ibv_post_send = VerbsTest;
using Verb_ibv_post_recv = VerbsTest;
using Verb_ibv_get_async_event = VerbsTest;

Milliseconds Since(Clock::time_point begin) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
}

// Expects `count` flushed completions of `cq` with wr_ids first, first + 1, …
void ExpectFlushed(Side& side, ibv_cq* cq, uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    ibv_wc wc = side.Wait(cq);
    ASSERT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR) << ibv_wc_status_str(wc.status);
    ASSERT_EQ(wc.wr_id, first + i);
    ASSERT_EQ(wc.qp_num, side.qp->qp_num);
  }
}

TEST_F(Verb_ibv_modify_qp, EveryRequiredAttributeOfInitIsRequired) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    Side side(SideOptions{.type = type});
    int last = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    int all = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last;
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    for (int bit : {int{IBV_QP_PKEY_INDEX}, int{IBV_QP_PORT}, last}) {
      EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all & ~bit), EINVAL) << type << " without " << bit;
    }
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all), 0);
  }
}

TEST_F(Verb_ibv_modify_qp, ResetTakesTheCompletionsAway) {
  MakePair();
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  for (uint64_t id = 2; id < 5; ++id) ASSERT_EQ(b->PostRecv(id, 0, 64), 0);
  ASSERT_EQ(a->Send(9, 0, 64), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().wr_id, 1u);
  ASSERT_EQ(b->ToState(IBV_QPS_ERR), 0);
  EXPECT_EQ(b->WaitRecv().wr_id, 2u);
  ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 0) << "of a flush";
  // And the CQ goes on.
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  Connect(*a, *b, {});
  ASSERT_EQ(b->PostRecv(7, 0, 64), 0);
  ASSERT_EQ(a->Send(8, 0, 64), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 8u);
  EXPECT_EQ(b->WaitRecv().wr_id, 7u);
}

TEST_F(Verb_ibv_modify_qp, AttributesOfOtherTransitionsAreRefused) {
  Side side(SideOptions{});
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  int all = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all | IBV_QP_DEST_QPN), EINVAL);
  EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all | IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(side.State(), IBV_QPS_RESET) << "a refused transition changes nothing";
}

TEST_F(Verb_ibv_modify_qp, RequiredAttributesOfRtrAndRts) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ASSERT_EQ(a->ToInit(), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = b->qp->qp_num;
  attr.ah_attr = AddressOf(b->gid());
  attr.max_dest_rd_atomic = 1;
  int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  for (int bit : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN,
                  IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER}) {
    EXPECT_EQ(ibv_modify_qp(a->qp, &attr, rtr & ~bit), EINVAL) << bit;
  }
  ASSERT_EQ(ibv_modify_qp(a->qp, &attr, rtr), 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
            IBV_QP_MAX_QP_RD_ATOMIC;
  for (int bit : {IBV_QP_SQ_PSN, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
                  IBV_QP_MAX_QP_RD_ATOMIC}) {
    EXPECT_EQ(ibv_modify_qp(a->qp, &attr, rts & ~bit), EINVAL) << bit;
  }
  EXPECT_EQ(ibv_modify_qp(a->qp, &attr, rts), 0);
}

TEST_F(Verb_ibv_modify_qp, ForbiddenTransitionsAreRefused) {
  Side side(SideOptions{});
  for (ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD}) {
    EXPECT_EQ(side.ToState(state), EINVAL) << state;
    EXPECT_EQ(side.State(), IBV_QPS_RESET);
  }
  ASSERT_EQ(side.ToInit(), 0);
  EXPECT_EQ(side.ToState(IBV_QPS_RTS), EINVAL);
  EXPECT_EQ(side.ToState(IBV_QPS_ERR), 0);
  EXPECT_EQ(side.ToState(IBV_QPS_RTS), EINVAL);
  EXPECT_EQ(side.ToState(IBV_QPS_RESET), 0);
}

TEST_F(Verb_ibv_modify_qp, AWrongCurrentStateIsRefused) {
  MakePair();
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_SQD;
  EXPECT_EQ(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
}

TEST_F(Verb_ibv_modify_qp, ValuesBeyondTheDeviceAreRefused) {
  Side side(SideOptions{});
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  int all = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all), EINVAL) << "port 2";
  attr.port_num = 1;
  attr.pkey_index = 0x7fff;
  EXPECT_EQ(ibv_modify_qp(side.qp, &attr, all), EINVAL) << "P_Key index";
}

TEST_F(Verb_ibv_modify_qp, ResetForgetsWorkAndConnectsAnew) {
  MakePair();
  ASSERT_EQ(a->PostRecv(1, 0, 8), 0);
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(a->recv_cq, 1, &wc), 0) << "reset makes no completions";
  ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
  Connect(*a, *b, {});
  ASSERT_EQ(b->PostRecv(2, 0, 8), 0);
  ASSERT_EQ(a->Send(3, 0, 8), 0);
  EXPECT_EQ(b->WaitRecv().wr_id, 2u);
  EXPECT_EQ(a->WaitSend().wr_id, 3u);
}

TEST_F(Verb_ibv_modify_qp, ErrorStateFlushesBothQueuesInOrder) {
  MakePair();
  // Sends wait: nobody receives.
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(a->Send(i, 0, 8, i == 3 ? 0u : 2u), 0);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(a->PostRecv(100 + i, 0, 8), 0);
  ASSERT_EQ(a->ToState(IBV_QPS_ERR), 0);
  ExpectFlushed(*a, a->send_cq, 0, 10);  // flushed work completes even when unsignalled
  ExpectFlushed(*a, a->recv_cq, 100, 20);
}

TEST_F(Verb_ibv_modify_qp, WorkPostedInErrorStateIsFlushed) {
  MakePair();
  ASSERT_EQ(a->ToState(IBV_QPS_ERR), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a->Send(i, 0, 8, 0), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a->PostRecv(50 + i, 0, 8), 0);
  ExpectFlushed(*a, a->send_cq, 0, 5);
  ExpectFlushed(*a, a->recv_cq, 50, 5);
}

TEST_F(Verb_ibv_modify_qp, SqdDrainsWhatWasSentAndHoldsTheRest) {
  MakePair();
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_TRUE(a->WaitEvent(IBV_EVENT_SQ_DRAINED));
  EXPECT_EQ(a->State(), IBV_QPS_SQD);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 5, 0, 8, *b, 0), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(a->send_cq, 1, &wc) != 0; }));
  ASSERT_EQ(a->ToState(IBV_QPS_RTS), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 5u);
}

TEST_F(Verb_ibv_modify_qp, SqdStillReceives) {
  MakePair();
  ASSERT_EQ(a->ToState(IBV_QPS_SQD), 0);
  ASSERT_EQ(a->PostRecv(1, 0, 8), 0);
  ASSERT_EQ(b->Send(2, 0, 8), 0);
  EXPECT_EQ(a->WaitRecv().wr_id, 1u);
  EXPECT_EQ(b->WaitSend().wr_id, 2u);
}

TEST_F(Verb_ibv_post_send, IsRefusedBeforeRts) {
  a = std::make_unique<Side>(SideOptions{});
  EXPECT_EQ(a->Send(1, 0, 8), EINVAL) << "in RESET";
  ASSERT_EQ(a->ToInit(), 0);
  EXPECT_EQ(a->Send(1, 0, 8), EINVAL) << "in INIT";
}

TEST_F(Verb_ibv_post_recv, IsRefusedInResetAndKeptFromInit) {
  a = std::make_unique<Side>(SideOptions{});
  EXPECT_EQ(a->PostRecv(1, 0, 8), EINVAL);
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ASSERT_EQ(a->ToInit(), 0);
  ASSERT_EQ(a->PostRecv(7, 0, 8), 0);
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), {}), 0);
  ASSERT_EQ(b->ToRtr(a->qp->qp_num, a->gid(), {}), 0);
  ASSERT_EQ(b->ToRts({}), 0);
  ASSERT_EQ(b->Send(1, 0, 8), 0);
  EXPECT_EQ(a->WaitRecv().wr_id, 7u);
  EXPECT_TRUE(a->WaitEvent(IBV_EVENT_COMM_EST)) << "data came before this side was in RTS";
}

TEST_F(Verb_ibv_post_send, LateReceiverIsWaitedFor) {
  MakePair();
  a->buffer.words()[0] = 0x5a5a;
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(a->send_cq, 1, &wc) != 0; }));
  ASSERT_EQ(b->PostRecv(2, 0, 8), 0);
  EXPECT_EQ(b->WaitRecv().wr_id, 2u);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[0], 0x5a5au);
}

TEST_F(Verb_ibv_post_send, RnrRetriesRunOut) {
  MakePair({}, ConnectOptions{.rnr_retry = 2, .min_rnr_timer = 14});  // 14: 1.28 ms
  auto begin = Clock::now();
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  ASSERT_EQ(a->Send(2, 0, 8), 0);
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_RNR_RETRY_EXC_ERR) << ibv_wc_status_str(wc.status);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_GE(Since(begin).count(), 2) << "it did not wait the peer's RNR time, twice";
  ExpectFlushed(*a, a->send_cq, 2, 1);
  EXPECT_EQ(a->State(), IBV_QPS_ERR);
  EXPECT_EQ(b->State(), IBV_QPS_RTS);
}

TEST_F(Verb_ibv_post_send, WriteNeedsNoReceiverAndNeverMeetsRnr) {
  MakePair({}, ConnectOptions{.rnr_retry = 0});
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_post_send, RetriesRunOutWhenThePeerIsGone) {
  for (bool destroyed : {true, false}) {
    MakePair({}, ConnectOptions{.timeout = 8, .retry_cnt = 2});  // 1 ms, at most 4 ms a try
    if (destroyed) {
      ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
      b->qp = nullptr;
    } else {
      ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
    }
    auto begin = Clock::now();
    for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
    ibv_wc wc = a->WaitSend();
    EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, 0u);
    EXPECT_GE(Since(begin).count(), 2);
    EXPECT_LT(Since(begin).count(), 5000);
    ExpectFlushed(*a, a->send_cq, 1, 4);
  }
}

TEST_F(Verb_ibv_post_send, AnAddressNobodyHasEndsInRetryExceeded) {
  a = std::make_unique<Side>(SideOptions{});
  ConnectOptions options = {.timeout = 8, .retry_cnt = 1};
  ibv_gid nobody = a->gid();
  nobody.raw[15] = 250;
  ASSERT_EQ(a->ToInit(), 0);
  ASSERT_EQ(a->ToRtr(17, nobody, options), 0);
  ASSERT_EQ(a->ToRts(options), 0);
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Verb_ibv_post_send, FirstFailureFlushesTheRestInOrder) {
  MakePair();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  ibv_send_wr wr = {};
  wr.wr_id = 4;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey ^ 0x55;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);  // fails, although unsignalled: completes
  for (uint64_t i = 5; i < 20; ++i) {
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 64, i % 2 ? 2u : 0u), 0);
  }
  for (uint64_t i = 0; i < 4; ++i) {
    ibv_wc wc = a->WaitSend();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, i);
  }
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(wc.wr_id, 4u);
  ExpectFlushed(*a, a->send_cq, 5, 15);
  EXPECT_EQ(b->buffer.words()[8], 0u) << "work behind the failed request was carried out";
}

TEST_F(Verb_ibv_post_send, WorkBehindTheFailureIsNotCarriedOut) {
  MakePair(SideOptions{.with_srq = false});
  a->buffer.words()[0] = 0x1234;
  std::vector<ibv_sge> bad = {{a->buffer.address(), 8, a->mr->lkey ^ 1}};
  ibv_send_wr wr = {};
  wr.wr_id = 0;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(a->Post(wr, bad), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
  ExpectFlushed(*a, a->send_cq, 1, 1);
  EXPECT_TRUE(NeverWithin([&] { return b->buffer.words()[0] != 0; }));
}

TEST_F(Verb_ibv_post_send, PeerInErrorStateIsAsGoodAsGone) {
  MakePair({}, ConnectOptions{.timeout = 8, .retry_cnt = 1});
  ASSERT_EQ(b->ToState(IBV_QPS_ERR), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Verb_ibv_get_async_event, FdBecomesReadableAndNamesTheQp) {
  MakePair();
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey ^ 3;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(b->context, &event), 0);  // blocks until it comes
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, b->qp);
  ibv_ack_async_event(&event);
}

TEST_F(Verb_ibv_get_async_event, NothingIsLeftOfADestroyedQp) {
  MakePair();
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey ^ 3;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  pollfd fd = {b->context->async_fd, POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 5000), 1);
  ASSERT_EQ(ibv_destroy_qp(std::exchange(b->qp, nullptr)), 0);
  EXPECT_EQ(poll(&fd, 1, 0), 0) << "ibv_get_async_event would block now";
}

}  // namespace
}  // namespace verbena::conformance

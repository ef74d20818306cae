// Asynchronous events by their causes, where no other test waits for them.
#include <cerrno>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_get_async_event = VerbsTest;

TEST_F(Verb_ibv_get_async_event, AnOverrunIsFatalToTheQp) {
  MakePair(SideOptions{.cqe = 4, .max_send_wr = 256});
  for (int i = 0; i < 100; ++i) {
    if (a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0) != 0) break;
  }
  EXPECT_TRUE(a->WaitEvent(IBV_EVENT_QP_FATAL));
}

// Spec: IBTA 9.9.3: an invalid request that took no receive is told by an event.
TEST_F(Verb_ibv_get_async_event, AnInvalidRequestIsToldByAnEvent) {
  MakePair();
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, *b, 4, 1), 0);  // not aligned
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
}

TEST_F(Verb_ibv_get_async_event, ARefusedKeyIsToldByAnEvent) {
  MakePair(SideOptions{}, SideOptions{.nic = 1, .mr_access = IBV_ACCESS_LOCAL_WRITE}, {});
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
}

TEST_F(Verb_ibv_get_async_event, TheFirstPacketEstablishesAConnection) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    a = std::make_unique<Side>(SideOptions{.type = type});
    b = std::make_unique<Side>(SideOptions{.nic = 1, .type = type});
    ConnectOptions options;
    ASSERT_EQ(a->ToInit(), 0);
    ASSERT_EQ(b->ToInit(), 0);
    ASSERT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), options), 0);
    ASSERT_EQ(b->ToRtr(a->qp->qp_num, a->gid(), options), 0);
    ASSERT_EQ(a->ToRts(options), 0);
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
    EXPECT_TRUE(b->WaitEvent(IBV_EVENT_COMM_EST));
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace verbena::conformance

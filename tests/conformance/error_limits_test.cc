// What a QP was connected for, and how long a message may be.
#include <cerrno>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class Verb_ibv_post_send_limits : public VerbsTest {
 protected:
  // a may have `own` READs and atomics under way, b takes `peers`.
  void MakeWithReads(uint8_t own, uint8_t peers) {
    a = std::make_unique<Side>(SideOptions{});
    b = std::make_unique<Side>(SideOptions{.nic = 1});
    ConnectOptions to_a, to_b;
    to_a.rd_atomic = own;
    to_b.rd_atomic = peers;
    ASSERT_EQ(a->ToInit(), 0);
    ASSERT_EQ(b->ToInit(), 0);
    ASSERT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), to_a), 0);
    ASSERT_EQ(b->ToRtr(a->qp->qp_num, a->gid(), to_b), 0);
    ASSERT_EQ(a->ToRts(to_a), 0);
    ASSERT_EQ(b->ToRts(to_b), 0);
  }
};

TEST_F(Verb_ibv_post_send_limits, NoReadsWereAgreedUpon) {
  MakeWithReads(0, 8);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(a->State(), IBV_QPS_ERR);
}

TEST_F(Verb_ibv_post_send_limits, ThePeerTakesNoReads) {
  for (bool atomic : {false, true}) {
    MakeWithReads(8, 0);
    const int error = atomic ? a->Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, *b, 0, 1)
                             : a->Rdma(IBV_WR_RDMA_READ, 1, 0, 8, *b, 0);
    ASSERT_EQ(error, 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
  }
}

TEST_F(Verb_ibv_post_send_limits, AMessageLongerThanThePortTakes) {
  for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    MakePair();
    ibv_mr* null = ibv_alloc_null_mr(a->pd);  // has as many bytes as one likes
    ASSERT_NE(null, nullptr);
    ibv_port_attr port = {};
    ASSERT_EQ(ibv_query_port(a->context, 1, &port), 0);
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {b->buffer.address(), b->mr->rkey};
    ASSERT_EQ(a->Post(wr, {{0, port.max_msg_sz, null->lkey}, {0, 1, null->lkey}}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(ibv_dereg_mr(null), 0);
  }
}

}  // namespace
}  // namespace verbena::conformance

// Invalidation: SEND with invalidate and LOCAL_INV take a key away.
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

// b lends a region to a; afterwards `lent` must be of no more use to a.
class InvalidateTest : public VerbsTest {
 protected:
  void SetUp() override {
    MakePair(SideOptions{.send_ops = IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV |
                                     IBV_QP_EX_WITH_RDMA_WRITE});
    lent = ibv_reg_mr(b->pd, b->buffer.data(), 4096, kAllAccess);
    ASSERT_NE(lent, nullptr);
  }
  void TearDown() override {
    if (lent != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(lent), 0);
    }
  }
  int Write(uint64_t wr_id) {
    ibv_send_wr wr = {};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = b->buffer.address();
    wr.wr.rdma.rkey = lent->rkey;
    return a->Post(wr, {a->Sge(0, 8)});
  }
  void ExpectKeyIsDead() {
    ASSERT_EQ(Write(9), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  }

  ibv_mr* lent = nullptr;
};

using Verb_ibv_post_send = InvalidateTest;
using Verb_ibv_wr_send_inv = InvalidateTest;
using Verb_ibv_wr_local_inv = InvalidateTest;

TEST_F(Verb_ibv_post_send, SendWithInvalidateTakesTheKeyAway) {
  ASSERT_EQ(Write(1), 0);
  ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ASSERT_EQ(b->PostRecv(2, 8192, 64), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = lent->rkey;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_INV);
  EXPECT_EQ(wc.invalidated_rkey, lent->rkey);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ExpectKeyIsDead();
}

TEST_F(Verb_ibv_post_send, SendWithInvalidateOfABadKeyFails) {
  ASSERT_EQ(b->PostRecv(2, 8192, 64), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = lent->rkey ^ 0x3;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Verb_ibv_post_send, LocalInvalidateTakesTheOwnKeyAway) {
  ibv_send_wr wr = {};
  wr.wr_id = 4;
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = lent->rkey;
  ASSERT_EQ(b->Post(wr, {}), 0);
  ibv_wc wc = b->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  EXPECT_EQ(wc.wr_id, 4u);
  ExpectKeyIsDead();
}

// Any right of others makes a region one whose key a peer can give back, FLUSH alone, too.
TEST_F(Verb_ibv_post_send, InvalidatesWhateverIsOpenToOthers) {
  constexpr unsigned kFlushGlobal = 1u << 8;  // IBV_ACCESS_FLUSH_GLOBAL
  EXPECT_EQ(ibv_dereg_mr(std::exchange(lent, nullptr)), 0);
  for (unsigned access : {unsigned{IBV_ACCESS_REMOTE_READ}, kFlushGlobal, 0u}) {
    MakePair(SideOptions{});
    ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), 4096, static_cast<int>(access));
    ASSERT_NE(mr, nullptr);
    ASSERT_EQ(b->PostRecv(2, 8192, 64), 0);
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = mr->rkey;
    ASSERT_EQ(a->Post(wr, {}), 0);
    EXPECT_EQ(a->WaitSend().status, access != 0 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR) << access;
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(Verb_ibv_post_send, LocalInvalidateOfABadKeyFails) {
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = lent->rkey ^ 0x3;
  ASSERT_EQ(b->Post(wr, {}), 0);
  EXPECT_NE(b->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_wr_send_inv, TakesTheKeyAway) {
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
  ASSERT_NE(ex, nullptr);
  ASSERT_EQ(b->PostRecv(2, 8192, 64), 0);
  ibv_wr_start(ex);
  ex->wr_id = 5;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_inv(ex, lent->rkey);
  ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitRecv().invalidated_rkey, lent->rkey);
  EXPECT_EQ(a->WaitSend().wr_id, 5u);
  ExpectKeyIsDead();
}

TEST_F(Verb_ibv_wr_local_inv, TakesTheOwnKeyAway) {
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(b->qp);
  ASSERT_NE(ex, nullptr);
  ibv_wr_start(ex);
  ex->wr_id = 6;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_local_inv(ex, lent->rkey);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitSend().opcode, IBV_WC_LOCAL_INV);
  ExpectKeyIsDead();
}

}  // namespace
}  // namespace verbena::conformance

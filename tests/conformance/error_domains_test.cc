// Protection domains keep each other's objects out: address handles, SRQs, windows, keys.
#include <cerrno>
#include <string>

#include "tests/conformance/isolation_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_alloc_pd = IsolationTest;
using Verb_ibv_bind_mw = IsolationTest;
using Verb_ibv_reg_mr = IsolationTest;

TEST_F(Verb_ibv_alloc_pd, AnAddressHandleOfAnotherPdSendsNothing) {
  Make(IBV_QPT_UD);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  ibv_ah_attr attr = AddressOf(b->gid());
  ah = ibv_create_ah(OtherPd(*a), &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ASSERT_EQ(Post(kOperations[0], a->Sge(0, 8), 0, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(a->State(), IBV_QPS_SQE);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 0);
}

TEST_F(Verb_ibv_alloc_pd, AnSrqOfAnotherPdTakesNoQp) {
  Make(IBV_QPT_RC);
  ibv_srq_init_attr srq_init = {};
  srq_init.attr = {4, 1, 0};
  ibv_srq* srq = ibv_create_srq(OtherPd(*a), &srq_init);
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = a->send_cq;
  init.srq = srq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 0, 1, 0, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Verb_ibv_alloc_pd, WindowsAndRegionsOfTwoPdsAreNotBound) {
  struct Case {
    const char* what;
    bool is_window_other, is_region_other;
    int type_1;
  };
  for (const Case& row : {Case{"window", true, false, EPERM}, Case{"region", false, true, EPERM},
                          Case{"both", true, true, 0}}) {
    for (ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
      SCOPED_TRACE(std::string(row.what) + " of another PD, type " + std::to_string(type));
      Make(IBV_QPT_RC);
      ibv_pd* other = OtherPd(*a);
      ibv_mw* mw = ibv_alloc_mw(row.is_window_other ? other : a->pd, type);
      ASSERT_NE(mw, nullptr);
      ibv_mr* mr = Region(*a, row.is_region_other ? other : a->pd, kAllAccess | IBV_ACCESS_MW_BIND);
      const ibv_mw_bind_info info = {mr, Here(), 64, IBV_ACCESS_REMOTE_READ};
      int posted = 0;
      if (type == IBV_MW_TYPE_1) {
        ibv_mw_bind bind = {1, IBV_SEND_SIGNALED, info};
        posted = ibv_bind_mw(a->qp, mw, &bind);
        EXPECT_EQ(posted, row.type_1);
      } else {
        ibv_send_wr wr = {};
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw = {mw, ibv_inc_rkey(mw->rkey), info};
        EXPECT_EQ(a->Post(wr, {}), 0);
      }
      if (posted == 0) {
        EXPECT_EQ(a->WaitSend().status, IBV_WC_MW_BIND_ERR);
      }
      EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    }
  }
}

TEST_F(Verb_ibv_reg_mr, EveryAccessFlag) {
  Make(IBV_QPT_RC);
  constexpr unsigned kLocal = IBV_ACCESS_LOCAL_WRITE;
  struct Case {
    unsigned access;
    int error;
  };
  std::vector<Case> cases = {
      {0, 0},
      {kLocal, 0},
      {IBV_ACCESS_REMOTE_READ, 0},
      {IBV_ACCESS_REMOTE_WRITE, EINVAL},
      {IBV_ACCESS_REMOTE_ATOMIC, EINVAL},
      {kLocal | IBV_ACCESS_REMOTE_WRITE, 0},
      {kLocal | IBV_ACCESS_REMOTE_ATOMIC, 0},
      {kLocal | IBV_ACCESS_MW_BIND, 0},
      {kLocal | IBV_ACCESS_ZERO_BASED, 0},
      {kLocal | IBV_ACCESS_HUGETLB, 0},
      {kLocal | IBV_ACCESS_ON_DEMAND, EOPNOTSUPP},
      {kLocal | 1u << 10, EINVAL},
      {kLocal | 1u << 19, EINVAL},
      {kLocal | 1u << 30, EINVAL},
      {kLocal | 1u << 31, EINVAL},
  };
  for (int bit = 20; bit < 30; ++bit) cases.push_back({kLocal | 1u << bit, 0});  // optional
  for (const Case& row : cases) {
    SCOPED_TRACE(row.access);
    errno = 0;
    ibv_mr* mr = ibv_reg_mr(a->pd, a->buffer.data(), 4096, row.access);
    EXPECT_EQ(mr == nullptr ? errno : 0, row.error);
    if (mr != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
  }
}

// A CQ is of no PD.
TEST_F(Verb_ibv_alloc_pd, QpsOfTwoPdsShareACq) {
  Make(IBV_QPT_RC);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = a->send_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 4, 1, 1, 0};
  ibv_qp* qp = ibv_create_qp(OtherPd(*a), &init);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(Post(kOperations[2], a->Sge(0, 8), There(), b->mr->rkey), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// Work by another domain's key is not let in by a key that names the same bytes.
TEST_F(Verb_ibv_alloc_pd, InvalidationOfAnotherPdsKeyIsRefused) {
  Make(IBV_QPT_RC);
  ibv_mr* mr = Region(*a, OtherPd(*a), kAllAccess);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = mr->rkey;
  ASSERT_EQ(a->Post(wr, {}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
  Make(IBV_QPT_RC);
  mr = Region(*b, OtherPd(*b), kAllAccess);
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.invalidate_rkey = mr->rkey;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Verb_ibv_bind_mw, AWindowOfType2IsOfItsQp) {
  Make(IBV_QPT_RC);
  Side c(SideOptions{.nic = 0});
  ibv_mw* mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw = {mw, ibv_inc_rkey(mw->rkey), {b->mr, There(), 64, IBV_ACCESS_REMOTE_WRITE}};
  ASSERT_EQ(b->Post(wr, {}), 0);
  EXPECT_EQ(b->WaitSend().status, IBV_WC_SUCCESS);
  mw->rkey = wr.bind_mw.rkey;
  // Another QP of b's domain, towards c.
  ibv_qp_init_attr init = {};
  init.send_cq = b->send_cq;
  init.recv_cq = b->recv_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 4, 1, 1, 0};
  ibv_qp* bound_to = b->qp;
  b->qp = ibv_create_qp(b->pd, &init);
  ASSERT_NE(b->qp, nullptr);
  Connect(c, *b, {});
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma = {There(), mw->rkey};
  ASSERT_EQ(c.Post(wr, {c.Sge(0, 8)}), 0);
  EXPECT_EQ(c.WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(Post(kOperations[2], a->Sge(0, 8), There(), mw->rkey), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS) << "its own QP";
  EXPECT_EQ(ibv_destroy_qp(bound_to), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

}  // namespace
}  // namespace verbena::conformance

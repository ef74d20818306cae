// Memory windows of type 2 (2B), bound by work requests of the program's; and what no bind may do.
#include "tests/conformance/window_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_post_send = WindowTest;
using Verb_ibv_wr_bind_mw = WindowTest;

TEST_F(Verb_ibv_post_send, BindOfType2OpensTheRangeToTheKeyGiven) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = (mw->rkey & ~0xffu) | 0xe7;
  wr.bind_mw.bind_info = Info();
  ASSERT_EQ(b->Post(wr, {}), 0);
  EXPECT_EQ(b->WaitSend().opcode, IBV_WC_BIND_MW);
  ExpectOpen(In(0), wr.bind_mw.rkey);
  EXPECT_EQ(b->buffer[kStart], 0xaa);
  ExpectClosed(In(0), mw->rkey);
}

TEST_F(Verb_ibv_post_send, ZeroBasedWindowCountsFromItsStart) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  ASSERT_EQ(Bind(mw, Info(kRights | IBV_ACCESS_ZERO_BASED)).status, IBV_WC_SUCCESS);
  ExpectOpen(0, mw->rkey);
  ExpectOpen(kLength - 8, mw->rkey);
  EXPECT_EQ(b->buffer[kStart], 0xaa);
  EXPECT_EQ(b->buffer[kStart + kLength - 1], 0xaa);
  ExpectClosed(kLength - 7, mw->rkey);
}

TEST_F(Verb_ibv_post_send, WindowOfType2IsOfOneQp) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_2);
  ibv_mw* of_all = Bound(IBV_MW_TYPE_1);
  // b's second QP, of the same PD.
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = b->send_cq;
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* first = b->qp;
  ibv_qp* second = ibv_create_qp(b->pd, &init);
  ASSERT_NE(second, nullptr);
  b->qp = second;
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  Connect(*a, *b, {});
  ExpectOpen(In(0), of_all->rkey);
  EXPECT_EQ(Remote(IBV_WR_RDMA_WRITE, In(0), mw->rkey).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
  b->qp = first;
  EXPECT_EQ(ibv_destroy_qp(second), 0);
}

TEST_F(Verb_ibv_post_send, WindowIsClosedToAQpOfAnotherPd) {
  for (ibv_mw_type type : kTypes) {
    ibv_mw* mw = Bound(type);
    ibv_pd* pd = ibv_alloc_pd(b->context);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = b->send_cq;
    init.cap = {16, 16, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    ibv_qp* first = b->qp;
    ibv_qp* second = ibv_create_qp(pd, &init);
    ASSERT_NE(second, nullptr);
    b->qp = second;
    ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
    Connect(*a, *b, {});
    ExpectClosed(In(0), mw->rkey);
    b->qp = first;
    EXPECT_EQ(ibv_destroy_qp(second), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    Renew();
  }
}

TEST_F(Verb_ibv_post_send, LocalInvalidateTakesAWindowAwayAndFreesIt) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_2);
  const uint32_t old_key = mw->rkey;
  ibv_wc wc = LocalInvalidate(old_key);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  ASSERT_EQ(Bind(mw, Info()).status, IBV_WC_SUCCESS);
  ExpectOpen(In(0), mw->rkey);
  ExpectClosed(In(0), old_key);
}

TEST_F(Verb_ibv_post_send, SendWithInvalidateTakesAWindowAwayAndFreesIt) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_2);
  ASSERT_EQ(b->PostRecv(2, 0, 64), 0);
  ASSERT_EQ(PostSendWithInvalidate(mw->rkey), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.invalidated_rkey, mw->rkey);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  const uint32_t old_key = mw->rkey;
  ASSERT_EQ(Bind(mw, Info()).status, IBV_WC_SUCCESS);
  ExpectOpen(In(0), mw->rkey);
  ExpectClosed(In(0), old_key);
}

TEST_F(Verb_ibv_post_send, SendWithInvalidateOfAType1WindowFailsBothEnds) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_1);
  ASSERT_EQ(b->PostRecv(2, 0, 64), 0);
  ASSERT_EQ(PostSendWithInvalidate(mw->rkey), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_NE(b->WaitRecv().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_post_send, LocalInvalidateIsRefusedToAWindowThatIsNotBoundToTheQp) {
  for (ibv_mw_type type : kTypes) {
    ibv_mw* mw = type == IBV_MW_TYPE_1 ? Bound(type) : Alloc(type);
    EXPECT_EQ(LocalInvalidate(mw->rkey).status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(b->State(), IBV_QPS_ERR);
    Renew();
  }
}

TEST_F(Verb_ibv_post_send, BindIsRefusedWithACompletion) {
  struct Row {
    const char* what;
    unsigned mr_access;
    ibv_mw_bind_info info;
  };
  const uint64_t size = b->buffer.size();
  for (ibv_mw_type type : kTypes) {
    const unsigned bindable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    for (const Row& row : {Row{"no MW_BIND", IBV_ACCESS_LOCAL_WRITE, {nullptr, 0, 8, kRights}},
                           Row{"no local write", IBV_ACCESS_MW_BIND, {nullptr, 0, 8, kRights}},
                           Row{"before", bindable, {nullptr, ~uint64_t{0}, 8, kRights}},
                           Row{"behind", bindable, {nullptr, size - 7, 8, kRights}},
                           Row{"too long", bindable, {nullptr, 0, size + 1, kRights}}}) {
      SCOPED_TRACE(row.what);
      ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), size, static_cast<int>(row.mr_access));
      ASSERT_NE(mr, nullptr);
      ibv_mw* mw = Alloc(type);
      ibv_mw_bind_info info = row.info;
      info.mr = mr;
      info.addr += b->buffer.address();
      EXPECT_EQ(Bind(mw, info).status, IBV_WC_MW_BIND_ERR);
      EXPECT_EQ(b->State(), IBV_QPS_ERR);
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
      Renew();
    }
  }
}

TEST_F(Verb_ibv_post_send, BindOfType2IsRefusedWhileItIsBoundAndToNothing) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_2);
  EXPECT_EQ(Bind(mw, Info()).status, IBV_WC_MW_BIND_ERR);
  Renew();
  mw = Alloc(IBV_MW_TYPE_2);
  ibv_mw_bind_info info = Info();
  info.length = 0;
  EXPECT_EQ(Bind(mw, info).status, IBV_WC_MW_BIND_ERR);
}

TEST_F(Verb_ibv_post_send, BindIsCheckedAtOnceWhereItCanBe) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  ibv_mw* type_1 = Alloc(IBV_MW_TYPE_1);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = type_1;
  wr.bind_mw.rkey = ibv_inc_rkey(type_1->rkey);
  wr.bind_mw.bind_info = Info();
  EXPECT_EQ(b->Post(wr, {}), EINVAL);  // that is for ibv_bind_mw
  wr.bind_mw.mw = mw;
  wr.bind_mw.bind_info.mr = nullptr;
  EXPECT_EQ(b->Post(wr, {}), EINVAL);
  wr.bind_mw.bind_info = Info(IBV_ACCESS_ON_DEMAND);
  EXPECT_EQ(b->Post(wr, {}), EINVAL);
  wr.bind_mw.bind_info = Info();
  wr.send_flags = IBV_SEND_INLINE;
  EXPECT_EQ(b->Post(wr, {}), EINVAL);
}

TEST_F(Verb_ibv_post_send, DatagramQpsBindNothing) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  std::vector<ibv_mw*> kept = std::move(windows);
  windows.clear();
  std::unique_ptr<Side> rc_a = std::move(a), rc_b = std::move(b);
  MakeUdPair();
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = {rc_b->mr, rc_b->buffer.address(), 4096, kRights};
  EXPECT_EQ(b->Post(wr, {}), EINVAL);
  a.reset();
  b.reset();
  a = std::move(rc_a);
  b = std::move(rc_b);
  windows = std::move(kept);
}

TEST_F(Verb_ibv_post_send, WindowsOverUc) {
  for (ibv_mw_type type : kTypes) {
    TearDown();
    windows.clear();
    a.reset();
    b.reset();
    Make(SideOptions{.type = IBV_QPT_UC});
    ibv_mw* mw = Bound(type);
    ExpectOpen(In(0), mw->rkey);
    EXPECT_TRUE(Eventually([&] { return b->buffer[kStart + 7] == 0xaa; }));
    if (type == IBV_MW_TYPE_1) {
      ASSERT_EQ(Bind(mw, {nullptr, 0, 0, 0}).status, IBV_WC_SUCCESS);
    } else {
      ASSERT_EQ(LocalInvalidate(mw->rkey).status, IBV_WC_SUCCESS);
    }
    b->buffer[kStart] = 0x11;
    ExpectOpen(In(0), mw->rkey);  // nobody tells the sender
    EXPECT_TRUE(NeverWithin([&] { return b->buffer[kStart] != 0x11; }));
  }
}

// --- ibv_wr_* -----------------------------------------------------------------------------------

TEST_F(Verb_ibv_wr_bind_mw, BindsAndTellsInOneBatch) {
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(b->qp);
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  const uint32_t rkey = ibv_inc_rkey(mw->rkey);
  const ibv_mw_bind_info info = Info();
  ASSERT_EQ(a->PostRecv(3, 4096, 64), 0);
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_bind_mw(ex, mw, rkey, &info);
  ex->wr_id = 2;
  ibv_wr_send(ex);
  ibv_wr_set_sge(ex, b->mr->lkey, b->buffer.address(), 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitRecv().wr_id, 3u);
  ExpectOpen(In(0), rkey);
  ibv_wc wc = b->WaitSend();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(b->WaitSend().wr_id, 2u);
  ibv_wr_start(ex);
  ex->wr_id = 4;
  ibv_wr_local_inv(ex, rkey);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitSend().opcode, IBV_WC_LOCAL_INV);
  ExpectClosed(In(0), rkey);
}

TEST_F(Verb_ibv_wr_bind_mw, RefusesWhatNoWindowTakes) {
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(b->qp);
  ibv_mw* type_1 = Alloc(IBV_MW_TYPE_1);
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  ibv_mw_bind_info info = Info();
  ibv_wr_start(ex);
  ibv_wr_bind_mw(ex, type_1, ibv_inc_rkey(type_1->rkey), &info);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  info.mr = nullptr;
  ibv_wr_start(ex);
  ibv_wr_bind_mw(ex, mw, ibv_inc_rkey(mw->rkey), &info);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_EQ(b->State(), IBV_QPS_RTS);
}

}  // namespace
}  // namespace verbena::conformance

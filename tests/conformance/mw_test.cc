// Memory windows: their life, and what type 1 lets in.
#include <algorithm>

#include "tests/conformance/window_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_alloc_mw = WindowTest;
using Verb_ibv_dealloc_mw = WindowTest;
using Verb_ibv_bind_mw = WindowTest;
using Verb_ibv_dereg_mr = WindowTest;
using Verb_ibv_dealloc_pd = WindowTest;
using Verb_ibv_destroy_qp = WindowTest;
using Verb_ibv_query_device = WindowTest;

TEST_F(Verb_ibv_query_device, TellsOfWindows) {
  ibv_device_attr attr;
  ASSERT_EQ(ibv_query_device(b->context, &attr), 0);
  EXPECT_GE(attr.max_mw, 10'000);
  EXPECT_TRUE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
  EXPECT_TRUE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
  EXPECT_FALSE(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A);
}

// --- allocation ---------------------------------------------------------------------------------

TEST_F(Verb_ibv_alloc_mw, GivesAWindowThatLeadsNowhereYet) {
  for (ibv_mw_type type : kTypes) {
    ibv_mw* mw = Alloc(type);
    EXPECT_EQ(mw->context, b->context);
    EXPECT_EQ(mw->pd, b->pd);
    EXPECT_EQ(mw->type, type);
    ExpectClosed(In(0), mw->rkey);
    Renew();
  }
}

TEST_F(Verb_ibv_alloc_mw, KeysAreUniqueAmongWindowsAndRegions) {
  std::vector<uint32_t> indices = {b->mr->rkey >> 8};
  for (int i = 0; i < 100; ++i) indices.push_back(Alloc(kTypes[i % 2])->rkey >> 8);
  std::sort(indices.begin(), indices.end());
  EXPECT_EQ(std::unique(indices.begin(), indices.end()), indices.end());
}

TEST_F(Verb_ibv_alloc_mw, UnknownTypeIsRefused) {
  for (int type : {0, 3, -1}) {
    errno = 0;
    EXPECT_EQ(ibv_alloc_mw(b->pd, static_cast<ibv_mw_type>(type)), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST_F(Verb_ibv_dealloc_mw, TakesABoundWindowAway) {
  for (ibv_mw_type type : kTypes) {
    ibv_mw* mw = Bound(type);
    const uint32_t rkey = mw->rkey;
    ExpectOpen(In(0), rkey);
    windows.clear();
    ASSERT_EQ(ibv_dealloc_mw(mw), 0);
    ExpectClosed(In(0), rkey);
    Renew();
  }
}

TEST_F(Verb_ibv_dealloc_mw, ItsKeyStaysDeadForTheNextWindow) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_1);
  const uint32_t rkey = mw->rkey;
  windows.clear();
  ASSERT_EQ(ibv_dealloc_mw(mw), 0);
  mw = Bound(IBV_MW_TYPE_1);
  ExpectOpen(In(0), mw->rkey);
  ExpectClosed(In(0), rkey);
}

TEST_F(Verb_ibv_dealloc_pd, IsBusyWhileItHasWindows) {
  ibv_pd* pd = ibv_alloc_pd(b->context);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_dereg_mr, IsBusyWhileAWindowIsBound) {
  for (ibv_mw_type type : kTypes) {
    ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), b->buffer.size(),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    ASSERT_NE(mr, nullptr);
    ibv_mw* mw = Alloc(type);
    ibv_mw_bind_info info = Info();
    info.mr = mr;
    ASSERT_EQ(Bind(mw, info).status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
    ExpectOpen(In(0), mw->rkey);  // the region is as it was
    if (type == IBV_MW_TYPE_1) {
      ASSERT_EQ(Bind(mw, {nullptr, 0, 0, 0}).status, IBV_WC_SUCCESS);
    } else {
      ASSERT_EQ(LocalInvalidate(mw->rkey).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(Verb_ibv_destroy_qp, FreesItsWindowsOfType2) {
  ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), b->buffer.size(),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ibv_mw* mw = Alloc(IBV_MW_TYPE_2);
  ibv_mw_bind_info info = Info();
  info.mr = mr;
  ASSERT_EQ(Bind(mw, info).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
  b->qp = nullptr;
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- what a window lets in ----------------------------------------------------------------------

TEST_F(Verb_ibv_bind_mw, OpensTheRangeToItsKeyAlone) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  const uint32_t before = mw->rkey;
  ASSERT_EQ(Bind(mw, Info()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(mw->rkey, ibv_inc_rkey(before));
  ExpectOpen(In(0), mw->rkey);
  ExpectOpen(In(kLength - 8), mw->rkey);
  EXPECT_EQ(b->buffer[kStart], 0xaa);
  EXPECT_EQ(b->buffer[kStart + kLength - 1], 0xaa);
  EXPECT_EQ(b->buffer[kStart - 1], 0xbb);
  ExpectClosed(In(0), before);
}

TEST_F(Verb_ibv_bind_mw, OutsideTheRangeItIsClosed) {
  for (ibv_mw_type type : kTypes) {
    for (size_t offset : {size_t{0} - 1, kLength - 7, kLength}) {
      SCOPED_TRACE(offset);
      ibv_mw* mw = Bound(type);
      ExpectClosed(In(offset), mw->rkey);
      Renew();
    }
  }
}

TEST_F(Verb_ibv_bind_mw, RightsAreThoseOfTheBind) {
  struct Row {
    ibv_wr_opcode opcode;
    unsigned right;
  };
  constexpr Row kRows[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
                           {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
                           {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};
  for (ibv_mw_type type : kTypes) {
    for (const Row& row : kRows) {
      SCOPED_TRACE(row.opcode);
      ibv_mw* mw = Alloc(type);
      ASSERT_EQ(Bind(mw, Info(row.right)).status, IBV_WC_SUCCESS);
      EXPECT_EQ(Remote(row.opcode, In(0), mw->rkey).status, IBV_WC_SUCCESS);
      mw = Alloc(type);
      ASSERT_EQ(Bind(mw, Info(kRights & ~row.right)).status, IBV_WC_SUCCESS);
      ExpectClosed(In(0), mw->rkey, row.opcode);
      Renew();
    }
  }
}

TEST_F(Verb_ibv_bind_mw, ALargeTransferFits) {
  a.reset();
  b.reset();
  Make(SideOptions{.buffer_bytes = 4 << 20});
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  ASSERT_EQ(Bind(mw, {b->mr, b->buffer.address() + 4096, (4 << 20) - 8192, kRights}).status,
            IBV_WC_SUCCESS);
  for (ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = b->buffer.address() + 4096;
    wr.wr.rdma.rkey = mw->rkey;
    ASSERT_EQ(a->Post(wr, {a->Sge(opcode == IBV_WR_RDMA_READ ? 4096 : 0, (4 << 20) - 8192)}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(b->buffer[4095], 0xbb);
  EXPECT_EQ(b->buffer[4096], 0xaa);
  EXPECT_EQ(b->buffer[(4 << 20) - 4097], 0xaa);
  EXPECT_EQ(b->buffer[(4 << 20) - 4096], 0xbb);
}

TEST_F(Verb_ibv_bind_mw, RebindTakesTheOldKeyAway) {
  for (bool by_old_key : {true, false}) {
    ibv_mw* mw = Bound(IBV_MW_TYPE_1);
    const uint32_t old_key = mw->rkey;
    ibv_mw_bind_info info = Info();
    info.addr += kLength;
    ASSERT_EQ(Bind(mw, info).status, IBV_WC_SUCCESS);
    ExpectOpen(In(kLength), mw->rkey);
    ExpectClosed(In(0), by_old_key ? old_key : mw->rkey);
    Renew();
  }
}

TEST_F(Verb_ibv_bind_mw, NoBytesUnbind) {
  for (bool with_mr : {true, false}) {
    ibv_mw* mw = Bound(IBV_MW_TYPE_1);
    ASSERT_EQ(Bind(mw, {with_mr ? b->mr : nullptr, 0, 0, 0}).status, IBV_WC_SUCCESS);
    ExpectClosed(In(0), mw->rkey);
    Renew();
  }
}

// As v64's suite has it with ibv_reg_mr_ex: a window does not care how its region was registered.
TEST_F(Verb_ibv_bind_mw, WorksOnARegionWithAnIova) {
  ibv_mr* mr = ibv_reg_mr_iova(b->pd, b->buffer.data(), b->buffer.size(), 0x1234'0000,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ASSERT_NE(mr, nullptr);
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  ASSERT_EQ(Bind(mw, {mr, 0x1234'0000 + kStart, kLength, kRights}).status, IBV_WC_SUCCESS);
  ExpectOpen(0x1234'0000 + kStart, mw->rkey);
  EXPECT_EQ(b->buffer[kStart], 0xaa);
  ExpectClosed(In(0), mw->rkey);
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  windows.clear();
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_bind_mw, TheKeySentBehindItIsGood) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  ASSERT_EQ(a->PostRecv(3, 4096, 64), 0);
  ASSERT_EQ(PostBind(mw, Info(), 1), 0);
  ASSERT_EQ(b->Send(2, 0, 8), 0);  // without a look at the bind's completion
  EXPECT_EQ(a->WaitRecv().wr_id, 3u);
  ExpectOpen(In(0), mw->rkey);
  EXPECT_EQ(b->WaitSend().wr_id, 1u);
  EXPECT_EQ(b->WaitSend().wr_id, 2u);
}

TEST_F(Verb_ibv_bind_mw, AFailureIsACompletionAndTheOldBindingStays) {
  ibv_mw* mw = Bound(IBV_MW_TYPE_1);
  const uint32_t old_key = mw->rkey;
  ibv_mw_bind_info info = Info();
  info.length = b->buffer.size();
  ASSERT_EQ(PostBind(mw, info, 5), 0);
  ASSERT_EQ(b->Send(6, 0, 8), 0);
  ibv_wc wc = b->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(b->WaitSend().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(b->State(), IBV_QPS_ERR);
  mw->rkey = old_key;  // ibv_bind_mw(3): the program's to do
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
  Connect(*a, *b, {});
  ExpectOpen(In(0), old_key);
}

TEST_F(Verb_ibv_bind_mw, ErrnoRules) {
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  ibv_mw* type_2 = Alloc(IBV_MW_TYPE_2);
  const uint32_t rkey = mw->rkey;
  auto bind = [&](ibv_qp* qp, ibv_mw* window, ibv_mw_bind_info info, unsigned flags = 0) {
    ibv_mw_bind request = {1, flags, info};
    return ibv_bind_mw(qp, window, &request);
  };
  EXPECT_EQ(bind(b->qp, type_2, Info()), EINVAL);
  EXPECT_EQ(bind(b->qp, mw, {nullptr, 4096, 0, 0}), EINVAL);
  EXPECT_EQ(bind(b->qp, mw, {nullptr, 0, 4096, 0}), EINVAL);
  EXPECT_EQ(bind(b->qp, mw, Info(kRights | IBV_ACCESS_ZERO_BASED)), EINVAL);
  EXPECT_EQ(bind(b->qp, mw, Info(IBV_ACCESS_MW_BIND)), EINVAL);
  EXPECT_EQ(bind(b->qp, mw, Info(), IBV_SEND_INLINE), EINVAL);
  ibv_pd* pd = ibv_alloc_pd(b->context);
  ibv_mr* mr = ibv_reg_mr(pd, b->buffer.data(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(bind(b->qp, mw, {mr, b->buffer.address(), 4096, kRights}), EPERM);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
  EXPECT_EQ(bind(b->qp, mw, Info()), EINVAL);
  EXPECT_EQ(mw->rkey, rkey);  // not touched by a bind that was not posted
}

TEST_F(Verb_ibv_bind_mw, AFullQueueIsNoMemory) {
  ASSERT_EQ(b->ToState(IBV_QPS_SQD), 0);  // nothing is taken out
  ibv_mw* mw = Alloc(IBV_MW_TYPE_1);
  int error = 0;
  for (int i = 0; i < 100'000 && error == 0; ++i) {
    const uint32_t before = mw->rkey;
    error = PostBind(mw, Info());
    EXPECT_EQ(mw->rkey, error == 0 ? ibv_inc_rkey(before) : before);
  }
  EXPECT_EQ(error, ENOMEM);
}

}  // namespace
}  // namespace verbena::conformance

// Thread domains and parent domains: what they may be made of, that a parent domain is as good as
// its PD, and that each stays while something uses it.
#include <cerrno>
#include <cstring>
#include <memory>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class DomainTest : public VerbsTest {
 protected:
  static ibv_qp* NewQp(ibv_pd* pd, const Side& side, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init = {};
    init.send_cq = side.send_cq;
    init.recv_cq = side.recv_cq;
    init.srq = srq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, srq == nullptr ? 8u : 0u, 1, srq == nullptr ? 1u : 0u, 0};
    return ibv_create_qp(pd, &init);
  }
  static ibv_srq* NewSrq(ibv_pd* pd) {
    ibv_srq_init_attr init = {};
    init.attr = {8, 1, 0};
    return ibv_create_srq(pd, &init);
  }
};

using Verb_ibv_alloc_td = DomainTest;
using Verb_ibv_dealloc_td = DomainTest;
using Verb_ibv_alloc_parent_domain = DomainTest;
using Verb_ibv_dealloc_pd = DomainTest;

TEST_F(Verb_ibv_alloc_td, RefusesAnUnknownMask) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_td_init_attr attr = {};
  attr.comp_mask = 1u << 31;
  errno = 0;
  EXPECT_EQ(ibv_alloc_td(a->context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_td* td = NewTd(a->context);
  ASSERT_NE(td, nullptr);
  EXPECT_EQ(td->context, a->context);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

TEST_F(Verb_ibv_dealloc_td, IsBusyWhileAParentDomainHasIt) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_td* td = NewTd(a->context);
  ibv_pd* first = ParentOf(a->pd, td);
  ibv_pd* second = ParentOf(a->pd, td);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(first), 0);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

TEST_F(Verb_ibv_alloc_parent_domain, RefusesWhatItCanNotBeMadeOf) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ibv_td* foreign_td = NewTd(b->context);
  struct {
    const char* what;
    ibv_pd* pd;
    ibv_td* td;
    uint32_t mask;
  } rows[] = {{"no PD", nullptr, nullptr, 0},
              {"another context's PD", b->pd, nullptr, 0},
              {"another context's TD", a->pd, foreign_td, 0},
              {"an unknown mask", a->pd, nullptr, 1u << 31}};
  for (const auto& row : rows) {
    ibv_parent_domain_init_attr attr = {};
    attr.pd = row.pd;
    attr.td = row.td;
    attr.comp_mask = row.mask;
    errno = 0;
    EXPECT_EQ(ibv_alloc_parent_domain(a->context, &attr), nullptr) << row.what;
    EXPECT_EQ(errno, EINVAL) << row.what;
  }
  EXPECT_EQ(ibv_dealloc_td(foreign_td), 0);
}

TEST_F(Verb_ibv_dealloc_pd, IsBusyWhileItHasParentDomains) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_pd* pd = ibv_alloc_pd(a->context);
  ibv_pd* parent = ParentOf(pd);
  ibv_pd* of_parent = ParentOf(parent);
  ASSERT_TRUE(parent != nullptr && of_parent != nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(of_parent), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_dealloc_pd, OfAParentDomainIsBusyWhileItHasObjects) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_pd* parent = ParentOf(a->pd);
  ASSERT_NE(parent, nullptr);
  ibv_mr* mr = ibv_reg_mr(parent, a->buffer.data(), 64, kAllAccess);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->pd, parent);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_ah_attr address = AddressOf(a->gid());
  ibv_ah* ah = ibv_create_ah(parent, &address);
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  ibv_srq* srq = NewSrq(parent);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  ibv_qp* qp = NewQp(parent, *a);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->pd, parent);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  ibv_cq_ex* cq = NewCqIn(a->context, parent, 16);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
}

// Only a parent domain says anything about a CQ.
TEST_F(Verb_ibv_alloc_parent_domain, IsWhatACqTakesAndAPdIsNot) {
  a = std::make_unique<Side>(SideOptions{});
  for (ibv_pd* pd : {a->pd, static_cast<ibv_pd*>(nullptr)}) {
    errno = 0;
    EXPECT_EQ(NewCqIn(a->context, pd, 16), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
}

// Keys of a PD, of two parent domains of it, and of a parent domain of one of those are all good
// for QPs of any of them, on both sides.
TEST_F(Verb_ibv_alloc_parent_domain, SharesKeysWithItsPd) {
  for (bool with_td : {false, true}) {
    MakePair(SideOptions{.with_td = with_td}, SideOptions{.nic = 1, .with_td = with_td}, {});
    ibv_pd* other = ParentOf(a->base_pd != nullptr ? a->base_pd : a->pd);
    ibv_pd* nested = ParentOf(other);
    ibv_pd* peers = ParentOf(b->base_pd != nullptr ? b->base_pd : b->pd);
    ASSERT_TRUE(other != nullptr && nested != nullptr && peers != nullptr);
    memset(a->buffer.data(), 0x5a, 64);
    ibv_mr* theirs = ibv_reg_mr(peers, b->buffer.data(), b->buffer.size(), kAllAccess);
    ASSERT_NE(theirs, nullptr);
    size_t offset = 0;
    for (ibv_pd* pd : {other, nested}) {
      ibv_mr* mine = ibv_reg_mr(pd, a->buffer.data(), a->buffer.size(), kAllAccess);
      ASSERT_NE(mine, nullptr);
      ibv_send_wr wr = {};
      wr.opcode = IBV_WR_RDMA_WRITE;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.rdma.remote_addr = b->buffer.address() + offset;
      wr.wr.rdma.rkey = theirs->rkey;
      ASSERT_EQ(a->Post(wr, {{a->buffer.address(), 64, mine->lkey}}), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      EXPECT_EQ(memcmp(b->buffer.data() + offset, a->buffer.data(), 64), 0);
      EXPECT_EQ(ibv_dereg_mr(mine), 0);
      offset += 64;
    }
    EXPECT_EQ(ibv_dereg_mr(theirs), 0);
    for (ibv_pd* pd : {nested, other, peers}) EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  }
}

TEST_F(Verb_ibv_alloc_parent_domain, KeepsOutKeysOfAnotherPd) {
  MakePair(SideOptions{.with_td = true}, SideOptions{.nic = 1}, {});
  ibv_pd* pd = ibv_alloc_pd(a->context);
  ibv_pd* parent = ParentOf(pd);
  ibv_mr* mr = ibv_reg_mr(parent, a->buffer.data(), a->buffer.size(), kAllAccess);
  ASSERT_NE(mr, nullptr);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(a->Post(wr, {{a->buffer.address(), 64, mr->lkey}}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_alloc_parent_domain, SrqAndQpOfItsPdGoTogether) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_td* td = NewTd(a->context);
  ibv_pd* parent = ParentOf(a->pd, td);
  ASSERT_NE(parent, nullptr);
  struct {
    ibv_pd *srq_pd, *qp_pd;
  } rows[] = {{parent, a->pd}, {a->pd, parent}, {parent, parent}};
  for (const auto& row : rows) {
    ibv_srq* srq = NewSrq(row.srq_pd);
    ASSERT_NE(srq, nullptr);
    ibv_qp* qp = NewQp(row.qp_pd, *a, srq);
    EXPECT_NE(qp, nullptr);
    EXPECT_EQ(qp != nullptr ? ibv_destroy_qp(qp) : 0, 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
  }
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

// Every kind of queue without its lock: posting, polling and events work as ever.
TEST_F(Verb_ibv_alloc_td, QueuesWorkWithoutLocks) {
  for (bool with_srq : {false, true}) {
    MakePair(SideOptions{.with_srq = with_srq, .with_channel = true, .with_td = true},
             SideOptions{.nic = 1, .with_srq = with_srq, .with_channel = true, .with_td = true},
             {});
    memset(a->buffer.data(), 0x77, 256);
    ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
    for (uint64_t i = 0; i < 40; ++i) {
      ASSERT_EQ(b->PostRecv(i, 1024 * i, 1024), 0);
      ASSERT_EQ(a->Send(i, 0, 256), 0);
      EXPECT_EQ(a->WaitSend().wr_id, i);
      ibv_wc wc = b->WaitRecv();
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, i);
      EXPECT_EQ(memcmp(b->buffer.data() + 1024 * i, a->buffer.data(), 256), 0);
    }
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b->channel, &cq, &context), 0);
    EXPECT_EQ(cq, b->recv_cq);
    ibv_ack_cq_events(cq, 1);
    EXPECT_EQ(ibv_resize_cq(b->recv_cq, 512), 0);
    EXPECT_EQ(a->ToState(IBV_QPS_ERR), 0);
    ASSERT_EQ(a->Send(99, 0, 8), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_WR_FLUSH_ERR);
  }
}

// Whatever verb posts, the doorbell is the queue's.
TEST_F(Verb_ibv_alloc_td, WindowsAreBoundByAQpOfOne) {
  MakePair(SideOptions{},
           SideOptions{.nic = 1, .mr_access = kAllAccess | IBV_ACCESS_MW_BIND, .with_td = true},
           {});
  ibv_mw* mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind bind = {
      7, IBV_SEND_SIGNALED, {b->mr, b->buffer.address(), 64, IBV_ACCESS_REMOTE_WRITE}};
  ASSERT_EQ(ibv_bind_mw(b->qp, mw, &bind), 0);
  EXPECT_EQ(b->WaitSend().wr_id, 7u);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = mw->rkey;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 64)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

}  // namespace
}  // namespace verbena::conformance

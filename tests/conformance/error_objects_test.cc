// Objects that are in use, of another context, destroyed, or not what they say: who may destroy
// what when, and what a wrong handle does.
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class ObjectsTest : public VerbsTest {
 protected:
  void SetUp() override { a = std::make_unique<Side>(SideOptions{.with_srq = true}); }

  ibv_qp* NewQp(ibv_pd* pd, ibv_cq* send_cq, ibv_cq* recv_cq, ibv_srq* srq = nullptr,
                ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr init = {};
    init.send_cq = send_cq;
    init.recv_cq = recv_cq;
    init.srq = srq;
    init.qp_type = type;
    init.cap = {4, 4, 1, 1, 0};
    errno = 0;
    return ibv_create_qp(pd, &init);
  }
  ibv_srq* NewSrq(ibv_pd* pd) {
    ibv_srq_init_attr init = {};
    init.attr = {4, 1, 0};
    return ibv_create_srq(pd, &init);
  }
  ibv_ah* NewAh(ibv_pd* pd) {
    ibv_ah_attr attr = AddressOf(a->gid());
    return ibv_create_ah(pd, &attr);
  }
  ibv_mr* NewMr(ibv_pd* pd) {
    return ibv_reg_mr(pd, a->buffer.data(), 4096, kAllAccess | IBV_ACCESS_MW_BIND);
  }
  ibv_dm* NewDm(ibv_context* context) {
    ibv_alloc_dm_attr attr = {};
    attr.length = 64;
    return ibv_alloc_dm(context, &attr);
  }
  ibv_mr* NewDmMr(ibv_pd* pd, ibv_dm* dm) {
    return ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
  }
};

using Verb_ibv_dealloc_pd = ObjectsTest;
using Verb_ibv_destroy_cq = ObjectsTest;
using Verb_ibv_destroy_srq = ObjectsTest;
using Verb_ibv_destroy_qp = ObjectsTest;
using Verb_ibv_destroy_comp_channel = ObjectsTest;
using Verb_ibv_dereg_mr = ObjectsTest;
using Verb_ibv_free_dm = ObjectsTest;
using Verb_ibv_dealloc_td = ObjectsTest;
using Verb_ibv_close_device = ObjectsTest;
using Verb_ibv_ack_cq_events = ObjectsTest;
using Verb_ibv_ack_async_event = ObjectsTest;
using Verb_ibv_req_notify_cq = ObjectsTest;

// --- destroy order -------------------------------------------------------------------------------

// One object that refers to another: while it lives, the other is busy.
struct Reference {
  const char* what;
  std::function<void*()> make;
  std::function<int(void*)> destroy;
};

void ExpectBusyWhileReferred(const std::vector<Reference>& references,
                             const std::function<int()>& destroy) {
  for (const Reference& reference : references) {
    SCOPED_TRACE(reference.what);
    void* object = reference.make();
    ASSERT_NE(object, nullptr) << strerror(errno);
    EXPECT_EQ(destroy(), EBUSY);
    EXPECT_EQ(destroy(), EBUSY) << "and stays what it is";
    EXPECT_EQ(reference.destroy(object), 0);
  }
  EXPECT_EQ(destroy(), 0);
}

#define VERBENA_DESTROY(type, verb) [](void* object) { return verb(static_cast<type*>(object)); }

TEST_F(Verb_ibv_dealloc_pd, IsBusyWithEveryKindOfObject) {
  for (bool is_parent : {false, true}) {
    SCOPED_TRACE(is_parent ? "a parent domain" : "a protection domain");
    ibv_dm* dm = NewDm(a->context);
    ibv_pd* base = ibv_alloc_pd(a->context);
    ibv_pd* pd = is_parent ? ParentOf(base) : base;
    ASSERT_TRUE(dm != nullptr && pd != nullptr);
    std::vector<Reference> references = {
        {"MR", [&] { return NewMr(pd); }, VERBENA_DESTROY(ibv_mr, ibv_dereg_mr)},
        {"null MR", [&] { return ibv_alloc_null_mr(pd); }, VERBENA_DESTROY(ibv_mr, ibv_dereg_mr)},
        {"MR of device memory", [&] { return NewDmMr(pd, dm); },
         VERBENA_DESTROY(ibv_mr, ibv_dereg_mr)},
        {"MW", [&] { return ibv_alloc_mw(pd, IBV_MW_TYPE_1); },
         VERBENA_DESTROY(ibv_mw, ibv_dealloc_mw)},
        {"QP", [&] { return NewQp(pd, a->send_cq, a->recv_cq); },
         VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)},
        {"SRQ", [&] { return NewSrq(pd); }, VERBENA_DESTROY(ibv_srq, ibv_destroy_srq)},
        {"AH", [&] { return NewAh(pd); }, VERBENA_DESTROY(ibv_ah, ibv_destroy_ah)},
        {"parent domain", [&] { return ParentOf(pd); }, VERBENA_DESTROY(ibv_pd, ibv_dealloc_pd)},
    };
    if (is_parent) {
      references.push_back(
          {"CQ", [&] { return NewCqIn(a->context, pd, 4); },
           [](void* cq) { return ibv_destroy_cq(ibv_cq_ex_to_cq(static_cast<ibv_cq_ex*>(cq))); }});
    }
    ExpectBusyWhileReferred(references, [&] { return ibv_dealloc_pd(pd); });
    if (is_parent) {
      EXPECT_EQ(ibv_dealloc_pd(base), 0);
    }
    EXPECT_EQ(ibv_free_dm(dm), 0);
  }
}

TEST_F(Verb_ibv_destroy_cq, IsBusyWithQpsThatSendOrReceiveThere) {
  ibv_cq* cq = ibv_create_cq(a->context, 4, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  ExpectBusyWhileReferred({{"QP that sends", [&] { return NewQp(a->pd, cq, a->recv_cq); },
                            VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)},
                           {"QP that receives", [&] { return NewQp(a->pd, a->send_cq, cq); },
                            VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)},
                           {"QP that does both", [&] { return NewQp(a->pd, cq, cq); },
                            VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)},
                           {"QP with an SRQ", [&] { return NewQp(a->pd, a->send_cq, cq, a->srq); },
                            VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)}},
                          [&] { return ibv_destroy_cq(cq); });
}

TEST_F(Verb_ibv_destroy_srq, IsBusyWithQpsOfEveryService) {
  ibv_srq* srq = NewSrq(a->pd);
  ASSERT_NE(srq, nullptr);
  std::vector<Reference> references;
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    references.push_back(
        {"QP", [this, srq, type] { return NewQp(a->pd, a->send_cq, a->recv_cq, srq, type); },
         VERBENA_DESTROY(ibv_qp, ibv_destroy_qp)});
  }
  ExpectBusyWhileReferred(references, [&] { return ibv_destroy_srq(srq); });
}

TEST_F(Verb_ibv_destroy_comp_channel, IsBusyWithCqsOfEitherKind) {
  ibv_comp_channel* channel = ibv_create_comp_channel(a->context);
  ASSERT_NE(channel, nullptr);
  ibv_pd* parent = ParentOf(a->pd);
  ExpectBusyWhileReferred(
      {{"CQ", [&] { return ibv_create_cq(a->context, 4, nullptr, channel, 0); },
        VERBENA_DESTROY(ibv_cq, ibv_destroy_cq)},
       {"extended CQ", [&] { return NewCqIn(a->context, parent, 4, channel); },
        [](void* cq) { return ibv_destroy_cq(ibv_cq_ex_to_cq(static_cast<ibv_cq_ex*>(cq))); }}},
      [&] { return ibv_destroy_comp_channel(channel); });
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
}

TEST_F(Verb_ibv_free_dm, IsBusyWithItsRegions) {
  ibv_dm* dm = NewDm(a->context);
  ASSERT_NE(dm, nullptr);
  ExpectBusyWhileReferred(
      {{"MR", [&] { return NewDmMr(a->pd, dm); }, VERBENA_DESTROY(ibv_mr, ibv_dereg_mr)}},
      [&] { return ibv_free_dm(dm); });
}

TEST_F(Verb_ibv_dealloc_td, IsBusyWithItsParentDomains) {
  ibv_td* td = NewTd(a->context);
  ASSERT_NE(td, nullptr);
  ExpectBusyWhileReferred({{"parent domain", [&] { return ParentOf(a->pd, td); },
                            VERBENA_DESTROY(ibv_pd, ibv_dealloc_pd)}},
                          [&] { return ibv_dealloc_td(td); });
}

TEST_F(Verb_ibv_dereg_mr, IsBusyWithWindowsOfEitherType) {
  MakePair();
  ibv_mr* mr = NewMr(a->pd);
  ASSERT_NE(mr, nullptr);
  auto bound = [&](ibv_mw_type type) -> void* {
    ibv_mw* mw = ibv_alloc_mw(a->pd, type);
    const ibv_mw_bind_info info = {mr, a->buffer.address(), 64, IBV_ACCESS_REMOTE_READ};
    ibv_mw_bind bind = {1, IBV_SEND_SIGNALED, info};
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw = {mw, ibv_inc_rkey(mw->rkey), info};
    EXPECT_EQ(type == IBV_MW_TYPE_1 ? ibv_bind_mw(a->qp, mw, &bind) : a->Post(wr, {}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    return mw;
  };
  ExpectBusyWhileReferred(
      {{"type 1", [&] { return bound(IBV_MW_TYPE_1); }, VERBENA_DESTROY(ibv_mw, ibv_dealloc_mw)},
       {"type 2", [&] { return bound(IBV_MW_TYPE_2); }, VERBENA_DESTROY(ibv_mw, ibv_dealloc_mw)}},
      [&] { return ibv_dereg_mr(mr); });
}

// As rdma-core: what a context still has goes with it, and with nobody else's.
TEST_F(Verb_ibv_close_device, TakesWhatIsLeftAndNoMore) {
  MakePair();
  ibv_context* other = OpenNic(0);
  ASSERT_NE(other, nullptr);
  ibv_pd* pd = ibv_alloc_pd(other);
  ibv_mr* mr = ibv_reg_mr(pd, a->buffer.data(), 4096, kAllAccess);
  ibv_cq* cq = ibv_create_cq(other, 4, nullptr, nullptr, 0);
  ASSERT_TRUE(mr != nullptr && NewQp(pd, cq, cq) != nullptr && NewSrq(pd) != nullptr);
  const uint32_t rkey = mr->rkey;
  EXPECT_EQ(ibv_close_device(other), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma = {a->buffer.address(), rkey};
  ASSERT_EQ(b->Post(wr, {b->Sge(0, 8)}), 0);
  EXPECT_EQ(b->WaitSend().status, IBV_WC_REM_ACCESS_ERR) << "its key went with it";
}

// --- objects of another context ------------------------------------------------------------------

// Made alike, so that each object has the number of one of a's.
class TwoContexts : public ObjectsTest {
 protected:
  void SetUp() override {
    SideOptions options;
    options.with_srq = true;
    options.with_channel = true;
    a = std::make_unique<Side>(options);
    other = std::make_unique<Side>(options);
    ASSERT_EQ(a->send_cq->handle, other->send_cq->handle);
    ASSERT_EQ(a->srq->handle, other->srq->handle);
    ASSERT_EQ(a->pd->handle, other->pd->handle);
  }
  void TearDown() override { other.reset(); }
  std::unique_ptr<Side> other;
};
using Verb_ibv_create_qp_of = TwoContexts;
using Verb_ibv_create_cq_of = TwoContexts;
using Verb_ibv_rereg_mr_of = TwoContexts;
using Verb_ibv_post_send_of = TwoContexts;

TEST_F(Verb_ibv_create_qp_of, AnotherContextTakesNone) {
  EXPECT_EQ(NewQp(a->pd, other->send_cq, a->recv_cq), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(NewQp(a->pd, a->send_cq, other->recv_cq), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(NewQp(a->pd, a->send_cq, a->recv_cq, other->srq), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(NewQp(other->pd, a->send_cq, a->recv_cq), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr_ex init = {};
  init.send_cq = init.recv_cq = a->send_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 4, 1, 1, 0};
  init.pd = other->pd;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  errno = 0;
  EXPECT_EQ(ibv_create_qp_ex(a->context, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verb_ibv_create_cq_of, AnotherContextTakesNone) {
  errno = 0;
  EXPECT_EQ(ibv_create_cq(a->context, 4, nullptr, other->channel, 0), nullptr);
  EXPECT_EQ(errno, EBADF);
  ibv_pd* parent = ParentOf(other->pd);
  ASSERT_NE(parent, nullptr);
  errno = 0;
  EXPECT_EQ(NewCqIn(a->context, parent, 4), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
}

TEST_F(Verb_ibv_rereg_mr_of, AnotherContextTakesNone) {
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(a->mr, IBV_REREG_MR_CHANGE_PD, other->pd, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  ibv_dm* dm = NewDm(other->context);
  ASSERT_NE(dm, nullptr);
  errno = 0;
  EXPECT_EQ(NewDmMr(a->pd, dm), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

// By ibv_post_send and by ibv_wr_*.
TEST_F(Verb_ibv_post_send_of, AnAddressHandleOfAnotherContextIsNone) {
  for (bool is_extended : {false, true}) {
    SetUp();
    SideOptions options;
    options.type = IBV_QPT_UD;
    options.send_ops = IBV_QP_EX_WITH_SEND;
    MakePair(options);
    ibv_ah* own = NewAh(a->pd);
    ibv_ah* foreign = NewAh(other->pd);
    ASSERT_TRUE(own != nullptr && foreign != nullptr);
    ASSERT_EQ(own->handle, foreign->handle);
    if (is_extended) {
      ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
      ibv_wr_start(ex);
      ex->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_send(ex);
      ibv_wr_set_ud_addr(ex, foreign, b->qp->qp_num, kQKey);
      ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), 8);
      EXPECT_EQ(ibv_wr_complete(ex), 0);
    } else {
      ibv_send_wr wr = {};
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.ud = {foreign, b->qp->qp_num, kQKey};
      EXPECT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
    }
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(a->State(), IBV_QPS_SQE);
    EXPECT_EQ(ibv_destroy_ah(own), 0);
    EXPECT_EQ(ibv_destroy_ah(foreign), 0);
  }
}

TEST_F(Verb_ibv_post_send_of, AWindowOrRegionOfAnotherContextIsNotBound) {
  for (const char* what : {"window of type 2", "window of type 1", "region"}) {
    SCOPED_TRACE(what);
    SetUp();
    MakePair();
    ibv_mw_type type = std::string(what) == "window of type 1" ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
    ibv_mw* own = ibv_alloc_mw(a->pd, type);
    ibv_mw* foreign = ibv_alloc_mw(other->pd, type);
    ibv_mr* own_mr = NewMr(a->pd);
    ibv_mr* foreign_mr = NewMr(other->pd);
    ASSERT_TRUE(own && foreign && own_mr && foreign_mr);
    ASSERT_EQ(own->handle, foreign->handle);
    const bool is_region = std::string(what) == "region";
    ibv_mw* mw = is_region ? own : foreign;
    const ibv_mw_bind_info info = {is_region ? foreign_mr : own_mr, a->buffer.address(), 64,
                                   IBV_ACCESS_REMOTE_READ};
    if (type == IBV_MW_TYPE_1) {
      ibv_mw_bind bind = {1, IBV_SEND_SIGNALED, info};
      EXPECT_EQ(ibv_bind_mw(a->qp, mw, &bind), EPERM) << "region and window differ in their PDs";
      bind.bind_info.mr = foreign_mr;
      EXPECT_EQ(ibv_bind_mw(a->qp, mw, &bind), 0);
    } else {
      ibv_send_wr wr = {};
      wr.opcode = IBV_WR_BIND_MW;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.bind_mw = {mw, ibv_inc_rkey(mw->rkey), info};
      EXPECT_EQ(a->Post(wr, {}), 0);
    }
    EXPECT_EQ(a->WaitSend().status, IBV_WC_MW_BIND_ERR);
    for (ibv_mw* each : {own, foreign}) EXPECT_EQ(ibv_dealloc_mw(each), 0);
    for (ibv_mr* each : {own_mr, foreign_mr}) EXPECT_EQ(ibv_dereg_mr(each), 0);
  }
}

// Its key may have the number of a region here.
TEST_F(Verb_ibv_post_send_of, ARegionOfAnotherNicIsNotBound) {
  MakePair();
  ibv_mw* mw = ibv_alloc_mw(a->pd, IBV_MW_TYPE_2);
  ibv_mr* own = NewMr(a->pd);
  ASSERT_TRUE(mw != nullptr && own != nullptr && a->context->device != b->context->device);
  ibv_mr foreign = *b->mr;
  foreign.lkey = own->lkey;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw = {mw, ibv_inc_rkey(mw->rkey),
                {&foreign, a->buffer.address(), 64, IBV_ACCESS_REMOTE_READ}};
  EXPECT_EQ(a->Post(wr, {}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(own), 0);
}

TEST_F(Verb_ibv_post_send_of, KeysOfAnotherContextAreKeysOfAnotherPd) {
  MakePair();
  ibv_mr* mr = ibv_reg_mr(other->pd, a->buffer.data(), 4096, kAllAccess);
  ASSERT_NE(mr, nullptr);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma = {a->buffer.address(), mr->rkey};
  ASSERT_EQ(b->Post(wr, {b->Sge(0, 8)}), 0);
  EXPECT_EQ(b->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  MakePair();
  wr.opcode = IBV_WR_SEND;
  ASSERT_EQ(a->Post(wr, {{a->buffer.address(), 8, mr->lkey}}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- handles that are wrong ----------------------------------------------------------------------

class HandlesTest : public ObjectsTest {
 protected:
  // Calls `verb` with handles that name nothing; each must give `error`.
  void ExpectEach(const char* what, uint32_t* handle, int error, const std::function<int()>& verb) {
    SCOPED_TRACE(what);
    const uint32_t good = *handle;
    for (uint32_t wrong :
         {0u, 1u, good ^ 0x80u, good + (1u << 20), good ^ 0x8000'0000u, 0xdead'beefu, ~0u}) {
      *handle = wrong;
      EXPECT_EQ(verb(), error) << std::hex << wrong;
    }
    *handle = good;
  }
};
using Verb_ibv_destroy_of = HandlesTest;

TEST_F(Verb_ibv_destroy_of, WrongHandlesIsRefusedAndChangesNothing) {
  MakePair();
  ibv_ah* ah = NewAh(a->pd);
  ibv_mw* mw = ibv_alloc_mw(a->pd, IBV_MW_TYPE_2);
  ibv_dm* dm = NewDm(a->context);
  ibv_srq* srq = NewSrq(a->pd);
  ibv_cq* cq = ibv_create_cq(a->context, 4, nullptr, nullptr, 0);
  ibv_pd* pd = ibv_alloc_pd(a->context);
  ASSERT_TRUE(ah && mw && dm && srq && cq && pd);
  ExpectEach("AH", &ah->handle, ENOENT, [&] { return ibv_destroy_ah(ah); });
  ExpectEach("MW", &mw->handle, ENOENT, [&] { return ibv_dealloc_mw(mw); });
  ExpectEach("DM", &dm->handle, ENOENT, [&] { return ibv_free_dm(dm); });
  ExpectEach("SRQ", &srq->handle, ENOENT, [&] { return ibv_destroy_srq(srq); });
  ExpectEach("CQ", &cq->handle, ENOENT, [&] { return ibv_destroy_cq(cq); });
  ExpectEach("PD", &pd->handle, ENOENT, [&] { return ibv_dealloc_pd(pd); });
  ExpectEach("MR", &a->mr->handle, ENOENT, [&] { return ibv_dereg_mr(a->mr); });
  ExpectEach("QP", &a->qp->handle, ENOENT, [&] { return ibv_destroy_qp(a->qp); });
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS) << "all of it is as it was";
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_destroy_of, WrongHandlesIsEinvalToAllOtherVerbs) {
  MakePair();
  a->ToState(IBV_QPS_RESET);
  ibv_srq* srq = NewSrq(a->pd);
  ASSERT_NE(srq, nullptr);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ibv_srq_attr srq_attr = {};
  auto made = [](const void* object) { return object == nullptr ? errno : 0; };
  uint32_t* qp = &a->qp->handle;
  ExpectEach("modify QP", qp, EINVAL, [&] { return a->ToState(IBV_QPS_RESET); });
  ExpectEach("query QP", qp, EINVAL, [&] { return ibv_query_qp(a->qp, &attr, 0, &init); });
  ibv_gid group = {};
  group.raw[0] = 0xff;
  ExpectEach("attach", qp, EINVAL, [&] { return ibv_attach_mcast(a->qp, &group, 0); });
  ExpectEach("query SRQ", &srq->handle, EINVAL, [&] { return ibv_query_srq(srq, &srq_attr); });
  ExpectEach("modify SRQ", &srq->handle, EINVAL, [&] {
    srq_attr.srq_limit = 1;
    return ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT);
  });
  ExpectEach("QP on an SRQ", &srq->handle, EINVAL, [&] {
    // Handle 0 is how the NIC is told of none.
    if (srq->handle == 0) return EINVAL;
    return made(NewQp(a->pd, a->send_cq, a->recv_cq, srq));
  });
  ExpectEach("QP on a CQ", &a->send_cq->handle, EINVAL,
             [&] { return made(NewQp(a->pd, a->send_cq, a->recv_cq)); });
  ExpectEach("resize CQ", &a->send_cq->handle, EINVAL,
             [&] { return ibv_resize_cq(a->send_cq, 512); });
  uint32_t* pd = &a->pd->handle;
  ExpectEach("MR in a PD", pd, EINVAL, [&] { return made(NewMr(a->pd)); });
  ExpectEach("AH in a PD", pd, EINVAL, [&] { return made(NewAh(a->pd)); });
  ExpectEach("SRQ in a PD", pd, EINVAL, [&] { return made(NewSrq(a->pd)); });
  ExpectEach("MW in a PD", pd, EINVAL, [&] { return made(ibv_alloc_mw(a->pd, IBV_MW_TYPE_1)); });
  ExpectEach("QP in a PD", pd, EINVAL, [&] { return made(NewQp(a->pd, a->send_cq, a->recv_cq)); });
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// The number of what was destroyed does not become that of the next.
TEST_F(Verb_ibv_destroy_of, StaleHandlesNameNothing) {
  std::vector<uint32_t> stale;
  for (int i = 0; i < 50; ++i) {
    ibv_cq* cq = ibv_create_cq(a->context, 4, nullptr, nullptr, 0);
    ASSERT_NE(cq, nullptr);
    const uint32_t good = cq->handle;
    for (uint32_t old : stale) {
      ASSERT_NE(good, old);
      cq->handle = old;
      ASSERT_EQ(ibv_destroy_cq(cq), ENOENT);
      ASSERT_EQ(NewQp(a->pd, cq, cq), nullptr);
      ASSERT_EQ(errno, EINVAL);
    }
    cq->handle = good;
    ASSERT_EQ(ibv_destroy_cq(cq), 0);
    stale.push_back(good);
  }
}

// Within one context the library can't tell: the other object is meant then. It hurts nobody else.
TEST_F(Verb_ibv_destroy_of, SwappedHandlesDestroyEachOther) {
  ibv_qp* first = NewQp(a->pd, a->send_cq, a->recv_cq);
  ibv_qp* second = NewQp(a->pd, a->send_cq, a->recv_cq, a->srq, IBV_QPT_UD);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  std::swap(first->handle, second->handle);
  EXPECT_EQ(ibv_destroy_qp(first), 0);
  EXPECT_EQ(ibv_destroy_qp(second), 0);
  MakePair();
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

using Verb_ibv_post_send_by = HandlesTest;

TEST_F(Verb_ibv_post_send_by, AWrongAddressHandleFailsTheRequest) {
  for (uint32_t wrong : {0u, 0xdead'beefu, ~0u}) {
    MakeUdPair();
    ibv_ah* ah = NewAh(a->pd);
    ASSERT_NE(ah, nullptr);
    const uint32_t good = std::exchange(ah->handle, wrong);
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud = {ah, b->qp->qp_num, kQKey};
    EXPECT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
    ah->handle = good;
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
  }
}

// --- events --------------------------------------------------------------------------------------

TEST_F(Verb_ibv_ack_cq_events, MoreThanWereSeenHoldNobodyUp) {
  ibv_comp_channel* channel = ibv_create_comp_channel(a->context);
  ibv_cq* cq = ibv_create_cq(a->context, 4, nullptr, channel, 0);
  ASSERT_NE(cq, nullptr);
  ibv_ack_cq_events(cq, 0);
  ibv_ack_cq_events(cq, 5);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verb_ibv_ack_async_event, EventsNeverSeenHoldNobodyUp) {
  ibv_srq* srq = NewSrq(a->pd);
  ibv_cq* cq = ibv_create_cq(a->context, 4, nullptr, nullptr, 0);
  ibv_qp* qp = NewQp(a->pd, cq, cq, srq);
  ASSERT_NE(qp, nullptr);
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = qp;
  ibv_ack_async_event(&event);
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = cq;
  ibv_ack_async_event(&event);
  event.event_type = IBV_EVENT_SRQ_ERR;
  event.element.srq = srq;
  ibv_ack_async_event(&event);
  event.event_type = IBV_EVENT_PORT_ERR;
  event.element.port_num = 200;
  ibv_ack_async_event(&event);
  event.event_type = static_cast<ibv_event_type>(1000);
  ibv_ack_async_event(&event);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verb_ibv_req_notify_cq, WithoutAChannelTellsNobody) {
  MakePair();
  EXPECT_EQ(ibv_req_notify_cq(a->send_cq, 0), 0);
  EXPECT_EQ(ibv_req_notify_cq(a->send_cq, 1), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

// --- numbers that were somebody else's -----------------------------------------------------------

TEST_F(Verb_ibv_destroy_qp, ItsNumberLeadsToNobody) {
  MakePair({}, ConnectOptions{.timeout = 8, .retry_cnt = 1});
  const uint32_t old = b->qp->qp_num;
  ASSERT_EQ(ibv_destroy_qp(std::exchange(b->qp, nullptr)), 0);
  // The next ones, of which the last is connected to whoever still sends to the old number.
  for (int i = 0; i < 100; ++i) {
    ibv_qp* next = NewQp(b->pd, b->send_cq, b->recv_cq);
    ASSERT_NE(next, nullptr);
    ASSERT_NE(next->qp_num, old);
    if (i < 99) {
      ASSERT_EQ(ibv_destroy_qp(next), 0);
    } else {
      b->qp = next;
    }
  }
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(b->ToRtr(a->qp->qp_num, a->gid(), {}), 0);
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ASSERT_EQ(a->Send(2, 0, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_RETRY_EXC_ERR);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 0);
}

}  // namespace
}  // namespace verbena::conformance

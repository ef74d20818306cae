// Queue pairs of identifiers: made by the library, or by programs that own theirs; and ECE.
#include <cerrno>
#include <cstring>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

class Cm_rdma_create_qp : public CmTest {};
class Cm_rdma_init_qp_attr : public CmTest {};
class Cm_rdma_establish : public CmTest {};
class Cm_rdma_set_local_ece : public CmTest {};

// --- rdma_create_qp, rdma_destroy_qp -------------------------------------------------------------

TEST_F(Cm_rdma_create_qp, MakesCqsAndSaysWhatItHas) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  ibv_qp_init_attr attr = QpOptions();
  ASSERT_EQ(rdma_create_qp(active.get(), nullptr, &attr), 0);
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_INIT);
  EXPECT_EQ(active->qp->pd, active->pd);
  EXPECT_NE(active->send_cq, nullptr);
  EXPECT_NE(active->recv_cq, nullptr);
  EXPECT_NE(active->send_cq_channel, nullptr);
  EXPECT_NE(active->recv_cq_channel, nullptr);
  EXPECT_EQ(attr.send_cq, active->send_cq);
  EXPECT_GE(attr.cap.max_inline_data, 16u);
  EXPECT_FAILS(MakeQp(active.get()), EINVAL);  // it has one
  rdma_destroy_qp(active.get());
  EXPECT_EQ(active->qp, nullptr);
  EXPECT_EQ(active->send_cq, nullptr);
  EXPECT_EQ(active->recv_cq_channel, nullptr);
  EXPECT_EQ(MakeQp(active.get()), 0);
}

TEST_F(Cm_rdma_create_qp, TakesThePdAndCqsOfTheProgram) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  ibv_pd* pd = ibv_alloc_pd(active->verbs);
  ibv_cq* cq = ibv_create_cq(active->verbs, 32, nullptr, nullptr, 0);
  ibv_qp_init_attr attr = QpOptions();
  attr.send_cq = attr.recv_cq = cq;
  ASSERT_EQ(rdma_create_qp(active.get(), pd, &attr), 0);
  EXPECT_EQ(active->qp->pd, pd);
  EXPECT_EQ(active->pd, pd);
  EXPECT_EQ(active->qp->send_cq, cq);
  EXPECT_EQ(active->send_cq, nullptr);
  active.Destroy();
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Cm_rdma_create_qp, RefusesAnotherNicsPdAndWhoHasNoNic) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  CmId other(active_channel, RDMA_PS_TCP);
  if (v64::IsOurs()) {  // upstream's asks the NIC that there is not
    EXPECT_FAILS(MakeQp(other.get()), EINVAL);
  }
  Address second("127.0.0.2");
  ASSERT_EQ(rdma_bind_addr(other.get(), second.get()), 0);
  ibv_qp_init_attr attr = QpOptions();
  EXPECT_FAILS(rdma_create_qp(active.get(), other->pd, &attr), EINVAL);
}

class Cm_rdma_create_qp_ex : public CmTest {};

TEST_F(Cm_rdma_create_qp_ex, TakesExtendedAttributes) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = QpOptions().cap;
  attr.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ASSERT_EQ(rdma_create_qp_ex(active.get(), &attr), 0) << strerror(errno);
  EXPECT_NE(ibv_qp_to_qp_ex(active->qp), nullptr);
  Request();
  Accept();
}

// --- rdma_init_qp_attr, rdma_establish: QPs that programs own ------------------------------------

TEST_F(Cm_rdma_init_qp_attr, TakesAQpOfTheProgramToRts) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  ibv_qp_attr attr = {};
  int mask = 0;
  attr.qp_state = IBV_QPS_RTR;
  EXPECT_FAILS(rdma_init_qp_attr(active.get(), &attr, &mask), EINVAL);  // nobody answered
  ibv_cq* cq = ibv_create_cq(active->verbs, 32, nullptr, nullptr, 0);
  ibv_qp_init_attr init = QpOptions();
  init.send_cq = init.recv_cq = cq;
  ibv_qp* qps[2] = {ibv_create_qp(active->pd, &init), ibv_create_qp(active->pd, &init)};
  auto modify = [](rdma_cm_id* id, ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr to = {};
    int bits = 0;
    to.qp_state = state;
    EXPECT_EQ(rdma_init_qp_attr(id, &to, &bits), 0) << strerror(errno);
    EXPECT_NE(bits & IBV_QP_STATE, 0);
    EXPECT_EQ(ibv_modify_qp(qp, &to, bits), 0) << "to state " << state;
  };
  rdma_conn_param param = Param();
  param.qp_num = qps[0]->qp_num;
  EXPECT_EQ(Request(&param).conn.qp_num, qps[0]->qp_num);
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    modify(passive.get(), qps[1], state);
  }
  param.qp_num = qps[1]->qp_num;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << strerror(errno);
  EXPECT_EQ(active_channel.Expect(RDMA_CM_EVENT_CONNECT_RESPONSE).conn.qp_num, qps[1]->qp_num);
  EXPECT_FALSE(passive_channel.IsReadable());
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    modify(active.get(), qps[0], state);
  }
  ASSERT_EQ(rdma_establish(active.get()), 0) << strerror(errno);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_FALSE(active_channel.IsReadable());  // who established it knows
  for (ibv_qp* qp : qps) {
    EXPECT_EQ(StateOf(qp), IBV_QPS_RTS);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Cm_rdma_init_qp_attr, RefusesOtherStatesAndWhoHasNoNic) {
  CmId id(active_channel, RDMA_PS_TCP);
  ibv_qp_attr attr = {};
  int mask = 0;
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_FAILS(rdma_init_qp_attr(id.get(), &attr, &mask), EINVAL);
  Connect();
  attr.qp_state = IBV_QPS_SQD;
  EXPECT_FAILS(rdma_init_qp_attr(active.get(), &attr, &mask), EINVAL);
}

TEST_F(Cm_rdma_establish, IsForWhoHasNoQp) {
  Connect();
  EXPECT_FAILS(rdma_establish(active.get()), EINVAL);
  CmId id(active_channel, RDMA_PS_TCP);
  EXPECT_FAILS(rdma_establish(id.get()), EINVAL);
}

// --- rdma_set_local_ece, rdma_get_remote_ece -----------------------------------------------------

TEST_F(Cm_rdma_set_local_ece, GoesToThePeerAndBack) {
  Listen();
  active = Resolved(active_channel, ListenerAddress());
  ibv_ece ece = {0x1234, 0x55, 0}, seen = {};
  ASSERT_EQ(rdma_set_local_ece(active.get(), &ece), 0);
  rdma_conn_param param = Param();
  param.qp_num = 100;
  Request(&param);
  ASSERT_EQ(rdma_get_remote_ece(passive.get(), &seen), 0);
  EXPECT_EQ(seen.vendor_id, 0x1234u);
  EXPECT_EQ(seen.options, 0x55u);
  EXPECT_EQ(seen.comp_mask, 0u);
  ece.options = 0x11;
  ASSERT_EQ(rdma_set_local_ece(passive.get(), &ece), 0);
  param.qp_num = 101;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << strerror(errno);
  active_channel.Expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(rdma_get_remote_ece(active.get(), &seen), 0);
  EXPECT_EQ(seen.vendor_id, 0x1234u);
  EXPECT_EQ(seen.options, 0x11u);
}

TEST_F(Cm_rdma_set_local_ece, RefusesNoVendorAndWhoHasAQp) {
  CmId id(active_channel, RDMA_PS_TCP);
  ibv_ece none = {}, ece = {1, 0, 0}, newer = {1, 0, 1};
  EXPECT_FAILS(rdma_set_local_ece(nullptr, &ece), EINVAL);
  EXPECT_FAILS(rdma_set_local_ece(id.get(), nullptr), EINVAL);
  EXPECT_FAILS(rdma_set_local_ece(id.get(), &none), EINVAL);
  EXPECT_FAILS(rdma_set_local_ece(id.get(), &newer), EINVAL);
  Listen();
  Resolve();
  EXPECT_FAILS(rdma_set_local_ece(active.get(), &ece), EINVAL);
}

class Cm_rdma_get_remote_ece : public CmTest {};

TEST_F(Cm_rdma_get_remote_ece, RefusesNoIdentifierAndWhoHasAQp) {
  ibv_ece ece = {};
  EXPECT_FAILS(rdma_get_remote_ece(nullptr, &ece), EINVAL);
  CmId id(active_channel, RDMA_PS_TCP);
  EXPECT_FAILS(rdma_get_remote_ece(id.get(), nullptr), EINVAL);
  EXPECT_EQ(rdma_get_remote_ece(id.get(), &ece), 0);
  EXPECT_EQ(ece.vendor_id, 0u);
  Listen();
  Resolve();
  EXPECT_FAILS(rdma_get_remote_ece(active.get(), &ece), EINVAL);
}

}  // namespace
}  // namespace verbena::conformance

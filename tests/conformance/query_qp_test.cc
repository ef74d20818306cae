// ibv_query_qp in every state of every service: what was set, and what has moved on since.
#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint32_t kPsn = 0xffff'f0;
constexpr uint32_t kMtuBytes = 1024;
constexpr uint32_t kMessageBytes = 20 * kMtuBytes;  // beyond the wrap of the PSN

uint32_t After(uint32_t packets) { return (kPsn + packets) & 0xff'ffff; }

class Verb_ibv_query_qp : public VerbsTest {
 protected:
  void Make(ibv_qp_type type) {
    SideOptions options;
    options.type = type;
    a = std::make_unique<Side>(options);
    options.nic = 1;
    b = std::make_unique<Side>(options);
    is_connected = type != IBV_QPT_UD;
    is_rc = type == IBV_QPT_RC;
  }
  // In a state, with so many packets sent and received by a's QP.
  void Check(ibv_qp_state state, uint32_t sq_psn, uint32_t rq_psn) {
    SCOPED_TRACE(state);
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    memset(&attr, 0xa5, sizeof(attr));
    memset(&init, 0xa5, sizeof(init));
    ASSERT_EQ(ibv_query_qp(a->qp, &attr, 0, &init), 0);
    const bool was_init = state != IBV_QPS_RESET;
    const bool was_rtr = was_init && state != IBV_QPS_INIT;
    const bool was_rts = was_rtr && state != IBV_QPS_RTR;
    EXPECT_EQ(attr.qp_state, state);
    EXPECT_EQ(attr.cur_qp_state, state);
    EXPECT_EQ(a->qp->state, state);
    EXPECT_EQ(attr.sq_psn, sq_psn);
    EXPECT_EQ(attr.rq_psn, rq_psn);
    EXPECT_EQ(attr.port_num, was_init ? 1 : 0);
    EXPECT_EQ(attr.pkey_index, 0);
    EXPECT_EQ(attr.qkey, was_init && !is_connected ? kQKey : 0);
    EXPECT_EQ(attr.qp_access_flags, was_init && is_connected ? kRemoteAccess : 0);
    EXPECT_EQ(attr.path_mig_state, IBV_MIG_MIGRATED);
    EXPECT_EQ(attr.sq_draining, 0);
    EXPECT_EQ(attr.rate_limit, 0u);
    const bool has_path = was_rtr && is_connected;
    const ibv_ah_attr path = has_path ? AddressOf(b->gid()) : ibv_ah_attr{};
    EXPECT_EQ(attr.ah_attr.is_global, path.is_global);
    EXPECT_EQ(attr.ah_attr.port_num, path.port_num);
    EXPECT_EQ(attr.ah_attr.sl, path.sl);
    EXPECT_EQ(attr.ah_attr.static_rate, path.static_rate);
    EXPECT_EQ(attr.ah_attr.grh.sgid_index, path.grh.sgid_index);
    EXPECT_EQ(attr.ah_attr.grh.hop_limit, path.grh.hop_limit);
    EXPECT_EQ(attr.ah_attr.grh.flow_label, path.grh.flow_label);
    EXPECT_EQ(attr.ah_attr.grh.traffic_class, path.grh.traffic_class);
    EXPECT_EQ(memcmp(attr.ah_attr.grh.dgid.raw, path.grh.dgid.raw, 16), 0);
    EXPECT_EQ(attr.alt_port_num, 0);
    EXPECT_EQ(attr.alt_timeout, 0);
    EXPECT_EQ(attr.path_mtu, has_path ? connect.mtu : 0);
    EXPECT_EQ(attr.dest_qp_num, has_path ? b->qp->qp_num : 0);
    EXPECT_EQ(attr.max_dest_rd_atomic, was_rtr && is_rc ? connect.rd_atomic : 0);
    EXPECT_EQ(attr.min_rnr_timer, was_rtr && is_rc ? connect.min_rnr_timer : 0);
    EXPECT_EQ(attr.max_rd_atomic, was_rts && is_rc ? connect.rd_atomic : 0);
    EXPECT_EQ(attr.timeout, was_rts && is_rc ? connect.timeout : 0);
    EXPECT_EQ(attr.retry_cnt, was_rts && is_rc ? connect.retry_cnt : 0);
    EXPECT_EQ(attr.rnr_retry, was_rts && is_rc ? connect.rnr_retry : 0);
    EXPECT_GE(attr.cap.max_send_wr, a->options.max_send_wr);
    EXPECT_GE(attr.cap.max_recv_wr, a->options.max_recv_wr);
    EXPECT_GE(attr.cap.max_send_sge, a->options.max_sge);
    EXPECT_GE(attr.cap.max_recv_sge, a->options.max_sge);
    EXPECT_GE(attr.cap.max_inline_data, a->options.max_inline_bytes);
    EXPECT_EQ(memcmp(&init.cap, &attr.cap, sizeof(attr.cap)), 0);
    EXPECT_EQ(init.qp_context, nullptr);
    EXPECT_EQ(init.send_cq, a->send_cq);
    EXPECT_EQ(init.recv_cq, a->recv_cq);
    EXPECT_EQ(init.srq, nullptr);
    EXPECT_EQ(init.qp_type, a->options.type);
    EXPECT_EQ(init.sq_sig_all, 0);
  }
  void SendTo(Side& from, Side& to) {
    ASSERT_EQ(to.PostRecv(1, 32 * 1024, 32 * 1024), 0);
    if (is_connected) {
      ASSERT_EQ(from.Send(1, 0, kMessageBytes), 0);
    } else {
      ibv_ah_attr address = AddressOf(to.gid());
      ibv_ah* ah = ibv_create_ah(from.pd, &address);
      ASSERT_NE(ah, nullptr);
      ibv_send_wr wr = {};
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.ud = {ah, to.qp->qp_num, kQKey};
      ASSERT_EQ(from.Post(wr, {from.Sge(0, 64)}), 0);
      ASSERT_EQ(from.WaitSend().status, IBV_WC_SUCCESS);
      ASSERT_EQ(to.WaitRecv().status, IBV_WC_SUCCESS);
      ASSERT_EQ(ibv_destroy_ah(ah), 0);
      return;
    }
    ASSERT_EQ(from.WaitSend().status, IBV_WC_SUCCESS);
    ASSERT_EQ(to.WaitRecv().status, IBV_WC_SUCCESS);
  }
  void Walk(ibv_qp_type type) {
    Make(type);
    const uint32_t packets = is_connected ? 20 : 1;
    const uint32_t received = is_connected ? After(packets) : 0;
    connect.psn = kPsn;
    Check(IBV_QPS_RESET, 0, 0);
    ASSERT_EQ(a->ToInit(), 0);
    ASSERT_EQ(b->ToInit(), 0);
    Check(IBV_QPS_INIT, 0, 0);
    ASSERT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), connect), 0);
    ASSERT_EQ(b->ToRtr(a->qp->qp_num, a->gid(), connect), 0);
    ASSERT_EQ(b->ToRts(connect), 0);
    Check(IBV_QPS_RTR, 0, is_connected ? kPsn : 0);
    ASSERT_EQ(a->ToRts(connect), 0);
    Check(IBV_QPS_RTS, kPsn, is_connected ? kPsn : 0);
    SendTo(*a, *b);
    SendTo(*b, *a);
    Check(IBV_QPS_RTS, After(packets), received);
    ASSERT_EQ(a->ToState(IBV_QPS_SQD), 0);
    Check(IBV_QPS_SQD, After(packets), received);
    ASSERT_EQ(a->ToState(IBV_QPS_RTS), 0);
    if (!is_rc) {  // a send error: without a key, a local protection error
      ibv_sge bad = a->Sge(0, 8);
      bad.lkey ^= 0x5a00;
      ibv_send_wr wr = {};
      wr.opcode = IBV_WR_SEND;
      ibv_ah_attr address = AddressOf(b->gid());
      ibv_ah* ah = ibv_create_ah(a->pd, &address);
      ASSERT_NE(ah, nullptr);
      wr.wr.ud = {ah, b->qp->qp_num, kQKey};
      ASSERT_EQ(a->Post(wr, {bad}), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
      Check(IBV_QPS_SQE, After(packets), received);
      ASSERT_EQ(ibv_destroy_ah(ah), 0);
    }
    ASSERT_EQ(a->ToState(IBV_QPS_ERR), 0);
    Check(IBV_QPS_ERR, After(packets), received);
    ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
    Check(IBV_QPS_RESET, 0, 0);
  }

  ConnectOptions connect;
  bool is_connected = true;
  bool is_rc = true;
};

TEST_F(Verb_ibv_query_qp, TellsEveryFieldInEveryStateOfRc) { Walk(IBV_QPT_RC); }
TEST_F(Verb_ibv_query_qp, TellsEveryFieldInEveryStateOfUc) { Walk(IBV_QPT_UC); }
TEST_F(Verb_ibv_query_qp, TellsEveryFieldInEveryStateOfUd) { Walk(IBV_QPT_UD); }

// A READ takes as many PSNs as its response has packets.
TEST_F(Verb_ibv_query_qp, CountsTheResponsesOfReads) {
  MakePair();
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 1, 0, 5 * kMtuBytes, *b, 0), 0);
  ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &attr, 0, &init), 0);
  EXPECT_EQ(attr.sq_psn, After(5));
  ASSERT_EQ(ibv_query_qp(b->qp, &attr, 0, &init), 0);
  EXPECT_EQ(attr.rq_psn, After(5));
}

}  // namespace
}  // namespace verbena::conformance

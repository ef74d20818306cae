// What v64's suite tests and neither mr_ex_test nor the tests of a verb have.
#include <cerrno>
#include <cstring>

#include "tests/conformance/v64.h"
#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class Verb_ibv_query_port_speed : public VerbsTest {};

TEST_F(Verb_ibv_query_port_speed, IsWhatWidthAndSpeedMake) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_port_attr attr = {};
  ASSERT_EQ(ibv_query_port(a->context, 1, &attr), 0);
  uint64_t speed = 0;
  ASSERT_EQ(v64::QueryPortSpeed(a->context, 1, &speed), 0);
  // In units of 100 Mb/s: four lanes (2) of EDR (32), 25 Gb/s each.
  ASSERT_EQ(attr.active_width, 2);
  ASSERT_EQ(attr.active_speed, 32);
  EXPECT_EQ(speed, 1000u);
  EXPECT_EQ(v64::QueryPortSpeed(a->context, 2, &speed), EINVAL);
}

class Verb_ibv_dm_export_dmabuf_fd : public VerbsTest {};

TEST_F(Verb_ibv_dm_export_dmabuf_fd, IsNotOffered) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_alloc_dm_attr attr = {};
  attr.length = 4096;
  ibv_dm* dm = ibv_alloc_dm(a->context, &attr);
  ASSERT_NE(dm, nullptr);
  EXPECT_EQ(v64::DmExportDmabufFd(dm), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

class V64Suite : public VerbsTest {};

TEST_F(V64Suite, APrivilegedQKeyIsKept) {
  for (uint64_t send_ops : {uint64_t{0}, uint64_t{IBV_QP_EX_WITH_SEND}}) {
    SideOptions options;
    options.type = IBV_QPT_UD;
    options.send_ops = send_ops;
    a = std::make_unique<Side>(options);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 0x8000'0000;
    ASSERT_EQ(
        ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        0);
    ibv_qp_attr told = {};
    ibv_qp_init_attr init = {};
    ASSERT_EQ(ibv_query_qp(a->qp, &told, IBV_QP_QKEY, &init), 0);
    EXPECT_EQ(told.qkey, 0x8000'0000u);
  }
}

TEST_F(V64Suite, ReadsUnderWayAreWhatWasAskedOrMore) {
  ConnectOptions connect;
  connect.rd_atomic = 12;
  MakePair({}, connect);
  ibv_qp_attr told = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &told, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init),
            0);
  EXPECT_GE(told.max_rd_atomic, 12);
  EXPECT_GE(told.max_dest_rd_atomic, 12);
}

TEST_F(V64Suite, AWriteOfNoBytesByTheExtendedInterface) {
  SideOptions options;
  options.send_ops = IBV_QP_EX_WITH_RDMA_WRITE;
  MakePair(options);
  b->buffer[0] = 0x77;
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
  ASSERT_NE(ex, nullptr);
  ibv_wr_start(ex);
  ex->wr_id = 9;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
  ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), 0);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  const ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(b->buffer[0], 0x77);
}

}  // namespace
}  // namespace verbena::conformance

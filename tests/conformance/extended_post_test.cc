// The extended posting interface: ibv_wr_start … ibv_wr_complete.
#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint64_t kOps = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

class ExtendedTest : public VerbsTest {
 protected:
  void SetUp() override {
    MakePair(SideOptions{.send_ops = kOps});
    ex = ibv_qp_to_qp_ex(a->qp);
    ASSERT_NE(ex, nullptr);
    memset(a->buffer.data(), 0x3c, 4096);
    ex->wr_flags = IBV_SEND_SIGNALED;
  }
  void Begin(uint64_t wr_id) {
    ibv_wr_start(ex);
    ex->wr_id = wr_id;
    ex->wr_flags = IBV_SEND_SIGNALED;
  }
  void OwnSge(size_t offset, uint32_t length) {
    ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address() + offset, length);
  }

  ibv_qp_ex* ex = nullptr;
};

using Verb_ibv_wr_start = ExtendedTest;
using Verb_ibv_wr_send = ExtendedTest;
using Verb_ibv_wr_send_imm = ExtendedTest;
using Verb_ibv_wr_rdma_write = ExtendedTest;
using Verb_ibv_wr_rdma_write_imm = ExtendedTest;
using Verb_ibv_wr_rdma_read = ExtendedTest;
using Verb_ibv_wr_atomic_cmp_swp = ExtendedTest;
using Verb_ibv_wr_atomic_fetch_add = ExtendedTest;
using Verb_ibv_wr_set_inline_data = ExtendedTest;
using Verb_ibv_wr_set_sge = ExtendedTest;
using Verb_ibv_wr_set_ud_addr = VerbsTest;
using Verb_ibv_qp_to_qp_ex = VerbsTest;

TEST_F(Verb_ibv_qp_to_qp_ex, IsNullForAnOrdinaryQp) {
  a = std::make_unique<Side>(SideOptions{});
  EXPECT_EQ(ibv_qp_to_qp_ex(a->qp), nullptr);
}

TEST_F(Verb_ibv_wr_send, Arrives) {
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  Begin(5);
  ibv_wr_send(ex);
  OwnSge(0, 64);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitRecv().byte_len, 64u);
  EXPECT_EQ(a->WaitSend().wr_id, 5u);
  EXPECT_EQ(b->buffer[63], 0x3c);
}

TEST_F(Verb_ibv_wr_send_imm, CarriesItsImmediate) {
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  Begin(5);
  ibv_wr_send_imm(ex, 0x11223344);
  OwnSge(0, 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitRecv().imm_data, 0x11223344u);
}

TEST_F(Verb_ibv_wr_rdma_write, Writes) {
  Begin(1);
  ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address() + 100);
  OwnSge(0, 100);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(b->buffer[199], 0x3c);
  EXPECT_EQ(b->buffer[200], 0);
}

TEST_F(Verb_ibv_wr_rdma_write_imm, TakesAReceive) {
  ASSERT_EQ(b->PostRecv(4, 0, 0), 0);
  Begin(1);
  ibv_wr_rdma_write_imm(ex, b->mr->rkey, b->buffer.address(), 9);
  OwnSge(0, 100);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 9u);
}

TEST_F(Verb_ibv_wr_rdma_read, Reads) {
  memset(b->buffer.data(), 0x77, 64);
  Begin(1);
  ibv_wr_rdma_read(ex, b->mr->rkey, b->buffer.address());
  OwnSge(0, 64);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(a->buffer[63], 0x77);
}

TEST_F(Verb_ibv_wr_atomic_cmp_swp, Swaps) {
  b->buffer.words()[0] = 3;
  Begin(1);
  ibv_wr_atomic_cmp_swp(ex, b->mr->rkey, b->buffer.address(), 3, 4);
  OwnSge(0, 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[0], 4u);
  EXPECT_EQ(a->buffer.words()[0], 3u);
}

TEST_F(Verb_ibv_wr_atomic_fetch_add, Adds) {
  b->buffer.words()[0] = 3;
  Begin(1);
  ibv_wr_atomic_fetch_add(ex, b->mr->rkey, b->buffer.address(), 10);
  OwnSge(0, 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[0], 13u);
}

TEST_F(Verb_ibv_wr_set_inline_data, NeedsNoKey) {
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  char text[] = "inline, twice over";
  ibv_data_buf pieces[2] = {{text, 6}, {text + 6, sizeof(text) - 6}};
  Begin(1);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data_list(ex, 2, pieces);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitRecv().byte_len, sizeof(text));
  EXPECT_EQ(memcmp(b->buffer.data(), text, sizeof(text)), 0);
}

TEST_F(Verb_ibv_wr_set_sge, GathersAList) {
  a->buffer[0] = 1;
  a->buffer[500] = 2;
  ibv_sge list[2] = {a->Sge(0, 1), a->Sge(500, 1)};
  Begin(1);
  ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
  ibv_wr_set_sge_list(ex, 2, list);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer[0], 1);
  EXPECT_EQ(b->buffer[1], 2);
}

TEST_F(Verb_ibv_wr_start, SeveralRequestsArePostedTogether) {
  Begin(0);
  for (uint64_t i = 0; i < 10; ++i) {
    ex->wr_id = i;
    ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address() + i * 8);
    OwnSge(0, 8);
  }
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(a->WaitSend().wr_id, i);
}

TEST_F(Verb_ibv_wr_start, AbortPostsNothing) {
  Begin(1);
  ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
  OwnSge(0, 8);
  ibv_wr_abort(ex);
  Begin(2);
  ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address() + 64);
  OwnSge(0, 8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 2u);
  EXPECT_EQ(b->buffer[0], 0);
  EXPECT_EQ(b->buffer[64], 0x3c);
}

TEST_F(Verb_ibv_wr_start, OverfullBatchFailsAsAWhole) {
  Begin(1);
  for (int i = 0; i < 1000; ++i) {
    ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
    OwnSge(0, 8);
  }
  EXPECT_EQ(ibv_wr_complete(ex), ENOMEM);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(a->send_cq, 1, &wc) != 0; }));
}

TEST_F(Verb_ibv_wr_set_ud_addr, AddressesADatagram) {
  MakeUdPair(SideOptions{.send_ops = IBV_QP_EX_WITH_SEND});
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
  ASSERT_NE(ex, nullptr);
  ibv_ah_attr attr = AddressOf(b->gid());
  ibv_ah* ah = ibv_create_ah(a->pd, &attr);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, kQKey);
  ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), 64);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(b->WaitRecv().src_qp, a->qp->qp_num);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

}  // namespace
}  // namespace verbena::conformance

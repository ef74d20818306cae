// Unreliable services: UC, UD with its GRH, and multicast.
#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_post_send = VerbsTest;
using Verb_ibv_create_ah_from_wc = VerbsTest;
using Verb_ibv_attach_mcast = VerbsTest;
using Verb_ibv_detach_mcast = VerbsTest;
using Verb_ibv_create_qp = VerbsTest;

constexpr uint32_t kGrhBytes = 40;

// Deletes what it holds with ibv_destroy_ah.
class Ah {
 public:
  Ah(Side& side, const ibv_gid& to) {
    ibv_ah_attr attr = AddressOf(to);
    ah_ = ibv_create_ah(side.pd, &attr);
  }
  explicit Ah(ibv_ah* ah) : ah_(ah) {}
  ~Ah() {
    if (ah_ != nullptr) ibv_destroy_ah(ah_);
  }
  Ah(const Ah&) = delete;
  Ah& operator=(const Ah&) = delete;
  ibv_ah* get() const { return ah_; }

 private:
  ibv_ah* ah_;
};

int SendUd(Side& from, ibv_ah* ah, uint32_t qpn, uint32_t length, uint32_t qkey = kQKey,
           unsigned flags = IBV_SEND_SIGNALED) {
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = flags;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = qpn;
  wr.wr.ud.remote_qkey = qkey;
  return from.Post(wr, {from.Sge(0, length)});
}

TEST_F(Verb_ibv_post_send, UcSendAndWriteArrive) {
  MakePair(SideOptions{.type = IBV_QPT_UC});
  memset(a->buffer.data(), 0x3c, 30'000);
  ASSERT_EQ(b->PostRecv(1, 0, 8192), 0);
  ASSERT_EQ(a->Send(2, 0, 5000), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.byte_len, 5000u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 3, 0, 30'000, *b, 10'000), 0);
  EXPECT_EQ(a->WaitSend().opcode, IBV_WC_RDMA_WRITE);
  volatile uint8_t* last = b->buffer.data() + 39'999;
  EXPECT_TRUE(Eventually([&] { return *last == 0x3c; }));
}

TEST_F(Verb_ibv_post_send, UcHasNoReads) {
  MakePair(SideOptions{.type = IBV_QPT_UC});
  int posted = a->Rdma(IBV_WR_RDMA_READ, 1, 0, 8, *b, 0);
  if (posted == 0) {
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
  } else {
    EXPECT_EQ(posted, EINVAL);
  }
}

TEST_F(Verb_ibv_post_send, UcWithoutReceiverDropsAndGoesOn) {
  MakePair(SideOptions{.type = IBV_QPT_UC});
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS) << "UC does not know that nobody received";
  // Completed is not yet arrived: a WRITE behind it tells when it was dropped.
  a->buffer.words()[1] = 0x3c;
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 3, 8, 8, *b, 1024), 0);
  volatile uint8_t* written = b->buffer.data() + 1024;
  ASSERT_TRUE(Eventually([&] { return *written == 0x3c; }));
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ASSERT_EQ(b->PostRecv(5, 0, 64), 0);
  a->buffer.words()[0] = 99;
  ASSERT_EQ(a->Send(2, 0, 8), 0);
  EXPECT_EQ(b->WaitRecv().wr_id, 5u);
  EXPECT_EQ(b->buffer.words()[0], 99u);
}

TEST_F(Verb_ibv_post_send, UcWriteWithABadKeyIsDropped) {
  MakePair(SideOptions{.type = IBV_QPT_UC});
  memset(a->buffer.data(), 0x3c, 64);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey ^ 1;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 64)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(NeverWithin([&] { return b->buffer[0] != 0; }));
}

TEST_F(Verb_ibv_post_send, UdArrivesBehindAGrh) {
  MakeUdPair();
  Ah ah(*a, b->gid());
  ASSERT_NE(ah.get(), nullptr);
  memset(a->buffer.data(), 0x3c, 1000);
  memset(b->buffer.data(), 0xee, 2000);
  ASSERT_EQ(b->PostRecv(1, 0, 2000), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), b->qp->qp_num, 1000), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 1000 + kGrhBytes);
  EXPECT_TRUE(wc.wc_flags & IBV_WC_GRH);
  EXPECT_EQ(wc.src_qp, a->qp->qp_num);
  EXPECT_EQ(b->buffer[kGrhBytes], 0x3c);
  EXPECT_EQ(b->buffer[kGrhBytes + 999], 0x3c);
  EXPECT_EQ(b->buffer[kGrhBytes + 1000], 0xee);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  // RoCE v2 over IPv4: the last 20 of the 40 bytes are the IPv4 header.
  const uint8_t* ip = b->buffer.data() + 20;
  EXPECT_EQ(ip[0] >> 4, 4) << "IP version";
  EXPECT_EQ(ip[9], 17) << "UDP";
  EXPECT_EQ(memcmp(ip + 12, a->gid().raw + 12, 4), 0) << "source address";
  EXPECT_EQ(memcmp(ip + 16, b->gid().raw + 12, 4), 0) << "destination address";
}

TEST_F(Verb_ibv_create_ah_from_wc, AnswersTheSender) {
  MakeUdPair();
  Ah ah(*a, b->gid());
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ASSERT_EQ(a->PostRecv(2, 0, 256), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), b->qp->qp_num, 64), 0);
  ibv_wc wc = b->WaitRecv();
  auto* grh = reinterpret_cast<ibv_grh*>(b->buffer.data());
  Ah back(ibv_create_ah_from_wc(b->pd, &wc, grh, 1));
  ASSERT_NE(back.get(), nullptr);
  ASSERT_EQ(SendUd(*b, back.get(), wc.src_qp, 64), 0);
  EXPECT_EQ(a->WaitRecv().src_qp, b->qp->qp_num);
}

TEST_F(Verb_ibv_post_send, UdWithAWrongQkeyIsDropped) {
  MakeUdPair();
  Ah ah(*a, b->gid());
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), b->qp->qp_num, 64, kQKey + 1), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(b->recv_cq, 1, &wc) != 0; }));
}

TEST_F(Verb_ibv_post_send, UdLongerThanTheMtuFails) {
  MakeUdPair();
  Ah ah(*a, b->gid());
  ASSERT_EQ(b->PostRecv(1, 0, 16'384), 0);
  int posted = SendUd(*a, ah.get(), b->qp->qp_num, 4097);
  if (posted == 0) {
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_LEN_ERR);
  } else {
    EXPECT_TRUE(posted == EINVAL || posted == EMSGSIZE);
  }
}

TEST_F(Verb_ibv_post_send, UdWithoutReceiverIsDropped) {
  MakeUdPair();
  Ah ah(*a, b->gid());
  ASSERT_EQ(SendUd(*a, ah.get(), b->qp->qp_num, 64), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  // Completed is not yet arrived: a datagram behind it, to another QP, tells when it was dropped.
  Side c(SideOptions{.nic = 1, .type = IBV_QPT_UD});
  ASSERT_EQ(c.ToInit(), 0);
  ASSERT_EQ(c.ToRtr(0, {}, {}), 0);
  ASSERT_EQ(c.PostRecv(2, 0, 256), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), c.qp->qp_num, 64), 0);
  EXPECT_EQ(c.WaitRecv().wr_id, 2u);
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(b->recv_cq, 1, &wc) != 0; }));
}

TEST_F(Verb_ibv_post_send, UdReachesManyQpsWithOneAh) {
  MakeUdPair();
  Side c(SideOptions{.nic = 1, .type = IBV_QPT_UD});
  ASSERT_EQ(c.ToInit(), 0);
  ASSERT_EQ(c.ToRtr(0, {}, {}), 0);
  Ah ah(*a, b->gid());
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  ASSERT_EQ(c.PostRecv(2, 0, 256), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), b->qp->qp_num, 64), 0);
  ASSERT_EQ(SendUd(*a, ah.get(), c.qp->qp_num, 64), 0);
  EXPECT_EQ(b->WaitRecv().wr_id, 1u);
  EXPECT_EQ(c.WaitRecv().wr_id, 2u);
}

TEST_F(Verb_ibv_create_qp, UdRefusesRdmaOperations) {
  MakeUdPair();
  int posted = a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0);
  if (posted == 0) {
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_QP_OP_ERR);
  } else {
    EXPECT_EQ(posted, EINVAL);
  }
}

ibv_gid Group() {
  ibv_gid group = {};
  // As rdma_cm makes it for an IPv4 group on RoCEv2.
  const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3};
  memcpy(group.raw, mapped, 16);
  return group;
}

TEST_F(Verb_ibv_attach_mcast, EveryMemberReceivesOneCopy) {
  MakeUdPair();
  Side c(SideOptions{.nic = 1, .type = IBV_QPT_UD});
  ASSERT_EQ(c.ToInit(), 0);
  ASSERT_EQ(c.ToRtr(0, {}, {}), 0);
  ibv_gid group = Group();
  ASSERT_EQ(ibv_attach_mcast(b->qp, &group, 0), 0);
  ASSERT_EQ(ibv_attach_mcast(c.qp, &group, 0), 0);
  for (Side* side : {b.get(), &c}) {
    ASSERT_EQ(side->PostRecv(1, 0, 256), 0);
    ASSERT_EQ(side->PostRecv(2, 0, 256), 0);
  }
  Ah ah(*a, group);
  ASSERT_NE(ah.get(), nullptr);
  ASSERT_EQ(SendUd(*a, ah.get(), 0xff'ffff, 64), 0);
  for (Side* side : {b.get(), &c}) {
    EXPECT_EQ(side->WaitRecv().byte_len, 64 + kGrhBytes);
    ibv_wc wc = {};
    EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(side->recv_cq, 1, &wc) != 0; }));
  }
  EXPECT_EQ(ibv_detach_mcast(b->qp, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(c.qp, &group, 0), 0);
}

TEST_F(Verb_ibv_attach_mcast, NeedsAMulticastGidAndAUdQp) {
  MakePair();
  ibv_gid group = Group();
  EXPECT_EQ(ibv_attach_mcast(a->qp, &group, 0), EINVAL) << "an RC QP";
  MakeUdPair();
  ibv_gid unicast = a->gid();
  EXPECT_EQ(ibv_attach_mcast(a->qp, &unicast, 0), EINVAL);
}

TEST_F(Verb_ibv_detach_mcast, EndsDelivery) {
  MakeUdPair();
  ibv_gid group = Group();
  ASSERT_EQ(ibv_attach_mcast(b->qp, &group, 0), 0);
  ASSERT_EQ(ibv_detach_mcast(b->qp, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(b->qp, &group, 0), EINVAL);
  ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
  Ah ah(*a, group);
  ASSERT_EQ(SendUd(*a, ah.get(), 0xff'ffff, 64), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(b->recv_cq, 1, &wc) != 0; }));
}

}  // namespace
}  // namespace verbena::conformance

// Datagram services and multicast groups.
#include <cerrno>
#include <cstring>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

constexpr size_t kRequestBytes = 180, kReplyBytes = 136;  // IBTA 12.11, A11.3
constexpr int kGrhBytes = 40;
constexpr int kSidrUnsupported = 1, kSidrRejected = 2;

class DatagramTest : public CmTest {
 protected:
  void Meet(rdma_port_space port_space = RDMA_PS_UDP) {
    Listen("127.0.0.1", port_space);
    Resolve();
    Request();
    ASSERT_EQ(MakeQp(passive.get(), IBV_QPT_UD), 0);
    rdma_conn_param param = Param();
    param.qp_num = passive->qp->qp_num;
    ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << strerror(errno);
    peer = active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  }

  // Sends by the address that an event told of; true when it arrives at `to`.
  bool Carries(rdma_cm_id* from, rdma_cm_id* to, const rdma_ud_param& address) {
    Memory in(4096);
    char out[16] = "datagram";
    ibv_mr* mr = rdma_reg_msgs(to, in.data(), in.size());
    EXPECT_EQ(rdma_post_recv(to, nullptr, in.data(), kGrhBytes + 16, mr), 0);
    ibv_ah_attr attr = address.ah_attr;
    ibv_ah* ah = ibv_create_ah(from->pd, &attr);
    EXPECT_NE(ah, nullptr);
    EXPECT_EQ(rdma_post_ud_send(from, nullptr, out, sizeof out, nullptr,
                                IBV_SEND_INLINE | IBV_SEND_SIGNALED, ah, address.qp_num),
              0);
    ibv_wc wc = {};
    EXPECT_EQ(rdma_get_send_comp(from, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    const bool came = Eventually([&] { return ibv_poll_cq(to->recv_cq, 1, &wc) == 1; }) &&
                      wc.status == IBV_WC_SUCCESS &&
                      std::memcmp(in.data() + kGrhBytes, out, 16) == 0;
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    if (came) {
      EXPECT_EQ(rdma_dereg_mr(mr), 0);
    }
    return came;
  }

  Told peer;
};

class Cm_datagram : public DatagramTest {};
class Cm_rdma_join_multicast : public DatagramTest {};
class Cm_rdma_join_multicast_ex : public DatagramTest {};
class Cm_rdma_leave_multicast : public DatagramTest {};
class Cm_rdma_post_ud_send : public DatagramTest {};

// --- services ------------------------------------------------------------------------------------

TEST_F(Cm_datagram, TheActiveSideLearnsQpAndQkey) {
  Meet();
  EXPECT_EQ(peer.ud.qp_num, passive->qp->qp_num);
  EXPECT_EQ(peer.ud.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  EXPECT_EQ(peer.ud.ah_attr.is_global, 1);
  EXPECT_EQ(peer.ud.ah_attr.port_num, 1);
  EXPECT_FALSE(passive_channel.IsReadable());  // who accepted is told nothing
}

TEST_F(Cm_datagram, QpsAreReadyToSendWhenMade) {
  Listen("127.0.0.1", RDMA_PS_UDP);
  Resolve();
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_RTS);
}

TEST_F(Cm_datagram, PrivateDataArriveBothWays) {
  Listen("127.0.0.1", RDMA_PS_UDP);
  Resolve();
  const std::string question(kRequestBytes, 'q'), answer(kReplyBytes, 'a');
  EXPECT_EQ(Request(question).private_data, question);
  ASSERT_EQ(MakeQp(passive.get(), IBV_QPT_UD), 0);
  rdma_conn_param param = Param(answer);
  param.qp_num = passive->qp->qp_num;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  EXPECT_EQ(active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED).private_data, answer);
}

TEST_F(Cm_datagram, RefusesMorePrivateDataThanFit) {
  Listen("127.0.0.1", RDMA_PS_UDP);
  Resolve();
  const std::string question(kRequestBytes + 1, 'q'), answer(kReplyBytes + 1, 'a');
  rdma_conn_param param = Param(question);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  Request();
  ASSERT_EQ(MakeQp(passive.get(), IBV_QPT_UD), 0);
  param = Param(answer);
  EXPECT_FAILS(rdma_accept(passive.get(), &param), EINVAL);
  EXPECT_EQ(active_channel.Next().type, RDMA_CM_EVENT_UNREACHABLE);
}

TEST_F(Cm_datagram, NobodyListens) {
  Listen("127.0.0.1", RDMA_PS_UDP);
  Resolve();
  listener.Destroy();
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  active_channel.Expect(RDMA_CM_EVENT_UNREACHABLE, kSidrUnsupported);
}

TEST_F(Cm_datagram, IsRejected) {
  Listen("127.0.0.1", RDMA_PS_UDP);
  Resolve();
  Request();
  ASSERT_EQ(rdma_reject(passive.get(), "no", 2), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_UNREACHABLE, kSidrRejected);
  EXPECT_EQ(told.private_data.substr(0, 2), "no");
}

TEST_F(Cm_datagram, OfIpoibsPortSpace) {
  Meet(RDMA_PS_IPOIB);
  EXPECT_EQ(peer.ud.qp_num, passive->qp->qp_num);
  EXPECT_TRUE(Carries(active.get(), passive.get(), peer.ud));
}

TEST_F(Cm_datagram, ByIpv6) {
  Listen("::1", RDMA_PS_UDP);
  Resolve();
  Request();
  Accept();
}

TEST_F(Cm_rdma_post_ud_send, ArrivesByTheAddressOfTheEvent) {
  Meet();
  EXPECT_TRUE(Carries(active.get(), passive.get(), peer.ud));
}

// --- multicast -----------------------------------------------------------------------------------

CmId Member(Channel& channel, const std::string& address, bool with_qp = true) {
  CmId id(channel, RDMA_PS_UDP);
  Address here(address);
  EXPECT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
  if (with_qp) {
    EXPECT_EQ(MakeQp(id.get(), IBV_QPT_UD), 0) << strerror(errno);
  }
  return id;
}

TEST_F(Cm_rdma_join_multicast, MembersHearEachOther) {
  active = Member(active_channel, "127.0.0.1");
  passive = Member(passive_channel, "127.0.0.2");
  Address group("239.1.2.3");
  int context = 0;
  ASSERT_EQ(rdma_join_multicast(passive.get(), group.get(), nullptr), 0) << strerror(errno);
  passive_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), &context), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(told.id, active.get());
  EXPECT_EQ(told.context, &context);
  EXPECT_EQ(told.ud.qp_num, 0xffffffu);
  EXPECT_EQ(told.ud.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  EXPECT_TRUE(Carries(active.get(), passive.get(), told.ud));
}

TEST_F(Cm_rdma_join_multicast, OfIpv6) {
  active = Member(active_channel, "::1");
  Address group("ff0e::1:2:3");
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0) << strerror(errno);
  Told told = active_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(told.ud.ah_attr.grh.dgid.raw[0], 0xff);
  EXPECT_EQ(told.ud.ah_attr.grh.dgid.raw[15], 3);
}

TEST_F(Cm_rdma_join_multicast, WithoutAQpTheProgramAttachesItsOwn) {
  active = Member(active_channel, "127.0.0.1", /*with_qp=*/false);
  Address group("239.1.2.4");
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_EQ(MakeQp(active.get(), IBV_QPT_UD), 0);
  EXPECT_EQ(ibv_attach_mcast(active->qp, &told.ud.ah_attr.grh.dgid, told.ud.ah_attr.dlid), 0);
  EXPECT_EQ(ibv_detach_mcast(active->qp, &told.ud.ah_attr.grh.dgid, told.ud.ah_attr.dlid), 0);
}

TEST_F(Cm_rdma_join_multicast, AQpThatCannotBeAttachedIsTold) {
  active = Member(active_channel, "127.0.0.1");
  Address group("239.1.2.5");
  ibv_device_attr nic;
  ASSERT_EQ(ibv_query_device(active->verbs, &nic), 0);
  // The group is full.
  ibv_cq* cq = ibv_create_cq(active->verbs, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr init = QpOptions(IBV_QPT_UD);
  init.cap.max_send_wr = init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.send_cq = init.recv_cq = cq;
  ibv_gid gid = {};
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(gid.raw + 12, &reinterpret_cast<sockaddr_in*>(group.get())->sin_addr, 4);
  std::vector<ibv_qp*> members;
  for (int i = 0; i < nic.max_mcast_qp_attach; ++i) {
    members.push_back(ibv_create_qp(active->pd, &init));
    ASSERT_NE(members.back(), nullptr) << i;
    ASSERT_EQ(ibv_attach_mcast(members.back(), &gid, 0), 0) << i;
  }
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0);
  Told told = active_channel.Next();
  EXPECT_EQ(told.type, RDMA_CM_EVENT_MULTICAST_ERROR);
  EXPECT_EQ(told.status, v64::IsOurs() ? -ENOMEM : -1);
  for (ibv_qp* qp : members) {
    EXPECT_EQ(ibv_detach_mcast(qp, &gid, 0), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Cm_rdma_join_multicast, NeedsANicADatagramServiceAndAGroup) {
  Address group("239.1.2.6"), host("127.0.0.1");
  CmId unbound(active_channel, RDMA_PS_UDP), stream(active_channel, RDMA_PS_TCP);
  EXPECT_FAILS(rdma_join_multicast(unbound.get(), group.get(), nullptr), EINVAL);
  ASSERT_EQ(rdma_bind_addr(stream.get(), host.get()), 0);
  EXPECT_FAILS(rdma_join_multicast(stream.get(), group.get(), nullptr), EINVAL);
  active = Member(active_channel, "127.0.0.1");
  EXPECT_FAILS(rdma_join_multicast(active.get(), host.get(), nullptr), EINVAL);
  EXPECT_FAILS(rdma_join_multicast(active.get(), nullptr, nullptr), EINVAL);
}

TEST_F(Cm_rdma_join_multicast_ex, ASenderNeedNotBeAMember) {
  active = Member(active_channel, "127.0.0.1");
  passive = Member(passive_channel, "127.0.0.2");
  Address group("239.1.2.7");
  ASSERT_EQ(rdma_join_multicast(passive.get(), group.get(), nullptr), 0);
  Told member = passive_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  rdma_cm_join_mc_attr_ex attr = {};
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  attr.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  attr.addr = group.get();
  ASSERT_EQ(rdma_join_multicast_ex(active.get(), &attr, nullptr), 0) << strerror(errno);
  Told sender = active_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_TRUE(Carries(active.get(), passive.get(), sender.ud));
  // It hears nothing itself.
  ibv_wc wc;
  Memory in(4096);
  ibv_mr* mr = rdma_reg_msgs(active.get(), in.data(), in.size());
  ASSERT_EQ(rdma_post_recv(active.get(), nullptr, in.data(), 100, mr), 0);
  EXPECT_TRUE(Carries(passive.get(), passive.get(), member.ud));
  EXPECT_EQ(ibv_poll_cq(active->recv_cq, 1, &wc), 0);
  rdma_destroy_qp(active.get());
  EXPECT_EQ(rdma_dereg_mr(mr), 0);
}

TEST_F(Cm_rdma_join_multicast_ex, RefusesFieldsItDoesNotKnow) {
  active = Member(active_channel, "127.0.0.1");
  Address group("239.1.2.8");
  rdma_cm_join_mc_attr_ex attr = {};
  attr.addr = group.get();
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_RESERVED;
  EXPECT_FAILS(rdma_join_multicast_ex(active.get(), &attr, nullptr), ENOTSUP);
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
  EXPECT_FAILS(rdma_join_multicast_ex(active.get(), &attr, nullptr), EINVAL);
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  EXPECT_FAILS(rdma_join_multicast_ex(active.get(), &attr, nullptr), EINVAL);
  attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_ADDRESS;
  attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
  EXPECT_FAILS(rdma_join_multicast_ex(active.get(), &attr, nullptr), EINVAL);
}

TEST_F(Cm_rdma_leave_multicast, NothingArrivesAnyMore) {
  active = Member(active_channel, "127.0.0.1");
  passive = Member(passive_channel, "127.0.0.2");
  Address group("239.1.2.9");
  ASSERT_EQ(rdma_join_multicast(passive.get(), group.get(), nullptr), 0);
  passive_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_TRUE(Carries(active.get(), passive.get(), told.ud));
  ASSERT_EQ(rdma_leave_multicast(passive.get(), group.get()), 0) << strerror(errno);
  EXPECT_FAILS(rdma_leave_multicast(passive.get(), group.get()), EADDRNOTAVAIL);
  ibv_gid gid = told.ud.ah_attr.grh.dgid;
  EXPECT_NE(ibv_detach_mcast(passive->qp, &gid, 0), 0);  // it is out already
  // It may come back.
  ASSERT_EQ(rdma_join_multicast(passive.get(), group.get(), nullptr), 0);
  passive_channel.Expect(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_TRUE(Carries(active.get(), passive.get(), told.ud));
}

TEST_F(Cm_rdma_leave_multicast, MayBeCancelledWhileItWaits) {
  active = Member(active_channel, "127.0.0.1");
  Address group("239.1.2.11");
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0);
  ASSERT_NE(active_channel.Take(), nullptr);
  rdma_cm_id* lost = active.release();
  CancelWhileItWaits([&] { rdma_leave_multicast(lost, group.get()); });
}

TEST_F(Cm_rdma_leave_multicast, TakesTheWaitingEventAlong) {
  active = Member(active_channel, "127.0.0.1");
  Address group("239.1.2.10");
  ASSERT_EQ(rdma_join_multicast(active.get(), group.get(), nullptr), 0);
  ASSERT_TRUE(active_channel.IsReadable(kPatience));
  ASSERT_EQ(rdma_leave_multicast(active.get(), group.get()), 0);
  EXPECT_FALSE(active_channel.IsReadable());
  EXPECT_FAILS(rdma_leave_multicast(active.get(), nullptr), EINVAL);
}

}  // namespace
}  // namespace verbena::conformance

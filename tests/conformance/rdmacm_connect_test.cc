// Connections: asked for, accepted, refused, ended; what each side is told of it.
#include <cerrno>
#include <cstring>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

// What a request, a reply and a rejection carry of TCP's port space (IBTA 12.6, A11.3).
constexpr size_t kRequestBytes = 56, kReplyBytes = 196, kRejectBytes = 148;
constexpr int kInvalidServiceId = 8, kConsumerDefined = 28, kVendorOptionNotSupported = 35;

class Cm_rdma_connect : public CmTest {};
class Cm_rdma_listen : public CmTest {};
class Cm_rdma_accept : public CmTest {};
class Cm_rdma_reject : public CmTest {};
class Cm_rdma_disconnect : public CmTest {};
class Cm_rdma_notify : public CmTest {};
class Cm_rdma_migrate_id_connected : public CmTest {};

// --- rdma_connect --------------------------------------------------------------------------------

TEST_F(Cm_rdma_connect, BothQpsAreReadyToSend) {
  Connect();
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_RTS);
  EXPECT_EQ(StateOf(passive->qp), IBV_QPS_RTS);
  EXPECT_EQ(AttributesOf(active->qp).ah_attr.is_global, 1);
}

TEST_F(Cm_rdma_connect, TheListenerLearnsWhatWasAskedFor) {
  Listen();
  Resolve();
  rdma_conn_param param = Param("hello");
  param.responder_resources = 3;
  param.initiator_depth = 2;
  param.flow_control = 1;
  param.retry_count = 5;
  param.rnr_retry_count = 4;
  Told told = Request(&param);
  EXPECT_EQ(told.conn.responder_resources, 2);  // what the peer may ask of us, and the other way
  EXPECT_EQ(told.conn.initiator_depth, 3);
  EXPECT_EQ(told.conn.flow_control, 1);
  EXPECT_EQ(told.conn.retry_count, 5);
  EXPECT_EQ(told.conn.rnr_retry_count, 4);
  EXPECT_EQ(told.conn.srq, 0);
  EXPECT_EQ(told.conn.qp_num, active->qp->qp_num);
  EXPECT_EQ(passive->context, this);  // the listener's
  EXPECT_EQ(passive->channel, passive_channel.get());
  EXPECT_EQ(passive->ps, RDMA_PS_TCP);
  EXPECT_EQ(passive->verbs, active->verbs);
  EXPECT_NE(passive->pd, nullptr);
  EXPECT_EQ(rdma_get_src_port(passive.get()), rdma_get_src_port(listener.get()));
  EXPECT_EQ(rdma_get_dst_port(passive.get()), rdma_get_src_port(active.get()));
  EXPECT_EQ(Address::Of(rdma_get_peer_addr(passive.get())).text(), "127.0.0.1");
  EXPECT_EQ(passive->route.num_paths, 1);
}

TEST_F(Cm_rdma_connect, PrivateDataArriveWholeAndPadded) {
  Listen();
  Resolve();
  std::string data(kRequestBytes, 'q');
  EXPECT_EQ(Request(data).private_data, data);
}

TEST_F(Cm_rdma_connect, ShortPrivateDataAreFollowedByZeros) {
  Listen();
  Resolve();
  EXPECT_EQ(Request("abc").private_data, "abc" + std::string(kRequestBytes - 3, '\0'));
}

TEST_F(Cm_rdma_connect, RefusesMorePrivateDataThanARequestHolds) {
  Listen();
  Resolve();
  const std::string data(kRequestBytes + 1, 'q');
  rdma_conn_param param = Param(data);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  EXPECT_FALSE(passive_channel.IsReadable());
}

TEST_F(Cm_rdma_connect, RefusesMoreReadsThanTheNicCanDo) {
  Listen();
  Resolve();
  ibv_device_attr nic;
  ASSERT_EQ(ibv_query_device(active->verbs, &nic), 0);
  rdma_conn_param param = Param();
  param.responder_resources = static_cast<uint8_t>(nic.max_qp_rd_atom + 1);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  param = Param();
  param.initiator_depth = static_cast<uint8_t>(nic.max_qp_init_rd_atom + 1);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  // What stands for the most is taken.
  param.responder_resources = RDMA_MAX_RESP_RES;
  param.initiator_depth = RDMA_MAX_INIT_DEPTH;
  Told told = Request(&param);
  EXPECT_EQ(told.conn.responder_resources, nic.max_qp_init_rd_atom);
  EXPECT_EQ(told.conn.initiator_depth, nic.max_qp_rd_atom);
}

TEST_F(Cm_rdma_connect, NeedsNoParametersWithAQp) {
  Listen();
  Resolve();
  Request(nullptr);
  ASSERT_EQ(MakeQp(passive.get()), 0);
  ASSERT_EQ(rdma_accept(passive.get(), nullptr), 0) << strerror(errno);
  active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(Cm_rdma_connect, NeedsARouteAndParametersOrAQp) {
  Listen();
  rdma_conn_param param = Param();
  active = CmId(active_channel, RDMA_PS_TCP);
  if (v64::IsOurs()) {  // upstream's asks the NIC that there is not
    EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  }
  Address there = ListenerAddress();
  ASSERT_EQ(rdma_resolve_addr(active.get(), nullptr, there.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
  ASSERT_EQ(rdma_resolve_route(active.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_FAILS(rdma_connect(active.get(), nullptr), EINVAL);
}

TEST_F(Cm_rdma_connect, OnlyOnce) {
  Listen();
  Resolve();
  Request();
  rdma_conn_param param = Param();
  EXPECT_FAILS(rdma_connect(active.get(), &param), EINVAL);
}

TEST_F(Cm_rdma_connect, NobodyListens) {
  Listen();
  Resolve();
  listener.Destroy();
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  active_channel.Expect(RDMA_CM_EVENT_REJECTED, kInvalidServiceId);
}

TEST_F(Cm_rdma_connect, ToANicOnWhichNobodyListens) {
  Listen("127.0.0.1");
  Address there("127.0.0.2", ListenerAddress().port());
  active = Resolved(active_channel, there);
  ASSERT_EQ(MakeQp(active.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  active_channel.Expect(RDMA_CM_EVENT_REJECTED, kInvalidServiceId);
}

TEST_F(Cm_rdma_connect, AQpThatCannotConnectIsTold) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(MakeQp(passive.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(active->qp, &attr, IBV_QP_STATE), 0);
  Told told = active_channel.Next();
  EXPECT_EQ(told.type, RDMA_CM_EVENT_CONNECT_ERROR);
  // rdma-core 44 tells the error of ibv_modify_qp as it is, its successors -1.
  EXPECT_TRUE(told.status == -1 || told.status == EINVAL) << told.status;
}

TEST_F(Cm_rdma_connect, ByIpv6) {
  Listen("::1");
  Resolve();
  Request("six");
  Accept();
  EXPECT_EQ(Address::Of(rdma_get_peer_addr(passive.get())).text(), "::1");
}

TEST_F(Cm_rdma_connect, BetweenTwoNics) {
  Listen("127.0.0.1");
  active = CmId(active_channel, RDMA_PS_TCP);
  Address here("127.0.0.2"), there = ListenerAddress();
  ASSERT_EQ(rdma_resolve_addr(active.get(), here.get(), there.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(active.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(MakeQp(active.get()), 0);
  Request();
  EXPECT_NE(passive->verbs, active->verbs);
  EXPECT_EQ(Address::Of(rdma_get_peer_addr(passive.get())).text(), "127.0.0.2");
  Accept();
}

class Cm_port_space_ib : public CmTest {};

TEST_F(Cm_port_space_ib, ConnectsApartFromTheOthers) {
  Listen("127.0.0.1", RDMA_PS_IB);
  CmId tcp(passive_channel, RDMA_PS_TCP);
  Address same = ListenerAddress();
  EXPECT_EQ(rdma_bind_addr(tcp.get(), same.get()), 0) << "the same port of another space";
  Resolve();
  EXPECT_EQ(active->ps, RDMA_PS_IB);
  Request("ib");
  Accept();
  Disconnect();
}

TEST_F(Cm_rdma_connect, AgainAndAgain) {
  for (int round = 0; round < 20; ++round) {
    Connect();
    Disconnect();
    active.Destroy();
    passive.Destroy();
    listener.Destroy();
  }
}

TEST_F(Cm_rdma_connect, ManyAtOnceInOneChannel) {
  constexpr int kConnections = 64;
  Listen();
  rdma_conn_param param = Param();
  std::vector<CmId> asking, requests;
  for (int i = 0; i < kConnections; ++i) {
    asking.push_back(Resolved(active_channel, ListenerAddress()));
    ASSERT_EQ(MakeQp(asking.back().get()), 0);
  }
  for (CmId& id : asking) ASSERT_EQ(rdma_connect(id.get(), &param), 0);
  int active_count = 0, passive_count = 0;
  EXPECT_TRUE(Eventually([&] {
    Told told = passive_channel.Next(Milliseconds(0));
    if (told.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      requests.emplace_back(told.id);
      EXPECT_EQ(MakeQp(told.id), 0);
      EXPECT_EQ(rdma_accept(told.id, &param), 0);
    }
    passive_count += told.type == RDMA_CM_EVENT_ESTABLISHED;
    active_count += active_channel.Next(Milliseconds(0)).type == RDMA_CM_EVENT_ESTABLISHED;
    return active_count == kConnections && passive_count == kConnections;
  })) << active_count
      << " and " << passive_count;
}

// --- rdma_listen ---------------------------------------------------------------------------------

TEST_F(Cm_rdma_listen, BindsWhoIsNotBound) {
  CmId id(passive_channel, RDMA_PS_TCP);
  ASSERT_EQ(rdma_listen(id.get(), 3), 0) << strerror(errno);
  EXPECT_NE(rdma_get_src_port(id.get()), 0);
}

TEST_F(Cm_rdma_listen, WildcardIsReachedOnEachNicAndFamily) {
  Listen("::");
  const uint16_t port = ListenerAddress().port();
  for (const char* address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    active = Resolved(active_channel, Address(address, port));
    ASSERT_EQ(MakeQp(active.get()), 0);
    Request();
    Accept();
    EXPECT_EQ(Address::Of(rdma_get_local_addr(passive.get())).text(), address);
    active.Destroy();
    passive.Destroy();
    // What is left of the connection.
    while (passive_channel.Next(Milliseconds(20)).is_there) {
    }
  }
}

TEST_F(Cm_rdma_listen, OnlyOnceAndNotWhoConnects) {
  Listen();
  EXPECT_FAILS(rdma_listen(listener.get(), 0), EINVAL);
  Resolve();
  EXPECT_FAILS(rdma_listen(active.get(), 0), EINVAL);
}

TEST_F(Cm_rdma_listen, BeyondTheBacklogRequestsWaitAtThePeer) {
  Listen("127.0.0.1", RDMA_PS_TCP, 1);
  rdma_conn_param param = Param();
  std::vector<CmId> asking;
  for (int i = 0; i < 2; ++i) {
    asking.push_back(Resolved(active_channel, ListenerAddress()));
    ASSERT_EQ(MakeQp(asking.back().get()), 0);
    ASSERT_EQ(rdma_connect(asking.back().get(), &param), 0);
  }
  // The first has the place; the second asks again, and finds it free.
  std::vector<CmId> requests;
  int active_count = 0, passive_count = 0;
  auto go_on = [&] {
    Told told = passive_channel.Next(Milliseconds(10));
    if (told.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      requests.emplace_back(told.id);
      EXPECT_EQ(MakeQp(told.id), 0);
      EXPECT_EQ(rdma_accept(told.id, &param), 0);
    } else if (told.is_there) {
      EXPECT_EQ(told.type, RDMA_CM_EVENT_ESTABLISHED);
      ++passive_count;
    }
    told = active_channel.Next(Milliseconds(10));
    if (told.is_there) {
      EXPECT_EQ(told.type, RDMA_CM_EVENT_ESTABLISHED);
      ++active_count;
    }
    return active_count == 2 && passive_count == 2;
  };
  EXPECT_TRUE(Eventually(go_on, Milliseconds(20'000)));
}

TEST_F(Cm_rdma_listen, RequestsThatNobodyTookAreRejectedAtItsEnd) {
  Listen();
  Resolve();
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  ASSERT_TRUE(passive_channel.IsReadable(kPatience));
  listener.Destroy();
  EXPECT_EQ(active_channel.Next().type, RDMA_CM_EVENT_REJECTED);
  EXPECT_FALSE(passive_channel.IsReadable());
}

// --- rdma_accept ---------------------------------------------------------------------------------

TEST_F(Cm_rdma_accept, PrivateDataArrive) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(MakeQp(passive.get()), 0);
  const std::string data(kReplyBytes, 'p');
  rdma_conn_param param = Param(data);
  param.responder_resources = 2;
  param.initiator_depth = 3;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << strerror(errno);
  Told told = active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(told.private_data, data);
  EXPECT_EQ(told.conn.responder_resources, 3);
  EXPECT_EQ(told.conn.initiator_depth, 2);
  EXPECT_EQ(told.conn.qp_num, passive->qp->qp_num);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(Cm_rdma_accept, RefusesMorePrivateDataThanAReplyHolds) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(MakeQp(passive.get()), 0);
  const std::string data(kReplyBytes + 1, 'p');
  rdma_conn_param param = Param(data);
  EXPECT_FAILS(rdma_accept(passive.get(), &param), EINVAL);
  // As Linux: what can't be accepted is rejected.
  active_channel.Expect(RDMA_CM_EVENT_REJECTED, kConsumerDefined);
}

TEST_F(Cm_rdma_accept, NeedsAQpOrItsNumber) {
  if (!v64::IsOurs()) GTEST_SKIP() << "upstream's follows the pointer";
  Listen();
  Resolve();
  Request();
  EXPECT_FAILS(rdma_accept(passive.get(), nullptr), EINVAL);
  EXPECT_FAILS(rdma_accept(listener.get(), nullptr), EINVAL);
}

TEST_F(Cm_rdma_accept, RefusesMoreReadsThanTheNicCanDo) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(MakeQp(passive.get()), 0);
  ibv_device_attr nic;
  ASSERT_EQ(ibv_query_device(passive->verbs, &nic), 0);
  rdma_conn_param param = Param();
  param.initiator_depth = static_cast<uint8_t>(nic.max_qp_init_rd_atom + 1);
  EXPECT_FAILS(rdma_accept(passive.get(), &param), EINVAL);
}

TEST_F(Cm_rdma_accept, WithoutARequestThereIsNothingToAccept) {
  Listen();
  Resolve();
  rdma_conn_param param = Param();
  EXPECT_FAILS(rdma_accept(active.get(), &param), EINVAL);
}

TEST_F(Cm_rdma_accept, ARequestMayWaitWithoutItsEventAcknowledged) {
  Listen();
  Resolve();
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  rdma_cm_event* event = passive_channel.Take();
  ASSERT_NE(event, nullptr);
  passive = CmId(event->id);
  Accept();
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
}

// --- rdma_reject, rdma_reject_ece ----------------------------------------------------------------

TEST_F(Cm_rdma_reject, ThePeerIsToldWithPrivateData) {
  Listen();
  Resolve();
  Request();
  const std::string data(kRejectBytes, 'r');
  ASSERT_EQ(rdma_reject(passive.get(), data.data(), static_cast<uint8_t>(data.size())), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_REJECTED, kConsumerDefined);
  EXPECT_EQ(told.private_data, data);
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_ERR);
}

TEST_F(Cm_rdma_reject, RefusesMorePrivateDataThanItHolds) {
  Listen();
  Resolve();
  Request();
  const std::string data(kRejectBytes + 1, 'r');
  EXPECT_FAILS(rdma_reject(passive.get(), data.data(), static_cast<uint8_t>(data.size())), EINVAL);
  EXPECT_EQ(rdma_reject(passive.get(), nullptr, 0), 0);
  active_channel.Expect(RDMA_CM_EVENT_REJECTED, kConsumerDefined);
}

TEST_F(Cm_rdma_reject, NeedsARequest) {
  CmId id(passive_channel, RDMA_PS_TCP);
  EXPECT_FAILS(rdma_reject(id.get(), nullptr, 0), EINVAL);
  Listen();
  EXPECT_FAILS(rdma_reject(listener.get(), nullptr, 0), EINVAL);
}

TEST_F(Cm_rdma_reject, DestroyingARequestRejectsIt) {
  Listen();
  Resolve();
  Request();
  passive.Destroy();
  active_channel.Expect(RDMA_CM_EVENT_REJECTED, kConsumerDefined);
}

class Cm_rdma_reject_ece : public CmTest {};

TEST_F(Cm_rdma_reject_ece, SaysThatTheVendorsOptionsWillNotDo) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(rdma_reject_ece(passive.get(), "no", 2), 0);
  Told told = active_channel.Expect(RDMA_CM_EVENT_REJECTED, kVendorOptionNotSupported);
  EXPECT_EQ(told.private_data.substr(0, 2), "no");
}

// --- rdma_disconnect -----------------------------------------------------------------------------

TEST_F(Cm_rdma_disconnect, BothEndsAreToldAndTheOwnQpFlushes) {
  Connect();
  ASSERT_EQ(rdma_disconnect(active.get()), 0);
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_ERR);
  EXPECT_EQ(passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED).id, passive.get());
  ASSERT_EQ(rdma_disconnect(passive.get()), 0);
  EXPECT_EQ(StateOf(passive->qp), IBV_QPS_ERR);
  EXPECT_EQ(active_channel.Expect(RDMA_CM_EVENT_DISCONNECTED).id, active.get());
}

TEST_F(Cm_rdma_disconnect, ByThePassiveSide) {
  Connect();
  ASSERT_EQ(rdma_disconnect(passive.get()), 0);
  active_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
  ASSERT_EQ(rdma_disconnect(active.get()), 0);
  passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
}

TEST_F(Cm_rdma_disconnect, ByBothAtOnceIsToldOnceEach) {
  Connect();
  ASSERT_EQ(rdma_disconnect(passive.get()), 0);
  ASSERT_EQ(rdma_disconnect(active.get()), 0);
  passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
  active_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
}

TEST_F(Cm_rdma_disconnect, AfterTimewaitItIsToldOf) {
  Connect();
  Disconnect();
  active_channel.Expect(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Milliseconds(20'000));
  passive_channel.Expect(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Milliseconds(20'000));
}

TEST_F(Cm_rdma_disconnect, NeedsANicAndARequest) {
  CmId id(active_channel, RDMA_PS_TCP);
  EXPECT_FAILS(rdma_disconnect(id.get()), EINVAL);
  Listen();
  Resolve();
  EXPECT_FAILS(rdma_disconnect(active.get()), EINVAL);
}

TEST_F(Cm_rdma_disconnect, DestroyingOneEndTellsTheOther) {
  Connect();
  passive.Destroy();
  active_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
}

// --- rdma_notify ---------------------------------------------------------------------------------

TEST_F(Cm_rdma_notify, EstablishedAlreadyIsSaidSo) {
  Connect();
  EXPECT_FAILS(rdma_notify(passive.get(), IBV_EVENT_COMM_EST), EISCONN);
}

TEST_F(Cm_rdma_notify, EstablishesWithoutTheLastMessage) {
  Listen();
  Resolve();
  Request();
  ASSERT_EQ(MakeQp(passive.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  // The active side has not taken the reply, and so has not answered it.
  ASSERT_EQ(rdma_notify(passive.get(), IBV_EVENT_COMM_EST), 0) << strerror(errno);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_FALSE(passive_channel.IsReadable());  // once only
}

TEST_F(Cm_rdma_notify, RefusesOtherEvents) {
  Connect();
  EXPECT_FAILS(rdma_notify(passive.get(), IBV_EVENT_QP_FATAL), EINVAL);
  EXPECT_FAILS(rdma_notify(listener.get(), IBV_EVENT_COMM_EST), EINVAL);
}

// --- rdma_migrate_id, connected ------------------------------------------------------------------

TEST_F(Cm_rdma_migrate_id_connected, AListenersRequestsGoAlong) {
  Listen();
  Resolve();
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  ASSERT_TRUE(passive_channel.IsReadable(kPatience));
  Channel other;
  ASSERT_EQ(rdma_migrate_id(listener.get(), other.get()), 0);
  EXPECT_FALSE(passive_channel.IsReadable());
  Told told = other.Expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  passive = CmId(told.id);
  EXPECT_EQ(passive->channel, other.get());
  ASSERT_EQ(MakeQp(passive.get()), 0);
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  other.Expect(RDMA_CM_EVENT_ESTABLISHED);
  passive.Destroy();
  listener.Destroy();
}

TEST_F(Cm_rdma_migrate_id_connected, AConnectionGoesOnInTheOtherChannel) {
  Connect();
  Channel other;
  ASSERT_EQ(rdma_migrate_id(passive.get(), other.get()), 0);
  ASSERT_EQ(rdma_disconnect(active.get()), 0);
  EXPECT_EQ(other.Expect(RDMA_CM_EVENT_DISCONNECTED).id, passive.get());
  EXPECT_FALSE(passive_channel.IsReadable());
  passive.Destroy();
}

}  // namespace
}  // namespace verbena::conformance

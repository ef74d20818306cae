// Connections, multicast groups and events.
#include <errno.h>

#include "verbs_shim/ucm/commands_fixture.h"

namespace verbena::ucm {
namespace {

using shm::CmOp;

rdma_ucm_conn_param SomeParam() {
  rdma_ucm_conn_param param{};
  param.qp_num = 17;
  param.private_data_len = 3;
  std::memcpy(param.private_data, "abc", 3);
  param.responder_resources = 4;
  param.initiator_depth = 5;
  param.retry_count = 6;
  param.rnr_retry_count = 7;
  param.srq = 1;
  param.valid = 1;
  return param;
}

void ExpectSomeParam(const shm::CmConnParam& param) {
  EXPECT_EQ(param.qp_num, 17u);
  EXPECT_EQ(param.private_data_len, 3);
  EXPECT_EQ(std::memcmp(param.private_data, "abc", 3), 0);
  EXPECT_EQ(param.responder_resources, 4);
  EXPECT_EQ(param.initiator_depth, 5);
  EXPECT_EQ(param.retry_count, 6);
  EXPECT_EQ(param.rnr_retry_count, 7);
  EXPECT_EQ(param.srq, 1);
  EXPECT_EQ(param.ece_vendor_id, 8u);
  EXPECT_EQ(param.ece_options, 9u);
}

TEST_F(CommandsTest, ConnectAndAcceptCarryTheirParameters) {
  rdma_ucm_connect connect{};
  connect.id = NewId();
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_CONNECT, connect), EINVAL);  // not valid
  connect.conn_param = SomeParam();
  connect.ece = {8, 9};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_CONNECT, connect), 0);
  ExpectOp(CmOp::kConnect);
  ExpectSomeParam(Last().connect.param);
  rdma_ucm_accept accept{};
  accept.id = connect.id;
  accept.uid = 0xbeef;
  accept.conn_param = SomeParam();
  accept.ece = {8, 9};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  ExpectOp(CmOp::kAccept);
  EXPECT_EQ(Last().connect.cookie, 0xbeefu);
  ExpectSomeParam(Last().connect.param);
  accept.conn_param = {};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  ExpectOp(CmOp::kEstablish);
}

TEST_F(CommandsTest, ARejectHasOneOfTwoReasons) {
  rdma_ucm_reject reject{};
  reject.id = NewId();
  reject.private_data_len = 2;
  std::memcpy(reject.private_data, "no", 2);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), 0);
  ExpectOp(CmOp::kReject);
  EXPECT_EQ(Last().reject.reason, 28);
  EXPECT_EQ(Last().reject.private_data_len, 2);
  EXPECT_EQ(std::memcmp(Last().reject.private_data, "no", 2), 0);
  reject.reason = 35;
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), 0);
  EXPECT_EQ(Last().reject.reason, 35);
  reject.reason = 8;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), EINVAL);
}

TEST_F(CommandsTest, NumbersOfCommandsArrive) {
  const uint32_t id = NewId();
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, 12}), 0);
  ExpectOp(CmOp::kListen);
  EXPECT_EQ(Last().number, 12u);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 500}), 0);
  ExpectOp(CmOp::kResolveRoute);
  EXPECT_EQ(Last().number, 500u);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{id, 4}), 0);
  ExpectOp(CmOp::kNotify);
  EXPECT_EQ(Last().number, 4u);
}

TEST_F(CommandsTest, AttributesOfAQpAreThoseOfTheDaemon) {
  rdma_ucm_init_qp_attr command{};
  command.id = NewId();
  command.qp_state = 2;
  ib_uverbs_qp_attr answer{};
  shm::CmQpAttr& attr = NextReply().qp_attr;
  attr.mask = 0x1234;
  attr.dest_qp_num = 77;
  attr.rq_psn = 5;
  attr.path_mtu = 4;
  attr.min_rnr_timer = 3;
  attr.ah.hop_limit = 64;
  attr.ah.dgid[0] = 0xfe;
  attr.ah.sgid_index = 2;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_INIT_QP_ATTR, command, &answer), 0);
  EXPECT_EQ(Last().number, 2u);
  EXPECT_EQ(answer.qp_attr_mask, 0x1234u);
  EXPECT_EQ(answer.qp_state, 2u);
  EXPECT_EQ(answer.dest_qp_num, 77u);
  EXPECT_EQ(answer.rq_psn, 5u);
  EXPECT_EQ(answer.path_mtu, 4u);
  EXPECT_EQ(answer.min_rnr_timer, 3);
  EXPECT_EQ(answer.ah_attr.is_global, 1);
  EXPECT_EQ(answer.ah_attr.grh.dgid[0], 0xfe);
  EXPECT_EQ(answer.ah_attr.grh.sgid_index, 2);
}

TEST_F(CommandsTest, OptionsAreReadWhereTheProgramHasThem) {
  const uint8_t tos = 46;
  rdma_ucm_set_option command{};
  command.id = NewId();
  command.optname = RDMA_OPTION_ID_TOS;
  command.optval = reinterpret_cast<uint64_t>(&tos);
  command.optlen = 1;
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_SET_OPTION, command), 0);
  ExpectOp(CmOp::kSetOption);
  EXPECT_EQ(Last().option.length, 1u);
  EXPECT_EQ(Last().option.value[0], 46);
  command.optval = 64;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_SET_OPTION, command), EFAULT);
}

TEST_F(CommandsTest, MembershipsHaveNumbersOfTheirOwn) {
  const uint32_t id = NewId();
  rdma_ucm_join_ip_mcast join{};
  join.id = id;
  join.uid = 0x6006;
  join.addr = Inet6("ff05::7", 0);
  rdma_ucm_create_id_resp answer{77};
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_JOIN_IP_MCAST, join, &answer), 0);
  ExpectOp(CmOp::kJoinMcast);
  EXPECT_EQ(answer.id, 0u);
  EXPECT_EQ(Last().join.cookie, 0x6006u);
  EXPECT_EQ(Last().handle, 100u);
  rdma_ucm_join_mcast join_more{};
  join_more.id = id;
  join_more.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  const sockaddr_in group = Inet("239.0.0.1", 0);
  std::memcpy(&join_more.addr, &group, sizeof(group));
  join_more.addr_size = sizeof(group);
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_JOIN_MCAST, join_more, &answer), 0);
  EXPECT_EQ(answer.id, 1u);
  EXPECT_EQ(Last().join.join_flags, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
  rdma_ucm_destroy_id leave{};
  rdma_ucm_destroy_id_resp left{};
  NextReply().number = 1;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), 0);
  ExpectOp(CmOp::kLeaveMcast);
  EXPECT_EQ(Last().handle, 101u);
  EXPECT_EQ(left.events_reported, 1u);
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), ENOENT);
  // The other one goes with its identifier.
  EXPECT_EQ(Destroy(id), 0);
  leave.id = 1;
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), ENOENT);
}

TEST_F(CommandsTest, AnEventWaitsForOne) {
  NewId(0x1d);
  NextReply().error = EAGAIN;
  NextReply().error = EAGAIN;
  shm::CmEvent& event = NextReply().event;
  event.cookie = 0x1d;
  event.id = 100;
  event.event = 8;
  event.status = 28;
  event.param.private_data_len = 2;
  std::memcpy(event.param.private_data, "no", 2);
  event.param.qp_num = 33;
  event.param.ece_vendor_id = 5;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(g_daemon.waits, 2);
  EXPECT_EQ(Last().handle, kChannel.handle);
  EXPECT_EQ(answer.uid, 0x1du);
  EXPECT_EQ(answer.id, 0u);
  EXPECT_EQ(answer.event, 8u);
  EXPECT_EQ(answer.status, 28u);
  EXPECT_EQ(answer.param.conn.private_data_len, 2);
  EXPECT_EQ(std::memcmp(answer.param.conn.private_data, "no", 2), 0);
  EXPECT_EQ(answer.param.conn.qp_num, 33u);
  EXPECT_EQ(answer.ece.vendor_id, 5u);
}

TEST_F(CommandsTest, AnEventThatMayNotWaitOrIsInterruptedDoesNot) {
  rdma_ucm_event_resp answer{};
  for (int error : {EAGAIN, EINTR}) {
    NextReply().error = EAGAIN;
    g_daemon.wait_error = error;
    EXPECT_EQ(GetEvent(&answer), error);
  }
}

TEST_F(CommandsTest, AChannelThatIsClosedUnderOneWhoWaitsIsToldApart) {
  rdma_ucm_event_resp answer{};
  NextReply().error = EAGAIN;
  NextReply().error = ENOENT;
  EXPECT_EQ(GetEvent(&answer), kClosedWhileWaiting);
  NextReply().error = EIO;
  EXPECT_EQ(GetEvent(&answer), EIO);
}

TEST_F(CommandsTest, AConnectRequestBringsAnIdentifier) {
  NewId(0x115);
  shm::CmEvent& event = NextReply().event;
  event.cookie = 0x115;
  event.id = 500;
  event.listener = 100;
  event.event = 4;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.uid, 0x115u);
  ASSERT_EQ(answer.id, 1u);
  EXPECT_EQ(Disconnect(1), 0);
  EXPECT_EQ(Last().handle, 500u);
}

TEST_F(CommandsTest, AConnectRequestThatNobodyHearsOfIsGivenUp) {
  shm::CmEvent& event = NextReply().event;
  event.id = 500;
  event.listener = 100;
  event.event = 4;
  EXPECT_EQ(GetEvent(reinterpret_cast<rdma_ucm_event_resp*>(16)), EFAULT);
  ExpectOp(CmOp::kDestroyId);
  EXPECT_EQ(Last().handle, 500u);
  EXPECT_EQ(NewId(), 0u);
}

TEST_F(CommandsTest, WhenTheDaemonGoesWhoHasANicIsToldOnce) {
  const uint32_t bound = NewId(0x111), idle = NewId(0x222), elsewhere = NewId(0x333, kOtherChannel);
  for (const auto& [id, channel] : {std::pair(bound, kChannel), {elsewhere, kOtherChannel}}) {
    NextReply().query.node_guid = 5;
    rdma_ucm_query query{};
    query.id = id;
    rdma_ucm_query_route_resp route{};
    ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, query, &route, channel), 0);
  }
  // One request is accepted, and so known to the program; one is not.
  rdma_ucm_event_resp answer{};
  for (const shm::CmHandle handle : {200u, 201u}) {
    shm::CmEvent& request = NextReply().event;
    request.cookie = 0x111;
    request.id = handle;
    request.listener = 100;
    request.event = 4;  // CONNECT_REQUEST
    ASSERT_EQ(GetEvent(&answer), 0);
    if (handle == 201) continue;
    rdma_ucm_accept accept{};
    accept.id = answer.id;
    accept.uid = 0x444;
    accept.conn_param = SomeParam();
    ASSERT_EQ(Write(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  }
  for (int i = 0; i < 3; ++i) NextReply().error = EIO;
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.event, 11u);  // DEVICE_REMOVAL
  EXPECT_EQ(answer.status, 0u);
  EXPECT_EQ(answer.uid, 0x111u);
  EXPECT_EQ(answer.id, bound);
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.uid, 0x444u);
  EXPECT_EQ(GetEvent(&answer), EIO);
  // They can be destroyed, with the events that the program took: two requests and the removal.
  for (const auto& [id, taken] : {std::pair(bound, 3u), {idle, 0u}, {answer.id, 1u}}) {
    NextReply().error = EIO;
    uint32_t events = 77;
    EXPECT_EQ(Destroy(id, &events), 0);
    EXPECT_EQ(events, taken);
    EXPECT_EQ(Destroy(id), ENOENT);
  }
}

TEST_F(CommandsTest, AForkedChildIsToldOfItsOwnNicsAlone) {
  auto new_id_with_nic = [this](uint64_t uid) {
    const uint32_t id = NewId(uid);
    NextReply().query.node_guid = 5;
    rdma_ucm_query query{};
    query.id = id;
    rdma_ucm_query_route_resp route{};
    EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, query, &route), 0);
  };
  new_id_with_nic(0x111);
  commands_.AfterForkInChild();
  // What its parent's session says to it, whose daemon runs.
  rdma_ucm_event_resp answer{};
  NextReply().error = EIO;
  EXPECT_EQ(GetEvent(&answer), EIO);
  new_id_with_nic(0x222);
  NextReply().error = EIO;
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.uid, 0x222u);
}

TEST_F(CommandsTest, EventsOfDatagramsSayHowToAnswer) {
  shm::CmEvent& event = NextReply().event;
  event.is_ud = 1;
  event.event = 9;
  event.param.qp_num = 44;
  event.param.qkey = 0x1234;
  event.ah.dgid[15] = 9;
  event.ah.port_num = 1;
  event.param.private_data_len = 1;
  event.param.private_data[0] = 'x';
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.param.ud.qp_num, 44u);
  EXPECT_EQ(answer.param.ud.qkey, 0x1234u);
  EXPECT_EQ(answer.param.ud.ah_attr.grh.dgid[15], 9);
  EXPECT_EQ(answer.param.ud.ah_attr.is_global, 1);
  EXPECT_EQ(answer.param.ud.private_data[0], 'x');
}

TEST_F(CommandsTest, EventsThatProgramsWroteComeBack) {
  struct {
    uint32_t id, reserved, event, status;
    uint64_t arg;
  } command{NewId(), 0, shm::kCmEventUser, 3, 0xcafe};
  ASSERT_EQ(Write(24, command), 0);
  ExpectOp(CmOp::kWriteEvent);
  EXPECT_EQ(Last().user.event, shm::kCmEventUser);
  EXPECT_EQ(Last().user.status, 3);
  EXPECT_EQ(Last().user.arg, 0xcafeu);
  shm::CmEvent& event = NextReply().event;
  event.event = shm::kCmEventUser;
  event.arg = 0xcafe;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  uint64_t arg;
  std::memcpy(&arg, &answer.param, sizeof(arg));
  EXPECT_EQ(arg, 0xcafeu);
}

}  // namespace
}  // namespace verbena::ucm

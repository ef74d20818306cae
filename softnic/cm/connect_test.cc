// Connections from rdma_resolve_addr to TIMEWAIT_EXIT, and all the ways in which they fail.
#include <errno.h>

#include "softnic/cm/dreq_data.h"
#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

using shm::CmOp;
using transport::cm::Dreq;
using transport::cm::Mra;
using transport::cm::Rej;
using transport::cm::Rep;
using transport::cm::Req;
using transport::cm::Rtu;

class CmConnect : public CmWorld {
 protected:
  void ExpectNothingIsLeft() {
    Rest();
    for (int host = 0; host < kHosts; ++host) {
      const CmCounters counters = CountersOf(host);
      EXPECT_EQ(counters.communications + counters.ids_connected, 0u);
    }
  }
  Pair pair_;
};

TEST_F(CmConnect, FromResolveToTimewaitExit) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  EXPECT_EQ(last_.listener, pair_.listener);
  EXPECT_EQ(last_.cookie, 0x115u) << "the listener's";
  EXPECT_EQ(last_.param.qp_num, 0x11u);
  EXPECT_EQ(last_.param.responder_resources, 3) << "the peer's initiator depth";
  EXPECT_EQ(last_.param.initiator_depth, 5);
  EXPECT_EQ(last_.param.retry_count, 7);
  EXPECT_EQ(last_.param.private_data_len, 56);
  EXPECT_EQ(DataOf(last_.param, 6), std::string("hello\0", 6));
  EXPECT_EQ(last_.is_ud, 0);
  const shm::CmQuery query = Ask(pair_.server, CmOp::kQuery, pair_.passive).query;
  EXPECT_TRUE(IsSameHost(query.source, At("10.0.0.2")));
  EXPECT_EQ(query.source.port, htons(7174));
  EXPECT_TRUE(IsSameHost(query.destination, At("10.0.0.1")));
  EXPECT_EQ(query.destination.port,
            Ask(pair_.client, CmOp::kQuery, pair_.active).query.source.port);
  EXPECT_EQ(query.mtu, IBV_MTU_1024);
  EXPECT_EQ(query.has_route, 1);

  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22, "welcome"), 0x5e), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  EXPECT_EQ(last_.cookie, 0xc00c1eu);
  EXPECT_EQ(last_.param.qp_num, 0x22u);
  EXPECT_EQ(last_.param.private_data_len, 196);
  EXPECT_EQ(DataOf(last_.param, 7), "welcome");
  ASSERT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_ESTABLISHED));
  EXPECT_EQ(last_.cookie, 0x5eu) << "accept's";
  EXPECT_EQ(last_.id, pair_.passive);

  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_EQ(Do(pair_.server, CmOp::kDisconnect, pair_.passive), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  EXPECT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0) << "once more is no error";
  ExpectNothingIsLeft();
  EXPECT_EQ(Destroy(pair_.client, pair_.active), 5u) << "resolved twice, response, the end twice";
  EXPECT_EQ(Destroy(pair_.server, pair_.listener), 1u);
  EXPECT_EQ(Destroy(pair_.server, pair_.passive), 3u);
  for (int host = 0; host < kHosts; ++host) EXPECT_EQ(CountersOf(host).ids, 0u);
}

TEST_F(CmConnect, AReqSaysWhatLinuxSays) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  const Req& req = std::get<Req>(sent_.at(0));
  EXPECT_EQ(req.service_id.value, 0x0106'1c06u);
  EXPECT_EQ(req.local_ca_guid, 0x100u);
  EXPECT_EQ(req.remote_cm_response_timeout, 20);
  EXPECT_EQ(req.local_cm_response_timeout, 20);
  EXPECT_EQ(req.max_cm_retries, 15);
  EXPECT_EQ(req.pkey, PKey{0xffff});
  EXPECT_EQ(req.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.rnr_retry_count, 6);
  EXPECT_EQ(req.primary.local_lid, 0xffff);
  EXPECT_EQ(req.primary.local_gid, GidOf(At("10.0.0.1")));
  EXPECT_EQ(req.primary.remote_gid, GidOf(At("10.0.0.2")));
  EXPECT_EQ(req.primary.hop_limit, 64);
  EXPECT_FALSE(req.primary.is_subnet_local);
  EXPECT_EQ(req.primary.local_ack_timeout, 17);
}

TEST_F(CmConnect, QpsAreSetAsBothSidesAgree) {
  auto attr_of = [&](const Program& program, shm::CmHandle id, int state) {
    const shm::CmReply reply = Ask(program, CmOp::kInitQpAttr, id, static_cast<uint32_t>(state));
    EXPECT_EQ(reply.error, 0) << state;
    return reply.qp_attr;
  };
  const Program alone = StartProgram(0);
  const shm::CmHandle fresh = NewId(alone);
  EXPECT_EQ(Ask(alone, CmOp::kInitQpAttr, fresh, IBV_QPS_INIT).error, EINVAL) << "of no NIC";
  ASSERT_EQ(ResolveAddress(alone, fresh, At("10.0.0.2", 7)), 0);
  shm::CmQpAttr attr = attr_of(alone, fresh, IBV_QPS_INIT);
  EXPECT_EQ(attr.mask, static_cast<uint32_t>(IBV_QP_STATE | IBV_QP_ACCESS_FLAGS |
                                             IBV_QP_PKEY_INDEX | IBV_QP_PORT));
  EXPECT_EQ(attr.qp_access_flags, 0u);
  EXPECT_EQ(Ask(alone, CmOp::kInitQpAttr, fresh, IBV_QPS_RTR).error, EINVAL);
  EXPECT_EQ(Ask(alone, CmOp::kInitQpAttr, fresh, 99).error, EINVAL);

  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  attr = attr_of(pair_.client, pair_.active, IBV_QPS_INIT);
  EXPECT_EQ(attr.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(attr.port_num, 1);
  EXPECT_EQ(attr.qp_access_flags,
            static_cast<uint32_t>(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC));
  const shm::CmQpAttr rtr[] = {attr_of(pair_.client, pair_.active, IBV_QPS_RTR),
                               attr_of(pair_.server, pair_.passive, IBV_QPS_RTR)};
  const shm::CmQpAttr rts[] = {attr_of(pair_.client, pair_.active, IBV_QPS_RTS),
                               attr_of(pair_.server, pair_.passive, IBV_QPS_RTS)};
  for (int side : {0, 1}) {
    EXPECT_EQ(
        rtr[side].mask,
        static_cast<uint32_t>(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    EXPECT_EQ(rts[side].mask,
              static_cast<uint32_t>(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
    EXPECT_EQ(rts[side].sq_psn, rtr[1 - side].rq_psn);
    EXPECT_EQ(rtr[side].path_mtu, IBV_MTU_1024);
    EXPECT_EQ(rtr[side].ah.hop_limit, 64);
    EXPECT_EQ(rtr[side].ah.port_num, 1);
    EXPECT_EQ(rtr[side].ah.sgid_index, 1);
    EXPECT_EQ(rtr[side].ah.flow_label, rtr[1 - side].ah.flow_label);
    EXPECT_EQ(rts[side].retry_cnt, 7);
    EXPECT_EQ(rts[side].rnr_retry, 6);
    EXPECT_EQ(rts[side].timeout, 17);
  }
  EXPECT_NE(rtr[0].rq_psn, rtr[1].rq_psn) << "random";
  EXPECT_EQ(rtr[0].dest_qp_num, 0x22u);
  EXPECT_EQ(rtr[1].dest_qp_num, 0x11u);
  EXPECT_EQ(std::memcmp(rtr[0].ah.dgid, GidOf(At("10.0.0.2")).raw.data(), 16), 0);
  EXPECT_EQ(std::memcmp(rtr[1].ah.dgid, GidOf(At("10.0.0.1")).raw.data(), 16), 0);
  // What the passive side was asked for and said, and the active one was told.
  EXPECT_EQ(rts[1].max_rd_atomic, 3);
  EXPECT_EQ(rtr[1].max_dest_rd_atomic, 5);
  EXPECT_EQ(rts[0].max_rd_atomic, 5);
  EXPECT_EQ(rtr[0].max_dest_rd_atomic, 3);
}

TEST_F(CmConnect, OnOneHostByItsAddressesAndLoopback) {
  const Program client = StartProgram(0), server = StartProgram(0);
  NewListener(server, At("::", 99));
  hosts_[0]->SetHostAddresses({At("192.168.1.1")});
  for (const char* address :
       {"127.0.0.1", "127.0.0.2", "::1", "10.0.0.1", "192.168.1.1", "fd00::1"}) {
    SCOPED_TRACE(address);
    const shm::CmHandle active = NewId(client);
    ASSERT_NO_FATAL_FAILURE(Resolve(client, active, At(address, 99)));
    ASSERT_EQ(Connect(client, active, ParamOf(0x33)), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_CONNECT_REQUEST));
    const shm::CmHandle passive = last_.id;
    const shm::CmQuery query = Ask(server, CmOp::kQuery, passive).query;
    EXPECT_TRUE(IsSameHost(query.source, At(address)));
    ASSERT_EQ(Accept(server, passive, ParamOf(0x44)), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE));
    ASSERT_EQ(Do(client, CmOp::kEstablish, active), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_ESTABLISHED));
    Destroy(client, active);
    ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_DISCONNECTED));
    Destroy(server, passive);
    ExpectNothingIsLeft();
  }
}

TEST_F(CmConnect, ByLoopbackWhereAllNicsHaveNetworks) {
  hosts_[0]->SetNics(now_, {NicsOf(0)[0]});
  const Program client = StartProgram(0), server = StartProgram(0), elsewhere = StartProgram(1);
  NewListener(server, At("127.0.0.1", 99));
  // As with Linux it hears whoever asks the host.
  for (const auto& [program, address] :
       {std::pair{client, "127.0.0.1"}, {client, "10.0.0.1"}, {elsewhere, "10.0.0.1"}}) {
    SCOPED_TRACE(address);
    const shm::CmHandle active = NewId(program);
    ASSERT_NO_FATAL_FAILURE(Resolve(program, active, At(address, 99)));
    ASSERT_EQ(Connect(program, active, ParamOf(0x30 + active)), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_CONNECT_REQUEST));
    EXPECT_TRUE(IsSameHost(Ask(server, CmOp::kQuery, last_.id).query.source, At(address)));
  }
}

TEST_F(CmConnect, AListenerServesItsAddressAndFamily) {
  const Program client = StartProgram(0), server = StartProgram(1);
  auto connect = [&](const shm::CmAddress& destination) {
    const shm::CmHandle id = NewId(client);
    Resolve(client, id, destination);
    EXPECT_EQ(Connect(client, id, ParamOf(0x10 + id)), 0);
  };
  NewListener(server, At("0.0.0.0", 1));
  connect(At("fd00::2", 1));
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_REJECTED, 28));
  connect(At("10.0.0.2", 2));
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_REJECTED, 8)) << "no such service";

  NewListener(server, At("10.0.0.2", 3));
  connect(At("10.0.0.2", 3));
  ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_CONNECT_REQUEST));
  NewListener(server, At("127.0.0.1", 4));
  connect(At("10.0.0.2", 4));
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_REJECTED, 8)) << "not through this NIC";

  const shm::CmHandle ipv6_only = NewId(server);
  ASSERT_EQ(SetOption(server, ipv6_only, RDMA_OPTION_ID_AFONLY, 1), 0);
  ASSERT_EQ(Bind(server, ipv6_only, At("::", 5)), 0);
  ASSERT_EQ(Listen(server, ipv6_only), 0);
  connect(At("10.0.0.2", 5));
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_REJECTED, 28));
  connect(At("fd00::2", 5));
  ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_CONNECT_REQUEST));
}

TEST_F(CmConnect, AForgedDestinationReachesNoListenerElsewhere) {
  const Program client = StartProgram(0), server = StartProgram(1);
  NewListener(server, At("0.0.0.0", 9));
  const shm::CmHandle id = NewId(client);
  ASSERT_NO_FATAL_FAILURE(Resolve(client, id, At("10.0.0.2", 9)));
  ASSERT_EQ(Connect(client, id, ParamOf(0x11)), 0);
  // The header names loopback.
  const uint8_t loopback[] = {127, 0, 0, 1};
  std::memcpy(flights_.at(0).mad.data() + transport::cm::kMadHeaderBytes + 140 + 32, loopback, 4);
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_REJECTED, 28));
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(server));
}

TEST_F(CmConnect, RejectedByThePassiveSide) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  EXPECT_EQ(Reject(pair_.server, pair_.passive, "no", 3), EINVAL) << "not a program's reason";
  ASSERT_EQ(Reject(pair_.server, pair_.passive, "not today"), 0);
  EXPECT_EQ(Reject(pair_.server, pair_.passive), EINVAL);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
  EXPECT_EQ(last_.param.private_data_len, 148);
  EXPECT_EQ(DataOf(last_.param, 9), "not today");
  EXPECT_EQ(Accept(pair_.server, pair_.passive, ParamOf(1)), EINVAL);
  EXPECT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11)), EINVAL);
  ExpectNothingIsLeft();
}

TEST_F(CmConnect, RejectedByTheActiveSide) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  ASSERT_EQ(Reject(pair_.client, pair_.active, "changed my mind", 35), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_REJECTED, 35));
  EXPECT_EQ(DataOf(last_.param, 15), "changed my mind");
  EXPECT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), EINVAL);
  ExpectNothingIsLeft();
}

TEST_F(CmConnect, WhatIsAskedOutOfTurnChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  EXPECT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), EINVAL);
  EXPECT_EQ(Accept(pair_.client, pair_.active, ParamOf(0x77)), EINVAL);
  EXPECT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x77)), EINVAL);
  EXPECT_EQ(Do(pair_.server, CmOp::kEstablish, pair_.passive), EINVAL);
  EXPECT_EQ(Accept(pair_.server, pair_.listener, ParamOf(0x77)), EINVAL);
  EXPECT_EQ(Do(pair_.server, CmOp::kDisconnect, pair_.listener), EINVAL);
  EXPECT_EQ(Reject(pair_.server, pair_.listener), EINVAL);
  EXPECT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0)
      << "as Linux: no error, no effect";
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  EXPECT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), EINVAL) << "once";
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  ASSERT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), 0);
  EXPECT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), EINVAL) << "once";
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_ESTABLISHED));
}

TEST_F(CmConnect, NoAnswerIsUnreachableAfterSixteenTries) {
  const Program client = StartProgram(0);
  const shm::CmHandle id = NewId(client);
  ASSERT_NO_FATAL_FAILURE(Resolve(client, id, At("10.0.0.9", 1)));
  ASSERT_EQ(Connect(client, id, ParamOf(0x11)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT));
  EXPECT_EQ(CountSent<Req>(), 16);
  EXPECT_EQ(now_.ns / 1'000'000'000, 77) << "16 of 4.3 s and an ACK timeout each";
  ExpectNothingIsLeft();
}

TEST_F(CmConnect, AnAcceptedConnectionWithoutAnRtuTimesOut) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  is_cut_ = true;
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT));
  ExpectNothingIsLeft();
}

TEST_F(CmConnect, ASlowProgramIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  const Instant before = now_;
  while (now_ < before + Seconds(100)) ASSERT_TRUE(Step());
  EXPECT_GE(CountSent<Mra>(), 1) << "so that the peer asks less often";
  EXPECT_LE(CountSent<Req>(), 10);
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
}

TEST_F(CmConnect, ADisconnectWithoutAnAnswerEnds) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  is_cut_ = true;
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_TIMEWAIT_EXIT));
}

// Who ends a connection says how far it has carried out what came.
TEST_F(CmConnect, ADisconnectMayNameAPsn) {
  constexpr uint32_t kNamed = shm::kCmNamesPsn | 0xfe'dcba;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  ASSERT_EQ(Ask(pair_.client, CmOp::kDisconnect, pair_.active, kNamed).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_EQ(last_.peer_psn, kNamed);
  EXPECT_EQ(last_.param.private_data_len, 0);
  ASSERT_EQ(Ask(pair_.server, CmOp::kDisconnect, pair_.passive, kNamed).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_EQ(last_.peer_psn, 0u) << "an answer names none";
}

// Of another implementation, or of a later one.
TEST_F(CmConnect, DataOfADreqThatAreNotOursNameNoPsn) {
  DreqData data = EncodeDreqData(Psn(7));
  ASSERT_EQ(DecodeDreqData(data), Psn(7));
  for (size_t at = 0; at < 5; ++at) {
    data[at] ^= std::byte{1};
    EXPECT_EQ(DecodeDreqData(data), std::nullopt) << at;
    data[at] ^= std::byte{1};
  }
  EXPECT_EQ(DecodeDreqData({}), std::nullopt);
  EXPECT_EQ(EncodeDreqData(std::nullopt), DreqData{});
}

TEST_F(CmConnect, BothDisconnectAtOnce) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_EQ(Do(pair_.server, CmOp::kDisconnect, pair_.passive), 0);
  for (const Program& program : {pair_.client, pair_.server}) {
    ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_DISCONNECTED));
    ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  }
  ExpectNothingIsLeft();
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.client));
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.server));
}

TEST_F(CmConnect, DataBeforeTheRtuEstablishes) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  EXPECT_EQ(Ask(pair_.server, CmOp::kNotify, pair_.passive, IBV_EVENT_COMM_EST).error, EINVAL);
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  EXPECT_EQ(Ask(pair_.server, CmOp::kNotify, pair_.passive, IBV_EVENT_PORT_ERR).error, EINVAL);
  ASSERT_EQ(Ask(pair_.server, CmOp::kNotify, pair_.passive, IBV_EVENT_COMM_EST).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_ESTABLISHED));
  EXPECT_EQ(Ask(pair_.server, CmOp::kNotify, pair_.passive, IBV_EVENT_COMM_EST).error, EISCONN);
  ASSERT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), 0);
  Rest();
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.server)) << "told twice";
}

TEST_F(CmConnect, EceGoesBothWays) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, pair_.active, At("10.0.0.2", 7)));
  shm::CmConnParam param = ParamOf(0x11);
  param.ece_vendor_id = 0x123456;
  param.ece_options = 0xdeadbeef;
  ASSERT_EQ(Connect(pair_.client, pair_.active, param), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));
  EXPECT_EQ(last_.param.ece_vendor_id, 0x123456u);
  EXPECT_EQ(last_.param.ece_options, 0xdeadbeefu);
  param.ece_options = 0x1;
  ASSERT_EQ(Accept(pair_.server, last_.id, param), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  EXPECT_EQ(last_.param.ece_vendor_id, 0x123456u);
  EXPECT_EQ(last_.param.ece_options, 0x1u);
}

// A connect request that a program has not taken counts against the backlog.
TEST_F(CmConnect, BeyondTheBacklogPeersAskAgain) {
  const Program client = StartProgram(0), server = StartProgram(1);
  NewListener(server, At("0.0.0.0", 7), RDMA_PS_TCP, /*backlog=*/2);
  for (uint32_t i = 0; i < 5; ++i) {
    const shm::CmHandle id = NewId(client);
    ASSERT_NO_FATAL_FAILURE(Resolve(client, id, At("10.0.0.2", 7)));
    ASSERT_EQ(Connect(client, id, ParamOf(0x100 + i)), 0);
  }
  Settle();
  EXPECT_EQ(CountersOf(1).events_waiting, 2u);
  EXPECT_EQ(CountersOf(1).backlog_drops, 3u);
  EXPECT_EQ(CountSent<Rej>(), 0);
  std::map<uint32_t, int> heard;
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(Expect(server, RDMA_CM_EVENT_CONNECT_REQUEST));
    ++heard[last_.param.qp_num];
    ASSERT_EQ(Accept(server, last_.id, ParamOf(0x200 + i)), 0);
  }
  EXPECT_EQ(heard.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  }
}

TEST_F(CmConnect, TooMuchPrivateDataIsRefused) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, pair_.active, At("10.0.0.2", 7)));
  EXPECT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11, std::string(57, 'x'))), EINVAL);
  ASSERT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11, std::string(56, 'x'))), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));
  EXPECT_EQ(DataOf(last_.param, 56), std::string(56, 'x'));
  pair_.passive = last_.id;
  EXPECT_EQ(Reject(pair_.server, pair_.passive, std::string(149, 'x')), EINVAL);
  EXPECT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22, std::string(197, 'x'))), EINVAL);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28))
      << "what can't be accepted is rejected";
}

TEST_F(CmConnect, PacketsThatTheNicCannotTakeAreRefused) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  std::vector<CmNic> nics = NicsOf(1);
  nics[0].active_mtu_bytes = 512;
  hosts_[1]->SetNics(now_, nics);
  const shm::CmHandle id = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.2", 7174)));
  ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x12)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 26));
}

TEST_F(CmConnect, AddressesThatLeadNowhereAreToldOf) {
  const Program client = StartProgram(0);
  const shm::CmHandle id = NewId(client);
  ASSERT_EQ(Bind(client, id, At("127.0.0.1")), 0);
  ASSERT_EQ(ResolveAddress(client, id, At("10.0.0.2", 1)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(client, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH));
  ASSERT_NO_FATAL_FAILURE(Resolve(client, id, At("127.0.0.2", 1))) << "it may try again";
  const shm::CmHandle other = NewId(client);
  EXPECT_EQ(ResolveAddress(client, other, At("10.0.0.2", 1), At("fd00::1")), EINVAL);
  const shm::CmHandle third = NewId(client);
  EXPECT_EQ(ResolveAddress(client, third, At("10.0.0.2", 1), At("10.0.0.2")), EADDRNOTAVAIL);
  ASSERT_EQ(ResolveAddress(client, third, At("10.0.0.2", 1), At("10.0.0.1", 555)), 0);
  EXPECT_EQ(Ask(client, CmOp::kQuery, third).query.source.port, htons(555));
  EXPECT_EQ(Ask(client, CmOp::kResolveRoute, third, 0).error, EINVAL) << "no time for it";
}

TEST_F(CmConnect, OptionsShapeTheConnection) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  const shm::CmHandle listener = NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_EQ(SetOption(pair_.client, pair_.active, RDMA_OPTION_ID_TOS, 0x68, 1), 0);
  ASSERT_EQ(SetOption(pair_.client, pair_.active, RDMA_OPTION_ID_ACK_TIMEOUT, 19, 1), 0);
  EXPECT_EQ(SetOption(pair_.client, pair_.active, RDMA_OPTION_ID_TOS, 0x68, 4), EINVAL);
  EXPECT_EQ(SetOption(pair_.client, pair_.active, RDMA_OPTION_ID_ACK_TIMEOUT, 32, 1), EINVAL);
  EXPECT_EQ(SetOption(pair_.client, pair_.active, 77, 0), ENOSYS);
  EXPECT_EQ(SetOption(pair_.client, pair_.active, 0, 0, 4, 9), ENOSYS);
  EXPECT_EQ(SetOption(pair_.server, listener, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
  EXPECT_EQ(SetOption(pair_.server, listener, RDMA_OPTION_ID_AFONLY, 1), EINVAL);
  ASSERT_EQ(ResolveAddress(pair_.client, pair_.active, At("10.0.0.2", 7)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ADDR_RESOLVED));
  auto set_path = [&](uint32_t flags, uint32_t bytes) {
    return SetOption(pair_.client, pair_.active, RDMA_OPTION_IB_PATH, flags, bytes, RDMA_OPTION_IB);
  };
  constexpr uint32_t kForAll = 0b101011;  // IBV_PATH_FLAG_GMP, _PRIMARY, _BIDIRECTIONAL
  EXPECT_EQ(set_path(kForAll, 0), EINVAL);
  EXPECT_EQ(set_path(kForAll, 71), EINVAL);
  EXPECT_EQ(set_path(kForAll, 72 * 1000), EINVAL) << "more than a request holds";
  EXPECT_EQ(set_path(0, 72), EINVAL) << "a path for nothing";
  ASSERT_EQ(set_path(kForAll, 72), 0) << "in place of a route that was asked for";
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ROUTE_RESOLVED));
  ASSERT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11)), 0);
  EXPECT_EQ(std::get<Req>(sent_.at(0)).primary.traffic_class, 0x68);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));
  ASSERT_EQ(Accept(pair_.server, last_.id, ParamOf(0x22)), 0);
  EXPECT_EQ(Ask(pair_.server, CmOp::kInitQpAttr, last_.id, IBV_QPS_RTR).qp_attr.ah.traffic_class,
            0x68);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  EXPECT_EQ(Ask(pair_.client, CmOp::kInitQpAttr, pair_.active, IBV_QPS_RTS).qp_attr.timeout, 19);
}

TEST_F(CmConnect, PortsAreSharedOnlyBySomeAndNotByListeners) {
  const Program program = StartProgram(0);
  const shm::CmHandle first = NewId(program), second = NewId(program), third = NewId(program);
  ASSERT_EQ(SetOption(program, first, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(Bind(program, first, At("10.0.0.1", 80)), 0);
  EXPECT_EQ(Bind(program, second, At("10.0.0.1", 80)), EADDRINUSE);
  ASSERT_EQ(SetOption(program, second, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(Bind(program, second, At("10.0.0.1", 80)), 0);
  EXPECT_EQ(Listen(program, first), EADDRINUSE);
  Destroy(program, second);
  EXPECT_EQ(Listen(program, first), 0);
  EXPECT_EQ(Listen(program, first), EINVAL);
  EXPECT_EQ(Bind(program, third, At("0.0.0.0", 80)), EADDRNOTAVAIL);
  EXPECT_EQ(Listen(program, third), 0) << "at a port of its own";
  EXPECT_NE(Ask(program, CmOp::kQuery, third).query.source.port, 0);
}

}  // namespace
}  // namespace verbena::softnic

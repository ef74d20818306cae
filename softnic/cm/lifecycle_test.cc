// How identifiers, channels, sessions and NICs go, at any time and in any order; and programs that
// ask for what makes no sense.
#include <errno.h>

#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

using shm::CmOp;

class CmLifecycle : public CmWorld {
 protected:
  void ExpectNothingIsLeft() {
    Rest();
    for (int host = 0; host < kHosts; ++host) {
      EXPECT_EQ(CountersOf(host).communications, 0u) << host;
    }
  }
  // A session that is closed at a stage of the handshake: what the other program is told.
  struct Outcome {
    std::optional<uint32_t> event;
    int status = 0;
  };
  Outcome NextOf(const Program& program) {
    const std::optional<shm::CmEvent> event = Take(program);
    if (!event.has_value()) return {};
    return {event->event, event->status};
  }
  void ExpectOutcome(const Program& program, rdma_cm_event_type type, int status) {
    const Outcome outcome = NextOf(program);
    ASSERT_TRUE(outcome.event.has_value());
    EXPECT_EQ(*outcome.event, static_cast<uint32_t>(type));
    EXPECT_EQ(outcome.status, status);
    ExpectNothingIsLeft();
  }
  Pair pair_;
};

TEST_F(CmLifecycle, TheClientGoesBeforeAnAnswer) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  Close(pair_.client);
  Rest();
  // Whom the server has not accepted it hears nothing of; accepting tells it.
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.server));
  EXPECT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), EINVAL);
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheClientGoesBeforeItsRequestIsTaken) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, pair_.active, At("10.0.0.2", 7)));
  ASSERT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11)), 0);
  Settle();
  Close(pair_.client);
  Rest();
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));
  EXPECT_EQ(Accept(pair_.server, last_.id, ParamOf(0x22)), EINVAL);
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, ADaemonThatEndsTellsPeersOnOtherHostsUntilTheyAnswer) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  EXPECT_FALSE(hosts_[0]->AwaitsPeers());
  faults_.loss = 1;
  Close(pair_.client);
  faults_.loss = 0;
  EXPECT_TRUE(hosts_[0]->AwaitsPeers());
  const Instant start = now_;
  hosts_[0]->PrepareEnd(now_);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_LT((now_ - start).ns, Milliseconds(200).ns);
  EXPECT_TRUE(hosts_[0]->AwaitsPeers());
  ASSERT_EQ(Do(pair_.server, CmOp::kDisconnect, pair_.passive), 0);
  Settle();
  EXPECT_FALSE(hosts_[0]->AwaitsPeers());
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheClientGoesBeforeTheRtu) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  Close(pair_.client);
  ExpectOutcome(pair_.server, RDMA_CM_EVENT_REJECTED, 28);
}

TEST_F(CmLifecycle, TheClientGoesWhileTheRepIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  Close(pair_.client);
  ExpectOutcome(pair_.server, RDMA_CM_EVENT_REJECTED, 4);
}

TEST_F(CmLifecycle, TheClientGoesWhileItsRtuIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  ASSERT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), 0);
  Close(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_ESTABLISHED));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_EQ(Do(pair_.server, CmOp::kDisconnect, pair_.passive), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheClientGoesWhenConnected) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  Close(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
  Close(pair_.server);
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheServerGoesBeforeItHasTakenTheRequest) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, pair_.active, At("10.0.0.2", 7)));
  ASSERT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11)), 0);
  Settle();
  Close(pair_.server);
  ExpectOutcome(pair_.client, RDMA_CM_EVENT_REJECTED, 28);
}

TEST_F(CmLifecycle, TheServerGoesBeforeItHasAnswered) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  Close(pair_.server);
  ExpectOutcome(pair_.client, RDMA_CM_EVENT_REJECTED, 28);
}

TEST_F(CmLifecycle, TheServerGoesAfterItHasAccepted) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  Close(pair_.server);
  Settle();
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
  EXPECT_EQ(Do(pair_.client, CmOp::kEstablish, pair_.active), EINVAL);
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheServerGoesWhileTheClientDisconnects) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  Close(pair_.server);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  ExpectNothingIsLeft();
}

TEST_F(CmLifecycle, TheServersHostBeginsAnew) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  Start(1, 99);
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_TIMEWAIT_EXIT));
  ExpectNothingIsLeft();
}

// --- identifiers and channels --------------------------------------------------------------------

TEST_F(CmLifecycle, WaitingEventsGoWithTheirIdentifier) {
  const Program program = StartProgram(0);
  const shm::CmHandle first = NewId(program, RDMA_PS_TCP, 1),
                      second = NewId(program, RDMA_PS_TCP, 2);
  for (shm::CmHandle id : {first, second}) {
    ASSERT_EQ(ResolveAddress(program, id, At("10.0.0.2", 7)), 0);
  }
  EXPECT_EQ(Destroy(program, first), 0u) << "none was taken";
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_RESOLVED));
  EXPECT_EQ(last_.cookie, 2u);
  EXPECT_EQ(last_.id, second);
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(program));
  EXPECT_EQ(Destroy(program, second), 1u);
}

TEST_F(CmLifecycle, ADestroyedListenerTurnsAwayWhoWaits) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  pair_.listener = NewListener(pair_.server, At("0.0.0.0", 7));
  pair_.active = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, pair_.active, At("10.0.0.2", 7)));
  ASSERT_EQ(Connect(pair_.client, pair_.active, ParamOf(0x11)), 0);
  Settle();
  EXPECT_EQ(CountersOf(1).ids, 2u);
  Destroy(pair_.server, pair_.listener);
  EXPECT_EQ(CountersOf(1).ids, 0u);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
  ExpectNothingIsLeft();
  NewListener(pair_.server, At("0.0.0.0", 7));
}

TEST_F(CmLifecycle, WaitingEventsMoveAlong) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  pair_.listener = NewListener(pair_.server, At("0.0.0.0", 7));
  for (uint32_t i = 0; i < 3; ++i) {
    const shm::CmHandle id = NewId(pair_.client);
    ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.2", 7)));
    ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x11 + i)), 0);
  }
  Settle();
  const shm::CmHandle other = NewId(pair_.server);
  ASSERT_EQ(ResolveAddress(pair_.server, other, At("10.0.0.1", 7)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));

  Program elsewhere = pair_.server;
  elsewhere.channel = Ask(pair_.server, CmOp::kCreateChannel).handle;
  shm::CmRequest request = RequestOf(CmOp::kMigrateId, pair_.listener);
  request.migrate.channel = elsewhere.channel;
  shm::CmReply reply = Ask(pair_.server, request);
  ASSERT_EQ(reply.error, 0);
  EXPECT_EQ(reply.number, 1u) << "was taken";
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_ADDR_RESOLVED));
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.server));
  ASSERT_NO_FATAL_FAILURE(Expect(elsewhere, RDMA_CM_EVENT_CONNECT_REQUEST));
  EXPECT_EQ(last_.param.qp_num, 0x12u) << "in their order";
  // Its connections are told of there, too.
  const shm::CmHandle passive = last_.id;
  ASSERT_NO_FATAL_FAILURE(Expect(elsewhere, RDMA_CM_EVENT_CONNECT_REQUEST));
  ASSERT_EQ(Accept(pair_.server, passive, ParamOf(0x22)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_RESPONSE));
  Close(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Expect(elsewhere, RDMA_CM_EVENT_REJECTED, 28));
  request.migrate.channel = 12345;
  EXPECT_EQ(Ask(pair_.server, request).error, ENOENT);
}

TEST_F(CmLifecycle, AProgramMayWriteEvents) {
  const Program program = StartProgram(0);
  const shm::CmHandle id = NewId(program);
  ASSERT_EQ(ResolveAddress(program, id, At("10.0.0.2", 7)), 0);
  shm::CmRequest request = RequestOf(CmOp::kWriteEvent, id);
  request.user = {shm::kCmEventUser, -5, 0x1122'3344'5566'7788};
  ASSERT_EQ(Ask(program, request).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_RESOLVED));
  ASSERT_NO_FATAL_FAILURE(Expect(program, shm::kCmEventUser, -5));
  EXPECT_EQ(last_.arg, 0x1122'3344'5566'7788u);
  EXPECT_EQ(last_.cookie, 0xc00c1eu);
  request.user.event = RDMA_CM_EVENT_ESTABLISHED;
  EXPECT_EQ(Ask(program, request).error, EINVAL) << "not the program's to say";
}

TEST_F(CmLifecycle, WithoutAChannelNobodyIsTold) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  const shm::CmHandle id = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.2", 7174)));
  ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x12)), 0);
  Settle();
  ASSERT_EQ(Do(pair_.server, CmOp::kDestroyChannel, pair_.server.channel), 0);
  EXPECT_EQ(Do(pair_.server, CmOp::kDestroyChannel, pair_.server.channel), ENOENT);
  EXPECT_EQ(Do(pair_.server, CmOp::kGetEvent, pair_.server.channel), ENOENT);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
  const shm::CmHandle other = NewId(pair_.client);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, other, At("10.0.0.2", 7174)));
  ASSERT_EQ(Connect(pair_.client, other, ParamOf(0x13)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
  EXPECT_EQ(CountersOf(1).events_waiting, 0u);
  // The connection stands, and may be given another channel.
  pair_.server.channel = Ask(pair_.server, CmOp::kCreateChannel).handle;
  shm::CmRequest request = RequestOf(CmOp::kMigrateId, pair_.passive);
  request.migrate.channel = pair_.server.channel;
  ASSERT_EQ(Ask(pair_.server, request).error, 0);
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
}

TEST_F(CmLifecycle, ANicThatGoesTakesItsConnectionsAlong) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  const shm::CmHandle idle = NewId(pair_.client), there = NewId(pair_.client);
  ASSERT_EQ(Bind(pair_.client, there, At("127.0.0.1")), 0);
  std::vector<CmNic> nics = NicsOf(0);
  nics.erase(nics.begin());
  hosts_[0]->SetNics(now_, nics);
  Drain(0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_DEVICE_REMOVAL));
  EXPECT_EQ(last_.id, pair_.active);
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.client));
  EXPECT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), EINVAL);
  EXPECT_EQ(Bind(pair_.client, idle, At("10.0.0.1")), EADDRNOTAVAIL);
  EXPECT_EQ(Destroy(pair_.client, pair_.active), 4u);
  // Listeners on all NICs serve one that comes.
  NewListener(pair_.client, At("0.0.0.0", 55));
  hosts_[0]->SetNics(now_, NicsOf(0));
  const shm::CmHandle back = NewId(pair_.server);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.server, back, At("10.0.0.1", 55)));
  ASSERT_EQ(Connect(pair_.server, back, ParamOf(0x99)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_CONNECT_REQUEST));
}

// As on Linux where a bond fails over: whoever has an address of the NIC is told, each time.
TEST_F(CmLifecycle, AnAddressThatMovesIsToldOf) {
  constexpr CmHardwareAddress kFirst = {2, 0, 0, 0, 0, 1}, kSecond = {2, 0, 0, 0, 0, 2};
  auto look = [&](const CmHardwareAddress& ipv4, const CmHardwareAddress& ipv6) {
    std::vector<CmNic> nics = NicsOf(0);
    nics[0].hardware = {{}, ipv4, ipv6};
    hosts_[0]->SetNics(now_, nics);
    Drain(0);
  };
  look(kFirst, kFirst);
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  const Program other = StartProgram(0);
  const shm::CmHandle bound = NewId(other), anywhere = NewId(other), elsewhere = NewId(other);
  ASSERT_EQ(Bind(other, bound, At("10.0.0.1")), 0);
  ASSERT_EQ(Bind(other, anywhere, At("0.0.0.0", 56)), 0);
  ASSERT_EQ(Bind(other, elsewhere, At(Ip6Of(0).c_str())), 0);
  look(kSecond, kFirst);
  for (const auto& [program, id] : {std::pair(pair_.client, pair_.active), {other, bound}}) {
    ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_CHANGE));
    EXPECT_EQ(last_.id, id);
    ASSERT_NO_FATAL_FAILURE(ExpectSilence(program));
  }
  look({}, kFirst);  // for now nobody has it
  look(kSecond, kFirst);
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(other));
  look(kFirst, kFirst);
  ASSERT_NO_FATAL_FAILURE(Expect(other, RDMA_CM_EVENT_ADDR_CHANGE));
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ADDR_CHANGE));
  // A hint, and nothing else.
  ASSERT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_DISCONNECTED));
}

TEST_F(CmLifecycle, WhatIsShown) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  const std::vector<CmService::SessionRow> rows = hosts_[1]->Show();
  ASSERT_EQ(rows.size(), 2u);
  auto text = [&](int row) {
    std::string text;
    for (const auto& [name, value] : rows[row].row.fields) text += name + "=" + value + " ";
    return text;
  };
  EXPECT_NE(text(0).find("port_space=TCP qp_type=RC state=listen cm_state=- source=0.0.0.0:7174"),
            std::string::npos)
      << text(0);
  EXPECT_NE(text(1).find("nic=verbena0 port_space=TCP qp_type=RC state=connect "
                         "cm_state=established source=10.0.0.2:7174 destination=10.0.0.1:"),
            std::string::npos)
      << text(1);
  EXPECT_NE(text(1).find("qpn=0x000022 remote_qpn=0x000011"), std::string::npos) << text(1);
}

// --- hostile programs ----------------------------------------------------------------------------

TEST_F(CmLifecycle, ASessionReachesItsOwnHandlesAlone) {
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&pair_));
  const Program stranger = StartProgram(1);
  for (uint32_t op = 2; op <= 22; ++op) {
    for (shm::CmHandle handle : {pair_.passive, pair_.listener, 0u, 0xffff'ffffu}) {
      if (handle == stranger.channel) continue;
      const shm::CmReply reply = Ask(stranger, static_cast<CmOp>(op), handle);
      if (op == static_cast<uint32_t>(CmOp::kCreateId)) continue;
      EXPECT_EQ(reply.error, ENOENT) << op;
    }
  }
  shm::CmRequest request = RequestOf(CmOp::kCreateId, 0);
  request.create.channel = pair_.passive;
  EXPECT_EQ(Ask(stranger, request).error, ENOENT);
  shm::CmReply reply;
  hosts_[1]->OnRequest(now_, 4711, request, &reply);
  EXPECT_EQ(reply.error, ENOENT) << "no session";
  EXPECT_EQ(Ask(stranger, static_cast<CmOp>(0)).error, ENOENT);
  EXPECT_EQ(Ask(pair_.server, static_cast<CmOp>(99), pair_.passive).error, EINVAL);
}

TEST_F(CmLifecycle, AGuessedConnectionMayBeDestroyedBeforeItsRequestIsTaken) {
  pair_.client = StartProgram(0);
  pair_.server = StartProgram(1);
  pair_.listener = NewListener(pair_.server, At("0.0.0.0", 7), RDMA_PS_TCP, 1);
  for (uint32_t i = 0; i < 3; ++i) {
    const shm::CmHandle id = NewId(pair_.client);
    ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.2", 7)));
    ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x11 + i)), 0);
    Settle();
    EXPECT_EQ(Destroy(pair_.server, pair_.listener + 1 + i), 0u);
    ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_REJECTED, 28));
    ASSERT_NO_FATAL_FAILURE(ExpectSilence(pair_.server));
  }
  EXPECT_EQ(CountersOf(1).backlog_drops, 0u) << "its place in the backlog is free again";
}

TEST_F(CmLifecycle, LimitsHold) {
  CmServiceConfig config;
  config.channels_per_session_max = 2;
  config.ids_per_session_max = 3;
  config.events_per_session_max = 4;
  config.memberships_per_session_max = 1;
  hosts_[0] = std::make_unique<CmService>(config);
  hosts_[0]->SetNics(now_, NicsOf(0));
  const Program program = StartProgram(0);
  EXPECT_EQ(Ask(program, CmOp::kCreateChannel).error, 0);
  EXPECT_EQ(Ask(program, CmOp::kCreateChannel).error, ENOMEM);
  const shm::CmHandle first = NewId(program, RDMA_PS_UDP), second = NewId(program);
  NewId(program);
  shm::CmRequest request = RequestOf(CmOp::kCreateId, 0);
  request.create = {1, program.channel, RDMA_PS_TCP, 0, 0};
  EXPECT_EQ(Ask(program, request).error, ENOMEM);
  request.create.port_space = 0x123;
  EXPECT_EQ(Ask(program, request).error, EINVAL);
  ASSERT_EQ(Bind(program, first, At("10.0.0.1")), 0);
  ASSERT_EQ(Bind(program, second, At("127.0.0.1")), 0);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(ResolveAddress(program, second, At("10.0.0.7", 1)), 0);
  EXPECT_EQ(ResolveAddress(program, second, At("10.0.0.7", 1)), ENOMEM);
  shm::CmRequest join = RequestOf(CmOp::kJoinMcast, first);
  join.join.address = At("239.1.1.1");
  EXPECT_EQ(Ask(program, join).error, ENOMEM);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH));
  EXPECT_EQ(Ask(program, join).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH));
  EXPECT_EQ(Ask(program, join).error, ENOMEM) << "one membership";
}

// Anything, in any order: nothing breaks, and in the end nothing is left.
TEST_F(CmLifecycle, AnythingMayBeAsked) {
  Program programs[] = {StartProgram(0), StartProgram(0), StartProgram(1)};
  const char* kAddresses[] = {"10.0.0.1", "10.0.0.2",  "127.0.0.1", "127.0.0.2", "0.0.0.0",
                              "::",       "239.1.1.1", "fd00::2",   "10.0.0.9"};
  shm::CmHandle newest[3] = {};
  for (int i = 0; i < 200'000; ++i) {
    const size_t who = random_() % 3;
    Program& program = programs[who];
    shm::CmRequest request{};
    auto* bytes = reinterpret_cast<uint8_t*>(&request);
    if (random_() % 4 == 0) {
      for (size_t at = 0; at < sizeof request; ++at) bytes[at] = static_cast<uint8_t>(random_());
    }
    // What leads somewhere more often than not.
    static constexpr CmOp kForward[] = {CmOp::kCreateId,     CmOp::kListen,   CmOp::kResolveAddr,
                                        CmOp::kResolveRoute, CmOp::kConnect,  CmOp::kGetEvent,
                                        CmOp::kAccept,       CmOp::kEstablish};
    const bool is_forward = random_() % 4 != 0;
    request.op = is_forward ? static_cast<uint32_t>(kForward[random_() % std::size(kForward)])
                            : static_cast<uint32_t>(random_() % 24);
    request.handle = newest[who] - static_cast<uint32_t>(random_() % (is_forward ? 4 : 20));
    request.number = static_cast<uint32_t>(random_() % 8);
    const shm::CmAddress address =
        At(kAddresses[random_() % std::size(kAddresses)], static_cast<uint16_t>(random_() % 3));
    switch (static_cast<CmOp>(request.op)) {
      case CmOp::kCreateId:
        request.create.channel = program.channel;
        request.create.port_space = random_() % 2 == 0 ? RDMA_PS_TCP : RDMA_PS_UDP;
        break;
      case CmOp::kMigrateId:
        request.migrate.channel = program.channel;
        break;
      case CmOp::kBind:
        request.bind.address = address;
        break;
      case CmOp::kResolveAddr:
        request.resolve.source = {};
        request.resolve.destination = address;
        break;
      case CmOp::kJoinMcast:
        request.join.address = address;
        break;
      case CmOp::kDestroyChannel:
      case CmOp::kDestroyId:
        if (random_() % 8 != 0) request.op = static_cast<uint32_t>(CmOp::kGetEvent);
        break;
      default:
        break;
    }
    if (request.op == static_cast<uint32_t>(CmOp::kGetEvent) && random_() % 2 == 0) {
      request.handle = program.channel;
    }
    const shm::CmReply reply = Ask(program, request);
    if (request.op == static_cast<uint32_t>(CmOp::kGetEvent)) {
      if (reply.error == 0) newest[who] = std::max(newest[who], reply.event.id);
    } else {
      newest[who] = std::max(newest[who], reply.handle);
    }
    if (request.op == static_cast<uint32_t>(CmOp::kCreateChannel) && reply.error == 0) {
      program.channel = reply.handle;
    }
    if (i % 16 == 0) Settle();
    if (i % 1'000 == 0) Step();
  }
  for (int host = 0; host < kHosts; ++host) EXPECT_GT(CountersOf(host).mads_received, 100u);
  for (const Program& program : programs) Close(program);
  ExpectNothingIsLeft();
  for (int host = 0; host < kHosts; ++host) {
    const CmCounters counters = CountersOf(host);
    EXPECT_EQ(counters.ids + counters.ids_connected + counters.events_waiting, 0u);
  }
}

}  // namespace
}  // namespace verbena::softnic

// Connections from one engine to another: what they go through, whatever the network does.
#include <errno.h>

#include <map>
#include <string>

#include "transport/cm/engine_fixture.h"

namespace verbena::transport::cm {
namespace {

TEST_F(CmTest, ConnectsAndDisconnects) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  EXPECT_EQ(engines_[0].StateOf(active), State::kEstablished);
  EXPECT_EQ(engines_[1].StateOf(passive), State::kEstablished);
  EXPECT_TRUE(engines_[0].PollTimeout().IsNever());
  ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
  Expect(1, EventKind::kDreqReceived);
  ASSERT_EQ(engines_[1].SendDrep(now_, passive, {}), 0);
  Expect(0, EventKind::kDrepReceived);
  EXPECT_EQ(engines_[0].StateOf(active), State::kTimewait);
  Expect(0, EventKind::kTimewaitExit);
  Expect(1, EventKind::kTimewaitExit);
  EXPECT_EQ(engines_[0].size() + engines_[1].size(), 0u);
  EXPECT_EQ(sent_.size(), 5u) << "REQ, REP, RTU, DREQ, DREP";
}

TEST_F(CmTest, WhatTheUserSaysArrives) {
  Connect();
  Expect(1, EventKind::kReqReceived);
  const Req& req = std::get<Req>(last_.body);
  EXPECT_EQ(req.local_qpn, Qpn{0x11});
  EXPECT_EQ(req.local_ca_guid, 0xau);
  EXPECT_EQ(req.private_data[0], std::byte{0x77});
  EXPECT_EQ(last_.route.local, kThere);
  EXPECT_EQ(last_.route.remote, kHere);
  Rep rep = MakeRep();
  rep.private_data[195] = std::byte{5};
  ASSERT_EQ(engines_[1].SendRep(now_, last_.id, rep), 0);
  Expect(0, EventKind::kRepReceived);
  EXPECT_EQ(std::get<Rep>(last_.body).private_data[195], std::byte{5});
}

TEST_F(CmTest, NobodyListens) {
  engines_[1].EndListening(kService, {});
  const CommId id = Connect();
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kInvalidServiceId);
  EXPECT_EQ(engines_[0].StateOf(id), State::kGone);
}

TEST_F(CmTest, AListenerOfAnotherAddressIsNobody) {
  engines_[1].EndListening(kService, {});
  ASSERT_EQ(engines_[1].Listen(kService, kHere), 0);
  Connect();
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(engines_[1].Listen(kService, kHere), EADDRINUSE);
  ASSERT_EQ(engines_[1].Listen(kService, kThere), 0);
  Connect(0x12);
  Expect(1, EventKind::kReqReceived);
}

TEST_F(CmTest, ARejectionHasItsReasonAndData) {
  CommId passive;
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  PrivateData<148> data{};
  data[147] = std::byte{9};
  ASSERT_EQ(engines_[1].SendRej(now_, passive, RejectReason::kConsumerDefined, data), 0);
  Expect(0, EventKind::kRejected);
  const Rej& rej = std::get<Rej>(last_.body);
  EXPECT_EQ(rej.reason, RejectReason::kConsumerDefined);
  EXPECT_EQ(rej.about, About::kReq);
  EXPECT_EQ(rej.private_data[147], std::byte{9});
  EXPECT_EQ(engines_[0].size() + engines_[1].size(), 0u);
}

TEST_F(CmTest, TheActiveSideRejectsARep) {
  CommId passive, active = Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  ASSERT_EQ(engines_[0].SendRej(now_, active, RejectReason::kNoResources, {}), 0);
  Expect(1, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).about, About::kRep);
  EXPECT_EQ(engines_[1].StateOf(passive), State::kGone);
}

TEST_F(CmTest, NoAnswerIsATimeoutAfterTheRetriesAskedFor) {
  is_cut_ = true;
  Connect();
  Expect(0, EventKind::kReqTimeout);
  EXPECT_EQ(now_.ns, (TimeOf(kResponseTimeout) + TimeOf(14)).ns * (kRetries + 1));
  EXPECT_EQ(engines_[0].counters().retries, kRetries);
  EXPECT_EQ(engines_[0].size(), 0u);
}

TEST_F(CmTest, APassiveSideWithoutAnRtuTimesOut) {
  CommId passive;
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  Expect(1, EventKind::kRepTimeout);
  EXPECT_EQ(engines_[1].StateOf(passive), State::kGone);
  // And tells the other, who may still think that all is well.
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kTimeout);
}

TEST_F(CmTest, AnMraGivesTime) {
  CommId passive;
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendMra(now_, passive, 20), 0);  // 4.3 s
  Expect(0, EventKind::kMraReceived);
  EXPECT_GE(engines_[0].PollTimeout(), now_ + Seconds(4)) << "asks again while the peer is at it";
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
}

TEST_F(CmTest, ARepeatedReqIsOneReq) {
  CommId passive;
  Connect();
  const Instant until = now_ + Milliseconds(300);  // three of them
  while (now_ < until) Step();
  Expect(1, EventKind::kReqReceived, &passive);
  Event none;
  EXPECT_FALSE(engines_[1].PollEvent(&none));
  EXPECT_EQ(engines_[1].size(), 1u);
  EXPECT_GE(engines_[1].counters().duplicates, 2u);
}

TEST_F(CmTest, ALostRtuIsSentAgainWhenTheRepIs) {
  CommId passive, active = Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  ASSERT_EQ(engines_[0].SendRtu(now_, active, {}), 0);
  Collect(0);
  flights_.clear();
  Expect(1, EventKind::kEstablished);
  EXPECT_EQ(engines_[1].counters().retries, 1u);
}

TEST_F(CmTest, ALostRtuToAPeerThatWaitsIsSentAgainUnasked) {
  CommId passive, active = Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  ASSERT_EQ(engines_[0].PrepareMra(active, 24), 0);  // 69 s
  Expect(1, EventKind::kMraReceived);
  const Instant begin = now_;
  ASSERT_EQ(engines_[0].SendRtu(now_, active, {}), 0);
  Collect(0);
  flights_.clear();  // it is lost
  Expect(1, EventKind::kEstablished);
  EXPECT_LT((now_ - begin).ns, Seconds(1).ns);
  // Not for ever.
  Rest();
  EXPECT_EQ(engines_[0].counters().retries, 3u);
  EXPECT_EQ(engines_[0].StateOf(active), State::kEstablished);
  EXPECT_EQ(engines_[1].StateOf(passive), State::kEstablished);
}

TEST_F(CmTest, DataBeforeTheRtuEstablishes) {
  CommId passive, active = Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  ASSERT_EQ(engines_[1].Establish(now_, passive), 0);
  Expect(1, EventKind::kEstablished);
  ASSERT_EQ(engines_[0].SendRtu(now_, active, {}), 0);
  Rest();
  Event none;
  EXPECT_FALSE(engines_[1].PollEvent(&none)) << "told twice";
}

TEST_F(CmTest, BothDisconnectAtOnce) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
  ASSERT_EQ(engines_[1].SendDreq(now_, passive, {}), 0);
  Expect(0, EventKind::kDreqReceived);
  Expect(1, EventKind::kDreqReceived);
  ASSERT_EQ(engines_[0].SendDrep(now_, active, {}), 0);
  ASSERT_EQ(engines_[1].SendDrep(now_, passive, {}), 0);
  Expect(0, EventKind::kTimewaitExit);
  Expect(1, EventKind::kTimewaitExit);
}

TEST_F(CmTest, APeerThatIsGoneDoesNotHoldUpADisconnect) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  is_cut_ = true;
  ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
  Expect(0, EventKind::kDreqTimeout);
  Expect(0, EventKind::kTimewaitExit);
  EXPECT_EQ(engines_[0].size(), 0u);
}

TEST_F(CmTest, ADreqOfWhatIsGoneIsAnswered) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  // The passive host began anew.
  engines_[1].~Engine();
  new (&engines_[1]) Engine({.ca_guid = 0xb, .first_comm_id = 9000, .communications_max = 64});
  ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
  Expect(0, EventKind::kDrepReceived);
}

TEST_F(CmTest, AQpThatConnectsAnewEndsItsOldConnection) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  // The active host began anew and has the same QP number again.
  engines_[0].~Engine();
  new (&engines_[0]) Engine({.ca_guid = 0xa, .first_comm_id = 9000, .communications_max = 64});
  Connect();
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kStaleConnection);
  // The DREQ for the old one is answered by a host that knows nothing of it.
  Expect(1, EventKind::kDrepReceived, &passive);
  Expect(1, EventKind::kTimewaitExit);
  Connect();
  Expect(1, EventKind::kReqReceived);
}

// When its QP may be used again is for the side that has it to say.
TEST_F(CmTest, AQpMayConnectAnewOnceItsConnectionIsOver) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
  Expect(1, EventKind::kDreqReceived);
  ASSERT_EQ(engines_[1].SendDrep(now_, passive, {}), 0);
  Expect(0, EventKind::kDrepReceived);
  ASSERT_EQ(engines_[1].StateOf(passive), State::kTimewait);
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  // The end of the old one's timewait leaves the new one alone.
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep(0x23)), 0);
  Expect(0, EventKind::kRepReceived);
  Expect(0, EventKind::kTimewaitExit);
  Connect();
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kStaleConnection);
}

TEST_F(CmTest, AnMraIsPreparedForThoseWhoAskAgain) {
  CommId passive;
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].PrepareMra(passive, 20), 0);
  Expect(0, EventKind::kMraReceived);
  EXPECT_EQ(engines_[0].counters().retries, 1u);
  EXPECT_EQ(engines_[1].PrepareMra(CommId{1}, 20), EINVAL);
}

TEST_F(CmTest, AForgottenReqComesAgainAsNew) {
  CommId passive;
  Connect();
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].Forget(passive), 0);
  EXPECT_EQ(engines_[1].size(), 0u);
  EXPECT_EQ(engines_[1].Forget(passive), EINVAL);
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  EXPECT_EQ(engines_[1].Forget(passive), EINVAL);
  Expect(0, EventKind::kRepReceived);
}

TEST_F(CmTest, WhoeverIsAbandonedTellsItsPeer) {
  // Each state in which a user may go.
  CommId active = Connect(), passive;
  Expect(1, EventKind::kReqReceived, &passive);
  engines_[0].Abandon(now_, active);
  Expect(1, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kTimeout);

  Connect(0x12);
  Expect(1, EventKind::kReqReceived, &passive);
  engines_[1].Abandon(now_, passive);
  Expect(0, EventKind::kRejected);
  EXPECT_EQ(std::get<Rej>(last_.body).reason, RejectReason::kConsumerDefined);

  active = Connect(0x13);
  Expect(1, EventKind::kReqReceived, &passive);
  ASSERT_EQ(engines_[1].SendRep(now_, passive, MakeRep()), 0);
  Expect(0, EventKind::kRepReceived);
  engines_[0].Abandon(now_, active);
  Expect(1, EventKind::kRejected);

  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive, 0x14));
  engines_[0].Abandon(now_, active);
  Expect(1, EventKind::kDreqReceived);
  engines_[1].Abandon(now_, passive);
  Rest();
  Event none;
  EXPECT_FALSE(engines_[0].PollEvent(&none));
  EXPECT_FALSE(engines_[1].PollEvent(&none));
  EXPECT_EQ(engines_[0].size() + engines_[1].size(), 0u) << "something is left behind";
}

TEST_F(CmTest, WhatIsAskedOutOfTurnIsRefused) {
  CommId active, passive;
  EXPECT_EQ(engines_[0].SendRtu(now_, CommId{1}, {}), EINVAL);
  active = Connect();
  EXPECT_EQ(engines_[0].SendRtu(now_, active, {}), EINVAL);
  EXPECT_EQ(engines_[0].SendRep(now_, active, MakeRep()), EINVAL);
  EXPECT_EQ(engines_[0].SendDreq(now_, active, {}), EINVAL);
  EXPECT_EQ(engines_[0].SendMra(now_, active, 1), EINVAL);
  EXPECT_EQ(engines_[0].Establish(now_, active), EINVAL);
  Expect(1, EventKind::kReqReceived, &passive);
  EXPECT_EQ(engines_[1].SendDrep(now_, passive, {}), EINVAL);
  EXPECT_EQ(engines_[1].SendSidrRep(now_, passive, {}), EINVAL);
}

TEST_F(CmTest, TooManyAreRefused) {
  for (uint32_t i = 0; i < 64; ++i) Connect(0x100 + i);
  CommId id;
  EXPECT_EQ(engines_[0].SendReq(now_, {kHere, kThere}, MakeReq(), &id), ENOMEM);
  for (int i = 0; i < 64; ++i) Expect(1, EventKind::kReqReceived);
  const Mad mad = Encode({1, [&] {
                            Req req = MakeReq(0x999);
                            req.local_comm_id = CommId{0x999};
                            return req;
                          }()});
  engines_[1].OnMad(now_, {kThere, kHere}, mad.data(), mad.size());
  OutMad out;
  std::optional<Rej> refusal;
  while (engines_[1].PollMad(&out)) {
    Message message;
    if (Decode(out.mad.data(), out.mad.size(), &message) != DecodeError::kNone) continue;
    if (auto* rej = std::get_if<Rej>(&message.body)) refusal = *rej;
  }
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RejectReason::kNoResources);
}

TEST_F(CmTest, AnotherHostsMessageIsNobodys) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  const Mad mad = Encode({1, Dreq{CommId{1}, passive, Qpn{0x1011}, {}}});
  engines_[1].OnMad(now_, {kThere, Gid::FromIpv4(0x0a000003)}, mad.data(), mad.size());
  EXPECT_EQ(engines_[1].StateOf(passive), State::kEstablished);
  const Mad other_qp = Encode({1, Dreq{active, passive, Qpn{0x5555}, {}}});
  engines_[1].OnMad(now_, {kThere, kHere}, other_qp.data(), other_qp.size());
  EXPECT_EQ(engines_[1].StateOf(passive), State::kEstablished);
}

TEST_F(CmTest, AlternatePathsAreRefusedPolitely) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  const Mad mad = Encode({7, Lap{.local_comm_id = active, .remote_comm_id = passive}});
  engines_[1].OnMad(now_, {kThere, kHere}, mad.data(), mad.size());
  OutMad out;
  ASSERT_TRUE(engines_[1].PollMad(&out));
  Message message;
  ASSERT_EQ(Decode(out.mad.data(), out.mad.size(), &message), DecodeError::kNone);
  ASSERT_TRUE(std::holds_alternative<Apr>(message.body));
  EXPECT_EQ(std::get<Apr>(message.body).status, AprStatus::kNotSupported);
  EXPECT_EQ(message.transaction_id, 7u);
}

TEST_F(CmTest, AServiceIsLookedUp) {
  SidrReq req;
  req.service_id = kService;
  CommId id, passive;
  ASSERT_EQ(engines_[0].SendSidrReq(now_, {kHere, kThere}, req, kResponseTimeout, 3, &id), 0);
  Expect(1, EventKind::kSidrReqReceived, &passive);
  SidrRep rep;
  rep.qpn = Qpn{0x44};
  rep.qkey = QKey{0x1234567};
  ASSERT_EQ(engines_[1].SendSidrRep(now_, passive, rep), 0);
  Expect(0, EventKind::kSidrRepReceived);
  EXPECT_EQ(std::get<SidrRep>(last_.body).qpn, Qpn{0x44});
  req.service_id = ServiceId{9};
  ASSERT_EQ(engines_[0].SendSidrReq(now_, {kHere, kThere}, req, kResponseTimeout, 3, &id), 0);
  Expect(0, EventKind::kSidrRepReceived);
  EXPECT_EQ(std::get<SidrRep>(last_.body).status, SidrStatus::kServiceIdNotSupported);
  is_cut_ = true;
  ASSERT_EQ(engines_[0].SendSidrReq(now_, {kHere, kThere}, req, kResponseTimeout, 3, &id), 0);
  Expect(0, EventKind::kSidrReqTimeout);
  EXPECT_EQ(engines_[0].size() + engines_[1].size(), 0u);
}

TEST_F(CmTest, AnythingMayComeInAMad) {
  CommId active, passive;
  ASSERT_NO_FATAL_FAILURE(MakeConnection(&active, &passive));
  for (int i = 0; i < 20'000; ++i) {
    Mad mad = Encode({1, Rtu{}});
    for (size_t at = 8; at < mad.size(); ++at) mad[at] = static_cast<std::byte>(random_());
    mad[16] = std::byte{0};
    mad[17] = static_cast<std::byte>(0x0f + random_() % 13);
    // Often one of its communications.
    if (i % 2 == 0) {
      const uint32_t id = 200 + random_() % 4;
      for (int at : {24, 28}) {
        mad[at] = mad[at + 1] = std::byte{0};
        mad[at + 2] = static_cast<std::byte>(id >> 8);
        mad[at + 3] = static_cast<std::byte>(id);
      }
    }
    engines_[1].OnMad(now_, {kThere, kHere}, mad.data(), random_() % 50 == 0 ? 100 : mad.size());
    Event event;
    OutMad out;
    while (engines_[1].PollEvent(&event)) {
    }
    while (engines_[1].PollMad(&out)) {
    }
  }
  EXPECT_LE(engines_[1].size(), 64u);
}

// Whatever the network does: both sides hear of each connection's beginning and end, in an order
// that makes sense, and in the end nothing is left.
TEST_F(CmTest, ABadNetworkChangesNothingButTheTime) {
  int established = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    faults_ = {.loss = 0.25, .duplication = 0.2, .jitter = Milliseconds(30)};
    const CommId active = Connect(0x1000 + seed);
    std::optional<CommId> passive;
    bool is_up[2] = {}, is_over[2] = {};
    auto run = [&] {
      while (Step()) {
        for (int side : {0, 1}) {
          Event event;
          while (engines_[side].PollEvent(&event)) {
            Engine& engine = engines_[side];
            ASSERT_FALSE(is_over[side]) << NameOf(event.kind) << " after the end";
            switch (event.kind) {
              case EventKind::kReqReceived:
                ASSERT_FALSE(passive.has_value()) << "two of one";
                passive = event.id;
                ASSERT_EQ(engine.SendRep(now_, event.id, MakeRep(0x2000 + seed)), 0);
                break;
              case EventKind::kRepReceived:
                ASSERT_EQ(event.id, active);
                ASSERT_EQ(engine.SendRtu(now_, event.id, {}), 0);
                is_up[0] = true;
                if (seed % 2 == 0) {
                  ASSERT_EQ(engine.SendDreq(now_, event.id, {}), 0);
                }
                break;
              case EventKind::kEstablished:
                is_up[1] = true;
                if (seed % 2 == 1) {
                  ASSERT_EQ(engine.SendDreq(now_, event.id, {}), 0);
                }
                break;
              case EventKind::kDreqReceived:
                ASSERT_EQ(engine.SendDrep(now_, event.id, {}), 0);
                break;
              case EventKind::kDrepReceived:
              case EventKind::kDreqTimeout:
                break;
              case EventKind::kTimewaitExit:
              case EventKind::kReqTimeout:
              case EventKind::kRepTimeout:
              case EventKind::kRejected:
                is_over[side] = engine.StateOf(event.id) == State::kGone;
                break;
              default:
                FAIL() << NameOf(event.kind);
            }
          }
        }
      }
    };
    run();
    if (engines_[0].StateOf(active) == State::kEstablished) {
      // The passive side gave up, and its REJ was lost: only the user can find out.
      ASSERT_EQ(engines_[0].SendDreq(now_, active, {}), 0);
      run();
    }
    if (HasFatalFailure()) return;
    ASSERT_EQ(engines_[0].size() + engines_[1].size(), 0u) << "something is left behind";
    established += is_up[0];
  }
  EXPECT_GT(established, 280) << "of 300, with five retries each";
}

}  // namespace
}  // namespace verbena::transport::cm

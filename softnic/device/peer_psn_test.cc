// How a connection ends whose last packets were lost: what a QP tells of its sends, and what it is
// told of them by other means than an ACK.
#include <gtest/gtest.h>

#include <vector>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kMessageBytes = 2'048;  // two packets

class PeerPsn : public Wire {
 protected:
  void SetUp() override {
    Connect(Service::kRc);
    ports[1].filter = [this](Datagram&) { return !answers_are_lost; };
  }
  void Send(int messages) {
    for (int i = 0; i < messages; ++i) {
      bob.PostRecv(qp_b, 1, {SgeOf(to.data(), kMessageBytes, mr_b.lkey)});
      alice.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 10 + sent++),
                 {SgeOf(from.data(), kMessageBytes, mr_a.lkey)});
    }
    Settle();
  }
  static shm::QueryQpReply Query(TestClient& client, const TestQp& qp) {
    shm::QueryQpReply reply{};
    EXPECT_EQ(client.Execute(shm::CommandOp::kQueryQp, shm::HandleRequest{qp.handle, 0}, &reply),
              0);
    return reply;
  }
  // What bob's side has carried out by the time that it ends.
  uint32_t EndOfBob() {
    EXPECT_EQ(bob.ToError(qp_b), 0);
    return Query(bob, qp_b).attr.rq_psn;
  }
  int FailAlice(uint32_t peer_psn) {
    return ModifyAlice(peer_psn, QpState::kErr, shm::qp_mask::kState);
  }
  int ModifyAlice(uint32_t peer_psn, QpState state, uint32_t mask) {
    shm::ModifyQpRequest request{qp_a.handle, mask, {}};
    request.attr.qp_state = static_cast<uint32_t>(state);
    request.has_peer_psn = 1;
    request.peer_psn = peer_psn;
    shm::ModifyQpReply reply{};
    const int error = alice.Execute(shm::CommandOp::kModifyQp, request, &reply);
    Settle();
    return error;
  }
  std::vector<WcStatus> Told() {
    std::vector<WcStatus> statuses;
    for (const Wc& wc : alice.PollAll(cq_a)) statuses.push_back(wc.status);
    return statuses;
  }

  static constexpr WcStatus kDone = WcStatus::kSuccess, kFlushed = WcStatus::kWrFlushErr;
  bool answers_are_lost = true;
  int sent = 0;
};

TEST_P(PeerPsn, MakesUpForLostAcknowledgements) {
  Send(3);
  ASSERT_TRUE(Told().empty());
  ASSERT_EQ(FailAlice(EndOfBob()), 0);
  EXPECT_EQ(Told(), (std::vector{kDone, kDone, kDone}));
}

TEST_P(PeerPsn, WhatDidNotArriveWholeIsFlushed) {
  int packets = 0;
  ports[0].filter = [&packets](Datagram&) { return ++packets < 4; };  // the second message's last
  Send(3);
  ASSERT_EQ(FailAlice(EndOfBob()), 0);
  EXPECT_EQ(Told(), (std::vector{kDone, kFlushed, kFlushed}));
}

// Bytes that are on their way into memory when the QP fails are nobody's receive.
TEST_P(PeerPsn, WhatWasBeingPlacedIsNotCarriedOut) {
  Send(1);
  b->dma.is_held = true;
  Send(1);
  ASSERT_EQ(bob.ToError(qp_b), 0);
  b->dma.is_held = false;
  Settle();
  ASSERT_EQ(FailAlice(Query(bob, qp_b).attr.rq_psn), 0);
  EXPECT_EQ(Told(), (std::vector{kDone, kFlushed}));
  const std::vector<Wc> received = bob.PollAll(cq_b);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0].status, kDone);
  EXPECT_EQ(received[1].status, kFlushed);
}

TEST_P(PeerPsn, AReadWithoutItsResponseFails) {
  Send(1);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaRead), {SgeOf(from.data(), kMessageBytes, mr_a.lkey)});
  Send(1);
  ASSERT_EQ(FailAlice(EndOfBob()), 0);
  EXPECT_EQ(Told(), (std::vector{kDone, kFlushed, kFlushed}));
}

TEST_P(PeerPsn, ALieCompletesNothing) {
  const uint32_t first = Query(bob, qp_b).attr.rq_psn;
  for (const uint32_t lie : {first, first + 3, first + 1'000, first - 1, first + 0x80'0000}) {
    Send(1);
    ASSERT_EQ(FailAlice(lie & 0xff'ffff), 0);
    EXPECT_EQ(Told(), std::vector{kFlushed}) << lie - first;
    Settle();
    SetUp();
  }
}

TEST_P(PeerPsn, OfAQpThatIsNotConnectedSaysNothing) {
  qp_a = alice.MustCreateQp(Service::kRc, cq_a);
  ASSERT_EQ(FailAlice(5), 0);
  EXPECT_TRUE(Told().empty());
  Connect(Service::kUc);
  EXPECT_EQ(FailAlice(5), EINVAL);
  EXPECT_EQ(alice.StateOf(qp_a), QpState::kRts) << "and nothing is changed";
}

TEST_P(PeerPsn, IsOfAnEndAndOfNothingElse) {
  Send(1);
  const uint32_t next = Query(bob, qp_b).attr.rq_psn;
  constexpr uint32_t kState = shm::qp_mask::kState;
  EXPECT_EQ(ModifyAlice(next, QpState::kSqd, kState), EINVAL);
  EXPECT_EQ(ModifyAlice(next, QpState::kErr, kState | shm::qp_mask::kQkey), EINVAL);
  EXPECT_EQ(ModifyAlice(next, QpState::kErr, 0), EINVAL);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 1);
  ASSERT_EQ(FailAlice(next), 0);
  EXPECT_EQ(Told(), std::vector{kDone});
}

TEST_P(PeerPsn, AQueryTellsHowFarSendsHaveCome) {
  answers_are_lost = false;
  const uint32_t first = Query(alice, qp_a).unacked_psn;
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 0);
  Send(2);
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 0);
  EXPECT_EQ(Query(alice, qp_a).unacked_psn, first + 4);
  answers_are_lost = true;
  Send(1);
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 1);
  EXPECT_EQ(Query(alice, qp_a).awaits_receive, 0);
  EXPECT_EQ(Query(alice, qp_a).unacked_psn, first + 4);
  ASSERT_EQ(FailAlice(EndOfBob()), 0);
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 0);
}

TEST_P(PeerPsn, AQueryTellsOfAPeerWithoutAReceive) {
  answers_are_lost = false;
  alice.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(from.data(), 8, mr_a.lkey)});
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 1) << "posted, and not looked at yet";
  Settle();
  EXPECT_EQ(Query(alice, qp_a).awaits_receive, 1);
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 1);
  bob.PostRecv(qp_b, 1, {SgeOf(to.data(), 8, mr_b.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), kDone);
  EXPECT_EQ(Query(alice, qp_a).awaits_receive, 0);
  EXPECT_EQ(Query(alice, qp_a).has_unfinished, 0);
}

INSTANTIATE_TEST_SUITE_P(Ports, PeerPsn, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing

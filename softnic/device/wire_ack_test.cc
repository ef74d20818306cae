// Acknowledgements that wait for the answer.
#include <gtest/gtest.h>

#include <vector>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

// What leaves host 1, by opcode, while both clients write eight bytes in turn.
class PingPong : public Wire {
 protected:
  void SetUp() override {
    Connect(Service::kRc);
    ports[1].filter = [this](Datagram& datagram) {
      sent.push_back(static_cast<transport::Opcode>(datagram.bytes[0]));
      return true;
    };
  }
  void Ask() {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 8, mr_a.lkey)});
    Settle();
  }
  void PostAnswer() {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 8);
    wqe.remote_addr = reinterpret_cast<uint64_t>(from.data()) + 64;
    wqe.rkey = mr_a.rkey;
    bob.Post(qp_b, wqe, {SgeOf(to.data(), 8, mr_b.lkey)});
  }
  void Answer() {
    PostAnswer();
    Settle();
  }
  void EarnTrust() {
    for (uint32_t i = 0; i < AckHold::kAnswersToTrust; ++i) {
      Ask();
      Answer();
    }
    EXPECT_EQ(alice.PollAll(cq_a).size(), AckHold::kAnswersToTrust);
    sent.clear();
  }

  std::vector<transport::Opcode> sent;
  const std::vector<transport::Opcode> kAckThenWrite = {transport::Opcode::kAcknowledge,
                                                        transport::Opcode::kWriteOnly};
  const std::vector<transport::Opcode> kWriteThenAck = {transport::Opcode::kWriteOnly,
                                                        transport::Opcode::kAcknowledge};
};

TEST_P(PingPong, AnAcknowledgementWaitsForTheAnswer) {
  Ask();
  EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
  Answer();
  EXPECT_EQ(sent, kAckThenWrite);
  EarnTrust();
  for (int i = 0; i < 3; ++i) {
    sent.clear();
    Ask();
    EXPECT_TRUE(sent.empty());
    EXPECT_TRUE(alice.PollAll(cq_a).empty());
    Answer();
    EXPECT_EQ(sent, kWriteThenAck);
    EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
  }
}

TEST_P(PingPong, WithoutAnAnswerItLeavesInTimeAndTheNextOneAtOnce) {
  EarnTrust();
  Ask();
  EXPECT_TRUE(sent.empty());
  const Instant due = b->device->PollTimeout();
  EXPECT_EQ(due, b->now + AckHold::kWait);
  b->now = due;
  b->device->Run(b->now, 64);
  EXPECT_EQ(b->device->PollTimeout(), b->now + AckHold::kWait) << "from its next turn on";
  b->now = b->now + AckHold::kWait;
  b->device->OnTimeout(b->now);
  Settle();
  EXPECT_EQ(sent, std::vector{transport::Opcode::kAcknowledge});
  EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
  Ask();
  EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
}

// A turn that takes packets in may take as long as the wait, on a slow machine.
TEST_P(PingPong, TheWaitBeginsWithTheTurnInWhichAnAnswerCanCome) {
  EarnTrust();
  Ask();
  b->now = b->now + Microseconds(20);
  b->device->OnTimeout(b->now);  // as the daemon does at the beginning of a turn
  b->device->Run(b->now, 64);
  EXPECT_EQ(b->device->PollTimeout(), b->now + AckHold::kWait);
  b->now = b->now + Nanoseconds(AckHold::kWait.ns - 1);
  b->device->OnTimeout(b->now);
  EXPECT_TRUE(sent.empty());
  Answer();
  EXPECT_EQ(sent, kWriteThenAck);
  sent.clear();
  Ask();
  EXPECT_TRUE(sent.empty()) << "that was an answer";
}

TEST_P(PingPong, ATurnIsOneHoweverLateItsPacketsCome) {
  a->dma.moves_now = b->dma.moves_now = true;
  EarnTrust();
  ports[1].receive_takes = Microseconds(10);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 8, mr_a.lkey)});
  a->Settle();
  a->device->FlushPorts(a->now);
  Datagram runt = ports[1].inbox.back();
  runt.address.source = GidOf(7);  // no part of the batch
  runt.bytes.resize(20);
  ports[1].inbox.push_back(runt);
  b->device->PollPorts(b->now, 16);
  b->device->Run(b->now, 64);
  EXPECT_EQ(CountersOf(1).rx_malformed, 1u);
  EXPECT_EQ(b->device->PollTimeout(), b->now + Microseconds(10) + AckHold::kWait);
  b->now = b->now + Microseconds(30);
  b->device->Run(b->now, 64);
  EXPECT_EQ(b->device->PollTimeout(), b->now + AckHold::kWait) << "only now an answer can come";
}

// On a slow machine a turn that sends an acknowledgement takes longer than an answer may.
TEST_P(PingPong, AnAnswerInTheNextTurnIsSoonHoweverLongTurnsAre) {
  auto take_turns = [this](int turns) {
    for (int i = 0; i < turns; ++i) {
      b->now = b->now + AckHold::kSoon * 3;
      b->device->Run(b->now, 64);
    }
  };
  for (uint32_t i = 0; i < AckHold::kAnswersToTrust; ++i) {
    take_turns(1);
    Ask();
    b->now = b->now + AckHold::kSoon * 3;
    Answer();
  }
  sent.clear();
  take_turns(1);
  Ask();
  EXPECT_TRUE(sent.empty()) << "they were answers";
  Answer();
  // Later ones are not.
  for (uint32_t i = 0; i < AckHold::kAnswersToTrust; ++i) {
    take_turns(1);
    Ask();
    take_turns(2);
    b->device->OnTimeout(b->now);
    Answer();
  }
  sent.clear();
  take_turns(1);
  Ask();
  EXPECT_EQ(sent, std::vector{transport::Opcode::kAcknowledge});
}

// What comes behind a message in its batch is no matter for the answer.
TEST_P(PingPong, TheAnswerGoesBeforeTheRestOfTheBatch) {
  a->dma.moves_now = b->dma.moves_now = true;
  EarnTrust();
  EarnTrust();
  bob.PollAll(cq_b);
  to[0] = 0;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 8, mr_a.lkey)});
  a->Settle();
  a->device->FlushPorts(a->now);
  ASSERT_EQ(ports[1].inbox.size(), 2u) << "with it the acknowledgement of the last answer";
  b->device->PollPorts(b->now, 16);
  EXPECT_EQ(to[0], from[0]);
  EXPECT_EQ(bob.PollAll(cq_b).size(), GetParam() ? 0u : 1u);
  PostAnswer();
  b->Settle();
  b->device->FlushPorts(b->now);
  EXPECT_EQ(sent, kWriteThenAck);
  b->device->PollPorts(b->now, 16);
  EXPECT_EQ(bob.PollAll(cq_b).size(), GetParam() ? 1u : 0u);
}

TEST_P(PingPong, AnAnswerOfTheTurnInWhichTheWaitEndsIsInTime) {
  EarnTrust();
  Ask();
  b->device->Run(b->now + Nanoseconds(1), 64);
  b->now = b->now + AckHold::kWait + Nanoseconds(2);
  PostAnswer();  // rung, its turn has not come
  b->device->OnTimeout(b->now);
  EXPECT_TRUE(sent.empty());
  Settle();
  EXPECT_EQ(sent, kWriteThenAck);
  // A NIC that is always busy holds nothing back for longer.
  sent.clear();
  Ask();
  EXPECT_TRUE(sent.empty());
  b->device->Run(b->now + Nanoseconds(1), 64);
  b->now = b->now + AckHold::kWait * 2 + Nanoseconds(1);
  PostAnswer();
  b->device->OnTimeout(b->now);
  b->device->FlushPorts(b->now);
  EXPECT_EQ(sent, std::vector{transport::Opcode::kAcknowledge});
}

TEST_P(PingPong, WhatFollowsTakesTheAcknowledgementAlong) {
  EarnTrust();
  Ask();
  shm::SendWqe wqe = Rdma(shm::WrOpcode::kRdmaRead);
  alice.Post(qp_a, wqe, {SgeOf(from.data(), 8, mr_a.lkey)});
  Settle();
  EXPECT_EQ(sent,
            (std::vector{transport::Opcode::kAcknowledge, transport::Opcode::kReadResponseOnly}));
  EXPECT_EQ(alice.PollAll(cq_a).size(), 2u);
}

// Its client has seen the message, and goes; the peer would repeat it to nobody.
TEST_P(PingPong, AQpThatGoesLeavesItsAcknowledgement) {
  for (bool reset : {true, false}) {
    EarnTrust();
    Ask();
    EXPECT_TRUE(sent.empty());
    if (reset) {
      EXPECT_EQ(bob.ToReset(qp_b), 0);
    } else {
      EXPECT_EQ(bob.DoHandle(shm::CommandOp::kDestroyQp, qp_b.handle), 0);
    }
    Settle();
    EXPECT_EQ(sent, std::vector{transport::Opcode::kAcknowledge});
    EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
    // What it waited for is forgotten.
    for (int i = 0; i < 2; ++i) {
      b->now = b->device->PollTimeout();
      b->device->OnTimeout(b->now);
    }
    EXPECT_EQ(sent.size(), 1u);
    EXPECT_TRUE(b->device->PollTimeout().IsNever());
    if (reset) {
      EXPECT_EQ(alice.ToReset(qp_a), 0);
      Connect(Service::kRc);
    }
  }
}

TEST_P(PingPong, ANicThatFallsAsleepHoldsNothingBack) {
  EarnTrust();
  Ask();
  EXPECT_FALSE(b->device->PreparePortsToSleep());
  EXPECT_TRUE(b->device->PreparePortsToSleep());
  EXPECT_EQ(sent, std::vector{transport::Opcode::kAcknowledge});
  Settle();
  EXPECT_EQ(alice.PollAll(cq_a).size(), 1u);
  Answer();
  sent.clear();
  Ask();
  EXPECT_TRUE(sent.empty()) << "its client was not to blame";
}

TEST(AckHold, EachWaitInVainMakesItHarderToBelieve) {
  AckHold hold;
  Instant now{0};
  // Until it holds one back.
  auto answers_needed = [&] {
    uint32_t answers = 0;
    for (; !hold.OnAck(now) && answers < 100'000; ++answers) {
      now = now + AckHold::kSoon;
      hold.OnRequest(now, Instant::Never());
    }
    return answers;
  };
  EXPECT_EQ(answers_needed(), 8u);
  hold.GiveUp();
  EXPECT_EQ(answers_needed(), 32u);
  hold.GiveUp();
  EXPECT_EQ(answers_needed(), 128u);
  for (int i = 0; i < 10; ++i) hold.GiveUp();
  EXPECT_EQ(answers_needed(), AckHold::kAnswersToTrustMax);
  // Those that paid make it easier.
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(hold.OnAck(now));
    hold.OnRequest(now + AckHold::kWait, Instant::Never());
    hold.LetGo();
  }
  EXPECT_TRUE(hold.OnAck(now));
  hold.LetGo();
  hold.OnRequest(now + AckHold::kSoon + Nanoseconds(1), Instant::Never());
  EXPECT_EQ(answers_needed(), AckHold::kAnswersToTrustMax - 100);
}

INSTANTIATE_TEST_SUITE_P(Packets, PingPong, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing

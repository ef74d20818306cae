// Two sessions on two NICs exchange RC messages through the device: rings in, CQEs and bytes out.
#include <gtest/gtest.h>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

class RcTraffic : public ::testing::Test, protected TestPair<65'536> {
 protected:
  RcTraffic()
      : TestPair(Service::kRc, /*nics=*/3),
        mr_a(a.MustRegMr(memory_a, sizeof(memory_a), kAll)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), kAll)) {
    for (size_t i = 0; i < sizeof(memory_a); ++i) memory_a[i] = static_cast<uint8_t>(i * 7);
  }
  shm::SendWqe Remote(shm::WrOpcode opcode, uint64_t wr_id, const void* addr) {
    shm::SendWqe wqe = MakeWqe(opcode, wr_id);
    wqe.remote_addr = reinterpret_cast<uint64_t>(addr);
    wqe.rkey = mr_b.rkey;
    return wqe;
  }
  Wc MustPoll(TestClient& client, TestCq& cq) {
    std::optional<Wc> wc = client.Poll(cq);
    EXPECT_TRUE(wc.has_value());
    return wc.value_or(Wc{.wr_id = ~uint64_t{0}, .status = WcStatus::kGeneralErr});
  }

  TestMr mr_a, mr_b;
};

TEST_F(RcTraffic, WriteMovesBytesAndCompletes) {
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b + 100),
         {SgeOf(memory_a, 1'000, mr_a.lkey), SgeOf(memory_a + 5'000, 50'000, mr_a.lkey)});
  world.Settle();
  Wc wc = MustPoll(a, cq_a);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRdmaWrite);
  EXPECT_EQ(wc.qpn, qp_a.qpn.value);
  EXPECT_EQ(wc.qp_handle, qp_a.handle);
  EXPECT_TRUE(wc.is_send);
  EXPECT_EQ(wc.timestamp_ns, static_cast<uint64_t>(world.now.ns));
  EXPECT_EQ(std::memcmp(memory_b + 100, memory_a, 1'000), 0);
  EXPECT_EQ(std::memcmp(memory_b + 1'100, memory_a + 5'000, 50'000), 0);
  EXPECT_EQ(memory_b[99], 0);
  EXPECT_EQ(memory_b[51'100], 0);
  EXPECT_FALSE(b.Poll(cq_b).has_value());
}

TEST_F(RcTraffic, CompletionComesOnlyAfterTheBytes) {
  world.dma.is_held = true;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  world.Settle();
  EXPECT_FALSE(a.Poll(cq_a).has_value());
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
}

TEST_F(RcTraffic, ACopyThatTakesLongIsNoLoss) {
  world.dma.is_held = true;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaRead, 2, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  const Instant begin = world.now;
  while (world.now - begin < Milliseconds(9'000)) {
    world.Settle();
    ASSERT_FALSE(a.Poll(cq_a).has_value());
    ASSERT_TRUE(world.AdvanceToTimer());
  }
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
}

TEST_F(RcTraffic, MemoryThatNeverAnswersIsAPeerThatIsGone) {
  world.dma.is_held = true;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  const Instant begin = world.now;
  ASSERT_TRUE(world.RunUntil([&] { return a.StateOf(qp_a) == QpState::kErr; }, 2'000));
  EXPECT_GE(world.now - begin, Milliseconds(10'000));
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kRetryExcErr);
}

TEST_F(RcTraffic, ReceivesAreRungForInTheErrorStateAlone) {
  b.PostRecv(qp_b, 1, {});
  EXPECT_FALSE(qp_b.rq.WantsDoorbell());
  ASSERT_EQ(b.ToError(qp_b), 0);
  EXPECT_TRUE(qp_b.rq.WantsDoorbell());
  b.PostRecv(qp_b, 2, {});
  world.Settle();
  for (uint64_t wr_id : {1, 2}) {
    const Wc wc = MustPoll(b, cq_b);
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
  }
  ASSERT_EQ(b.ToReset(qp_b), 0);
  EXPECT_FALSE(qp_b.rq.WantsDoorbell());
}

// The QP fails while its outputs are taken.
TEST_F(RcTraffic, ReceivesAreRungForAfterAFailureOfTheResponder) {
  b.PostRecv(qp_b, 1, {SgeOf(memory_b, 64, mr_b.lkey ^ 1)});
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 9), {SgeOf(memory_a, 64, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(MustPoll(b, cq_b).status, WcStatus::kLocProtErr);
  EXPECT_TRUE(qp_b.rq.WantsDoorbell());
  b.PostRecv(qp_b, 2, {});
  world.Settle();
  EXPECT_EQ(MustPoll(b, cq_b).status, WcStatus::kWrFlushErr);
}

// A killed program's memory is gone some time before its session is.
TEST_F(RcTraffic, NobodyAnswersForAProcessThatHasEnded) {
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_b) + 8;
  world.dma.fault = DmaFault::kOwnerGone;
  std::vector<TestQp> from, to;
  for (auto opcode : {shm::WrOpcode::kRdmaWrite, shm::WrOpcode::kRdmaRead, shm::WrOpcode::kSend,
                      shm::WrOpcode::kAtomicFetchAndAdd}) {
    from.push_back(a.MustCreateQp(Service::kRc, cq_a));
    to.push_back(b.MustCreateQp(Service::kRc, cq_b));
    Connect(a, from.back(), b, to.back(), Service::kRc);
    b.PostRecv(to.back(), 1, {SgeOf(memory_b, 64, mr_b.lkey)});
    const bool is_atomic = opcode == shm::WrOpcode::kAtomicFetchAndAdd;
    a.Post(from.back(), Remote(opcode, 1, memory_b + (is_atomic ? 8 : 0)),
           {SgeOf(memory_a, is_atomic ? 8 : 64, mr_a.lkey)});
  }
  world.Settle();
  ASSERT_TRUE(world.AdvanceToTimer());  // and so they come twice
  world.Settle();
  EXPECT_FALSE(a.Poll(cq_a).has_value());
  EXPECT_FALSE(b.Poll(cq_b).has_value());
  world.device->CloseSession(world.now, b.id);
  for (const TestQp& qp : from) {
    ASSERT_TRUE(world.RunUntil([&] { return a.StateOf(qp) == QpState::kErr; }));
  }
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kRetryExcErr);
  }
}

// Nothing is wrong with either end: a fence was not to wait.
TEST_F(RcTraffic, WhatIsRevokedComesAgain) {
  for (auto opcode : {shm::WrOpcode::kRdmaWrite, shm::WrOpcode::kRdmaRead, shm::WrOpcode::kSend}) {
    const bool is_read = opcode == shm::WrOpcode::kRdmaRead;
    std::memset(is_read ? memory_a : memory_b, 0, 300);
    std::memset(is_read ? memory_b : memory_a, 5, 300);
    world.dma.is_held = true;
    for (uint64_t i = 0; i < 3; ++i) {
      b.PostRecv(qp_b, i, {SgeOf(memory_b + i * 100, 100, mr_b.lkey)});
      a.Post(qp_a, Remote(opcode, i, memory_b + i * 100),
             {SgeOf(memory_a + i * 100, 100, mr_a.lkey)});
    }
    world.Settle();
    world.dma.revoked = 3;
    world.dma.is_held = false;
    world.Settle();
    EXPECT_FALSE(a.Poll(cq_a).has_value());
    EXPECT_FALSE(b.Poll(cq_b).has_value());
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
      const Wc wc = MustPoll(a, cq_a);
      EXPECT_EQ(wc.wr_id, i);
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
    }
    EXPECT_EQ(std::memcmp(memory_a, memory_b, 300), 0);
    EXPECT_EQ(b.PollAll(cq_b).size(), opcode == shm::WrOpcode::kSend ? 3u : 0u);
  }
}

// Else it would be done twice, and was there too early.
TEST_F(RcTraffic, WhatIsRevokedAndWasOvertakenFails) {
  std::memset(memory_b, 0, 8);
  world.dma.is_held = true;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b + 100),
         {SgeOf(memory_a, 100, mr_a.lkey)});
  shm::SendWqe add = Remote(shm::WrOpcode::kAtomicFetchAndAdd, 2, memory_b);
  add.atomic.compare_add = 1;
  a.Post(qp_a, add, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  world.dma.revoked = 1;
  world.dma.is_held = false;
  ASSERT_TRUE(world.RunUntil([&] { return a.StateOf(qp_a) == QpState::kErr; }));
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kLocProtErr);
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kWrFlushErr);
  EXPECT_EQ(memory_b[0], 1);
}

TEST_F(RcTraffic, SendFillsAReceive) {
  b.PostRecv(qp_b, 77, {SgeOf(memory_b, 16, mr_b.lkey), SgeOf(memory_b + 1'000, 100, mr_b.lkey)});
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSendWithImm, 2);
  wqe.imm_or_rkey = 0x0102'0304;
  a.PostInline(qp_a, wqe, "0123456789abcdefXYZ");
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
  Wc wc = MustPoll(b, cq_b);
  EXPECT_EQ(wc.wr_id, 77u);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRecv);
  EXPECT_EQ(wc.byte_len, 19u);
  EXPECT_EQ(wc.imm, 0x0102'0304u);
  EXPECT_EQ(wc.flags & shm::kWcWithImm, shm::kWcWithImm);
  EXPECT_FALSE(wc.is_send);
  EXPECT_EQ(std::memcmp(memory_b, "0123456789abcdef", 16), 0);
  EXPECT_EQ(std::memcmp(memory_b + 1'000, "XYZ", 3), 0);
}

TEST_F(RcTraffic, ReadFetchesBytes) {
  std::memcpy(memory_b, "remote bytes", 12);
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaRead, 3, memory_b),
         {SgeOf(memory_a + 10, 12, mr_a.lkey)});
  world.Settle();
  Wc wc = MustPoll(a, cq_a);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 12u);
  EXPECT_EQ(std::memcmp(memory_a + 10, "remote bytes", 12), 0);
}

TEST_F(RcTraffic, AtomicsReturnTheOriginal) {
  auto* word = reinterpret_cast<uint64_t*>(memory_b);
  auto* result = reinterpret_cast<uint64_t*>(memory_a);
  *word = 40;
  shm::SendWqe add = Remote(shm::WrOpcode::kAtomicFetchAndAdd, 4, word);
  add.atomic.compare_add = 2;
  a.Post(qp_a, add, {SgeOf(result, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
  EXPECT_EQ(*result, 40u);
  EXPECT_EQ(*word, 42u);
  shm::SendWqe swap = Remote(shm::WrOpcode::kAtomicCmpAndSwp, 5, word);
  swap.atomic.compare_add = 42;
  swap.atomic.swap = 7;
  a.Post(qp_a, swap, {SgeOf(result, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
  EXPECT_EQ(*result, 42u);
  EXPECT_EQ(*word, 7u);
}

TEST_F(RcTraffic, WriteThenReadOfTheSameBytesKeepsOrder) {
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaRead, 2, memory_b),
         {SgeOf(memory_a + 1'024, 64, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.PollAll(cq_a).size(), 2u);
  EXPECT_EQ(std::memcmp(memory_a, memory_a + 1'024, 64), 0);
  // Both movements, into b and back into a, were in one stream.
  ASSERT_EQ(world.dma.streams.size(), 2u);
  EXPECT_EQ(world.dma.streams[0], world.dma.streams[1]);
}

TEST_F(RcTraffic, ManyMessagesUnderSlowDmaArriveOnceAndInOrder) {
  world.dma.is_held = true;
  for (uint64_t i = 0; i < 16; ++i) {
    b.PostRecv(qp_b, i, {SgeOf(memory_b + i * 64, 64, mr_b.lkey)});
  }
  for (uint64_t i = 0; i < 16; ++i) {
    a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, i), {SgeOf(memory_a + i * 64, 64, mr_a.lkey)});
  }
  while (world.device->Run(world.now, 4)) {
  }
  world.dma.is_held = false;
  world.Settle();
  std::vector<Wc> sent = a.PollAll(cq_a);
  std::vector<Wc> received = b.PollAll(cq_b);
  ASSERT_EQ(sent.size(), 16u);
  ASSERT_EQ(received.size(), 16u);
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(sent[i].wr_id, i);
    EXPECT_EQ(received[i].wr_id, i);
    EXPECT_EQ(received[i].status, WcStatus::kSuccess);
  }
  EXPECT_EQ(std::memcmp(memory_b, memory_a, 16 * 64), 0);
}

TEST_F(RcTraffic, QpConnectedToItselfWorks) {
  TestQp self = a.MustCreateQp(Service::kRc, cq_a);
  ASSERT_EQ(a.ToInit(self, Service::kRc), 0);
  ASSERT_EQ(a.ToRtr(self, Service::kRc, TestWorld::GidOf(0), self.qpn), 0);
  ASSERT_EQ(a.ToRts(self, Service::kRc), 0);
  a.PostRecv(self, 1, {SgeOf(memory_a + 4'096, 64, mr_a.lkey)});
  a.Post(self, MakeWqe(shm::WrOpcode::kSend, 2), {SgeOf(memory_a, 64, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.PollAll(cq_a).size(), 2u);
  EXPECT_EQ(std::memcmp(memory_a, memory_a + 4'096, 64), 0);
}

TEST_F(RcTraffic, NoReceiveIsRetriedThenFails) {
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 9), {SgeOf(memory_a, 8, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kRnrRetryExcErr);
  EXPECT_EQ(a.StateOf(qp_a), QpState::kErr);
}

TEST_F(RcTraffic, LateReceiveIsFoundByTheRetry) {
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 9), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  b.PostRecv(qp_b, 1, {SgeOf(memory_b, 8, mr_b.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
  EXPECT_EQ(MustPoll(b, cq_b).status, WcStatus::kSuccess);
}

TEST_F(RcTraffic, DeadPeerIsSilence) {
  world.Close(b);
  world.Settle();
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 2, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  std::vector<Wc> wcs = a.PollAll(cq_a);
  ASSERT_EQ(wcs.size(), 2u);
  EXPECT_EQ(wcs[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(wcs[1].status, WcStatus::kWrFlushErr);
}

TEST_F(RcTraffic, SessionDiesWithItsPeersDataInFlight) {
  world.dma.held_session = b.id;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  world.Close(b);
  world.Settle();
  EXPECT_FALSE(world.device->SessionIsGone(b.id));  // DMA in flight still touches it
  EXPECT_TRUE(b.services.queues.empty());
  world.dma.held_session = 0;
  world.Settle();
  EXPECT_TRUE(world.device->SessionIsGone(b.id));
  EXPECT_EQ(world.dma.regions.size(), 1u);  // a's
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kRetryExcErr);
}

TEST_F(RcTraffic, StrangerIsNotHeard) {
  // c names b's QP as its peer, but b's peer is a.
  TestClient& c = world.AddClient(0);
  TestCq cq_c = c.MustCreateCq();
  TestQp qp_c = c.MustCreateQp(Service::kRc, cq_c);
  ASSERT_EQ(c.ToInit(qp_c, Service::kRc), 0);
  ASSERT_EQ(c.ToRtr(qp_c, Service::kRc, TestWorld::GidOf(1), qp_b.qpn), 0);
  ASSERT_EQ(c.ToRts(qp_c, Service::kRc), 0);
  c.PostInline(qp_c, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), "evil");
  ASSERT_TRUE(world.RunUntil([&] { return cq_c.ring.Peek() != nullptr; }));
  EXPECT_EQ(MustPoll(c, cq_c).status, WcStatus::kRetryExcErr);
  EXPECT_EQ(memory_b[0], 0);
}

TEST_F(RcTraffic, SameQpnOnAnotherNicIsNotThePeer) {
  // QPNs repeat over NICs: the first QP of a client on NIC 2 has the number a's peer has on NIC 1.
  TestClient& c = world.AddClient(2);
  TestCq cq_c = c.MustCreateCq();
  TestQp qp_c = c.MustCreateQp(Service::kRc, cq_c);
  ASSERT_EQ(qp_c.qpn, qp_b.qpn);
  ASSERT_EQ(c.ToInit(qp_c, Service::kRc), 0);
  ASSERT_EQ(c.ToRtr(qp_c, Service::kRc, TestWorld::GidOf(0), qp_a.qpn), 0);
  ASSERT_EQ(c.ToRts(qp_c, Service::kRc), 0);
  shm::SendWqe wqe = Remote(shm::WrOpcode::kRdmaWrite, 1, memory_a + 1);
  wqe.rkey = mr_a.rkey;
  uint8_t before = memory_a[1];
  c.PostInline(qp_c, wqe, "evil");
  ASSERT_TRUE(world.RunUntil([&] { return cq_c.ring.Peek() != nullptr; }));
  EXPECT_EQ(MustPoll(c, cq_c).status, WcStatus::kRetryExcErr);
  EXPECT_EQ(memory_a[1], before);
}

TEST_F(RcTraffic, DestroyAndResetWaitForTheirDma) {
  for (shm::CommandOp op : {shm::CommandOp::kModifyQp, shm::CommandOp::kDestroyQp}) {
    world.dma.is_held = true;
    a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
    world.Settle();
    shm::HandleRequest destroy{qp_b.handle, 0};
    shm::ModifyQpRequest reset{qp_b.handle, shm::qp_mask::kState, {}};
    uint32_t slot = op == shm::CommandOp::kModifyQp ? b.Begin(op, &reset, sizeof(reset))
                                                    : b.Begin(op, &destroy, sizeof(destroy));
    world.Settle();
    EXPECT_FALSE(b.IsDone(slot));
    world.dma.is_held = false;
    world.Settle();
    EXPECT_TRUE(b.IsDone(slot));
    EXPECT_EQ(b.services.completed[slot].error, 0);
    if (op == shm::CommandOp::kDestroyQp) break;
    // The result of the DMA from before the reset does not disturb the connection made anew.
    qp_b.sq.Reset();
    qp_b.rq.Reset();
    ASSERT_EQ(a.ToReset(qp_a), 0);
    Connect(a, qp_a, b, qp_b, Service::kRc);
  }
}

// Its buffer is the program's again, which may write to it at once.
TEST_F(RcTraffic, WorkIsFlushedWhenNothingReadsItsBufferAnyMore) {
  world.dma.is_held = true;
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  world.Settle();
  ASSERT_EQ(a.ToError(qp_a), 0);
  world.Settle();
  EXPECT_FALSE(a.Poll(cq_a).has_value());
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kWrFlushErr);
}

// More requests than the peer takes in at a time, so that the last waits at its door.
TEST_F(RcTraffic, AFailedQpsRequestThatWaitsIsNotExecuted) {
  world.dma.is_held = true;
  cq_a = a.MustCreateCq(128);
  shm::CreateQpRequest request = a.QpRequest(Service::kRc, cq_a.handle);
  request.max_send_wr = 128;
  ASSERT_EQ(a.CreateQp(request, &qp_a), 0);
  ASSERT_EQ(b.ToReset(qp_b), 0);
  Connect(a, qp_a, b, qp_b, Service::kRc);
  constexpr uint64_t kRequests = 100;
  for (uint64_t i = 0; i < kRequests; ++i) {
    a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, i, memory_b + i),
           {SgeOf(memory_a + 1'000, 1, mr_a.lkey)});
  }
  memory_a[1'000] = 0x55;
  world.Settle();
  ASSERT_EQ(a.ToError(qp_a), 0);
  world.dma.is_held = false;
  world.Settle();
  ASSERT_EQ(a.PollAll(cq_a).size(), kRequests);
  // The bound of a responder's placements outstanding (rc_script_test).
  constexpr auto kTakenIn = 63;
  EXPECT_EQ(std::count(memory_b, memory_b + kRequests, 0x55), kTakenIn);
}

TEST_F(RcTraffic, ResetAndReconnectStartsClean) {
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.PollAll(cq_a).size(), 1u);
  ASSERT_EQ(a.ToReset(qp_a), 0);
  ASSERT_EQ(b.ToReset(qp_b), 0);
  Connect(a, qp_a, b, qp_b, Service::kRc);
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 2, memory_b), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(MustPoll(a, cq_a).status, WcStatus::kSuccess);
}

TEST_F(RcTraffic, ErrorStateFlushesBothQueuesAndWhatIsPostedLater) {
  b.PostRecv(qp_b, 1, {SgeOf(memory_b, 8, mr_b.lkey)});
  ASSERT_EQ(b.ToError(qp_b), 0);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].status, WcStatus::kWrFlushErr);
  EXPECT_FALSE(wcs[0].is_send);
  b.PostRecv(qp_b, 2, {SgeOf(memory_b, 8, mr_b.lkey)});
  b.Post(qp_b, MakeWqe(shm::WrOpcode::kSend, 3), {SgeOf(memory_b, 8, mr_b.lkey)});
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_b).size(), 2u);
}

TEST_F(RcTraffic, SourcePageGoneFailsTheSender) {
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_a + 10);
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  Wc wc = MustPoll(a, cq_a);
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, static_cast<uint32_t>(shm::VendorErr::kMemoryFault));
  EXPECT_EQ(b.StateOf(qp_b), QpState::kRts);
}

TEST_F(RcTraffic, DestinationPageGoneFailsThePeersWork) {
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_b + 10);
  a.Post(qp_a, Remote(shm::WrOpcode::kRdmaWrite, 1, memory_b), {SgeOf(memory_a, 64, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_NE(MustPoll(a, cq_a).status, WcStatus::kSuccess);
}

}  // namespace
}  // namespace verbena::softnic::testing

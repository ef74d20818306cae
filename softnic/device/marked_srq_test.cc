// Receives with marks: several messages in one, one for a peer alone, taken back; and cutting off.
#include <gtest/gtest.h>

#include <cerrno>

#include "core/shm/rdm.h"
#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::VendorErr;

shm::Sge MarkOf(uint32_t flags, uint32_t min_free_bytes = 0, uint32_t source = 0) {
  const shm::RecvMark mark{flags, min_free_bytes, source, 0};
  shm::Sge sge;
  std::memcpy(&sge, &mark, sizeof(sge));
  return sge;
}

class MarkedSrq : public ::testing::Test {
 protected:
  static constexpr int kPeers = 2;

  MarkedSrq() : world(2), a(world.AddClient(0)), b(world.AddClient(1)) {
    for (size_t i = 0; i < sizeof(memory_a); ++i)
      memory_a[i] = static_cast<uint8_t>(i * 7 + i / 256);
    mr_a = a.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite);
    mr_b = b.MustRegMr(memory_b, sizeof(memory_b), access::kLocalWrite);
    cq_a = a.MustCreateCq();
    cq_b = b.MustCreateCq();
    EXPECT_EQ(b.CreateSrq(8, 3, &srq, shm::kSrqMarked | shm::kSrqTruncates), 0);
    for (int i = 0; i < kPeers; ++i) {
      qp_a[i] = a.MustCreateQp(Service::kRc, cq_a);
      shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
      request.srq = srq.handle;
      EXPECT_EQ(b.CreateQp(request, &qp_b[i]), 0);
      Connect(a, qp_a[i], b, qp_b[i], Service::kRc);
    }
  }
  void PostRecv(uint64_t wr_id, uint32_t at, uint32_t length, shm::Sge mark = MarkOf(0)) {
    b.PostSrqRecv(srq, wr_id, {mark, SgeOf(memory_b + at, length, mr_b.lkey)});
  }
  void Send(int peer, uint32_t at, uint32_t length) {
    a.Post(qp_a[peer], MakeWqe(shm::WrOpcode::kSend, 100 + at),
           {SgeOf(memory_a + at, length, mr_a.lkey)});
  }
  bool Holds(uint32_t at, uint32_t from, uint32_t length) const {
    return std::memcmp(memory_b + at, memory_a + from, length) == 0;
  }
  bool Cancel(uint64_t wr_id, uint32_t* messages = nullptr) {
    shm::CancelRecvRequest request{srq.handle, 0, wr_id};
    shm::CancelRecvReply reply;
    EXPECT_EQ(b.Execute(CommandOp::kCancelRecv, request, &reply), 0);
    if (messages != nullptr) *messages = reply.messages;
    return reply.found != 0;
  }
  // Slots the program may not write yet.
  uint32_t SlotsInUse() const { return srq.ring.PublishedIndex() - srq.ring.ConsumerIndex(); }
  static bool IsReleased(const Wc& wc) { return (wc.flags & shm::kWcRecvReleased) != 0; }

  alignas(64) uint8_t memory_a[32'768];
  alignas(64) uint8_t memory_b[32'768] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestMr mr_a, mr_b;
  TestCq cq_a, cq_b;
  TestSrq srq;
  TestQp qp_a[kPeers], qp_b[kPeers];
};

TEST_F(MarkedSrq, AReceiveHoldsMessagesOneBehindTheOther) {
  for (bool in_one_step : {false, true}) {
    world.dma.moves_now = in_one_step;
    PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 200));
    const uint32_t lengths[] = {300, 0, 250, 251};
    uint32_t from = 0;
    for (int i = 0; i < 4; ++i) {
      Send(i % 2, from, lengths[i]);
      world.Settle();
      from += lengths[i];
    }
    std::vector<Wc> wcs = b.PollAll(cq_b);
    ASSERT_EQ(wcs.size(), 4u);
    uint32_t at = 0;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(wcs[i].wr_id, 1u);
      EXPECT_EQ(wcs[i].status, WcStatus::kSuccess);
      EXPECT_EQ(wcs[i].recv_offset, at);
      EXPECT_EQ(wcs[i].byte_len, lengths[i]);
      EXPECT_EQ(IsReleased(wcs[i]), i == 3);
      at += lengths[i];
    }
    EXPECT_TRUE(Holds(0, 0, at));
    EXPECT_EQ(SlotsInUse(), 0u);
    std::memset(memory_b, 0, sizeof(memory_b));
  }
  EXPECT_NE(world.dma.moved_now, 0u);
}

// Empty messages begin where the next one does, and where that ends none is mixed up.
TEST_F(MarkedSrq, ManyMessagesAtOnceEmptyOnesAmongThem) {
  PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 100));
  const uint32_t lengths[] = {0, 0, 500, 0, 0, 450};
  world.dma.is_held = true;
  uint32_t from = 0;
  for (uint32_t length : lengths) {
    Send(0, from, length);
    from += length;
  }
  world.device->Run(world.now, 64);
  world.dma.is_held = false;
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(wcs[i].byte_len, lengths[i]);
    EXPECT_EQ(wcs[i].recv_offset, i < 3 ? 0u : 500u);
    EXPECT_EQ(IsReleased(wcs[i]), i == 5);
  }
  EXPECT_TRUE(Holds(0, 0, 950));
  EXPECT_EQ(SlotsInUse(), 0u);
}

// The last message to complete releases, be it not the last one that came.
TEST_F(MarkedSrq, ItIsReleasedWhenNothingIsWrittenToItAnyMore) {
  PostRecv(1, 0, 600, MarkOf(shm::kRecvMulti, 100));
  world.dma.is_held = true;
  Send(0, 0, 300);
  Send(1, 1'000, 250);
  world.device->Run(world.now, 64);
  EXPECT_EQ(SlotsInUse(), 1u);
  world.dma.is_held = false;
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 2u);
  EXPECT_FALSE(IsReleased(wcs[0]));
  EXPECT_TRUE(IsReleased(wcs[1]));
  EXPECT_EQ(SlotsInUse(), 0u);
}

TEST_F(MarkedSrq, AMessageLongerThanWhatIsLeftIsCutOff) {
  PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 10));
  PostRecv(2, 2'000, 100);
  PostRecv(3, 3'000, 9'000);
  Send(0, 0, 900);
  Send(0, 900, 10'000);
  Send(0, 0, 101);
  Send(0, 64, 20'000);
  ASSERT_TRUE(
      world.RunUntil([&] { return a.StateOf(qp_a[0]) != QpState::kRts || cq_a.ring.Peek(); }));
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 4u);
  EXPECT_EQ(wcs[0].status, WcStatus::kSuccess);
  const uint32_t lengths[] = {900, 10'000, 101, 20'000};
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(wcs[i].status, WcStatus::kLocLenErr);
    EXPECT_EQ(wcs[i].vendor_err, static_cast<uint32_t>(VendorErr::kTruncated));
    EXPECT_EQ(wcs[i].byte_len, lengths[i]);
    EXPECT_TRUE(IsReleased(wcs[i]));
  }
  EXPECT_TRUE(Holds(0, 0, 1'000));
  EXPECT_EQ(memory_b[1'000], 0);  // and not a byte beyond
  EXPECT_TRUE(Holds(2'000, 0, 100));
  EXPECT_EQ(memory_b[2'100], 0);
  EXPECT_TRUE(Holds(3'000, 64, 9'000));
  EXPECT_EQ(memory_b[12'000], 0);
  // The sender never knows.
  std::vector<Wc> sent = a.PollAll(cq_a);
  ASSERT_EQ(sent.size(), 4u);
  for (const Wc& wc : sent) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(a.StateOf(qp_a[0]), QpState::kRts);
  EXPECT_EQ(b.StateOf(qp_b[0]), QpState::kRts);
}

TEST_F(MarkedSrq, WithoutCuttingOffATooLongMessageFailsAsEver) {
  TestSrq plain;
  ASSERT_EQ(b.CreateSrq(8, 3, &plain, shm::kSrqMarked), 0);
  shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
  request.srq = plain.handle;
  TestQp to, from = a.MustCreateQp(Service::kRc, cq_a);
  ASSERT_EQ(b.CreateQp(request, &to), 0);
  Connect(a, from, b, to, Service::kRc);
  b.PostSrqRecv(plain, 1, {MarkOf(0), SgeOf(memory_b, 10, mr_b.lkey)});
  a.Post(from, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(memory_a, 11, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kRemInvReqErr);
  EXPECT_EQ(b.Poll(cq_b)->status, WcStatus::kLocLenErr);
}

// A message's payload that can't be read makes the message one that never came.
TEST_F(MarkedSrq, AFailedMessageLeavesItsRoomToTheNext) {
  PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 800));
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_a + 5'000);
  Send(0, 4'990, 300);  // would release it
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_NE(a.Poll(cq_a)->status, WcStatus::kSuccess);
  EXPECT_TRUE(b.PollAll(cq_b).empty());
  Send(1, 0, 100);
  Send(1, 100, 150);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 2u);
  EXPECT_EQ(wcs[0].recv_offset, 0u);
  EXPECT_FALSE(IsReleased(wcs[0]));
  EXPECT_EQ(wcs[1].recv_offset, 100u);
  EXPECT_TRUE(IsReleased(wcs[1]));
  EXPECT_TRUE(Holds(0, 0, 250));
}

// … and if another message has come behind it meanwhile, a completion of its own releases.
TEST_F(MarkedSrq, AReleaseThatNoMessageBringsComesAlone) {
  PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 500));
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_a + 5'000);
  world.dma.is_held = true;
  Send(0, 4'990, 300);
  world.device->Run(world.now, 64);
  Send(1, 0, 300);
  world.device->Run(world.now, 64);
  // The second one's completion waits for its bytes; the first's never comes.
  world.dma.is_held = false;
  ASSERT_TRUE(world.RunUntil([&] { return a.StateOf(qp_a[0]) == QpState::kErr; }));
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_FALSE(wcs.empty());
  EXPECT_EQ(wcs[0].recv_offset, 300u);
  EXPECT_TRUE(Holds(300, 0, 300));
  int releases = 0;
  for (const Wc& wc : wcs) releases += IsReleased(wc) ? 1 : 0;
  EXPECT_EQ(releases, 1);
  EXPECT_TRUE(IsReleased(wcs.back()));
  EXPECT_EQ(SlotsInUse(), 0u);
}

// A QP that goes amid a message gives the receive back, once nothing is written to it.
TEST_F(MarkedSrq, AReceiveOutlivesTheQpThatHadIt) {
  PostRecv(1, 0, 1'000);
  world.dma.is_held = true;
  Send(0, 0, 500);
  world.device->Run(world.now, 64);
  shm::HandleRequest request{qp_b[0].handle, 0};
  const uint32_t slot = b.Begin(CommandOp::kDestroyQp, &request, sizeof(request));
  EXPECT_FALSE(b.IsDone(slot));
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(b.IsDone(slot));
  Send(1, 1'000, 400);
  ASSERT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 1u);
  EXPECT_TRUE(Holds(0, 1'000, 400));
}

TEST_F(MarkedSrq, AReceiveCanBeTakenBack) {
  PostRecv(1, 0, 100);
  PostRecv(2, 100, 100);
  PostRecv(2, 200, 100);
  PostRecv(3, 300, 100, MarkOf(shm::kRecvMulti, 10));
  EXPECT_FALSE(Cancel(9));
  EXPECT_TRUE(Cancel(2));
  EXPECT_EQ(SlotsInUse(), 3u);
  for (uint32_t at : {0u, 1'000u, 2'000u, 3'000u}) Send(0, at, 20);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 4u);
  EXPECT_EQ(wcs[0].wr_id, 1u);
  EXPECT_EQ(wcs[1].wr_id, 2u);
  EXPECT_TRUE(Holds(200, 1'000, 20));  // the oldest of that name went
  EXPECT_FALSE(Cancel(1));
  uint32_t messages = 0;
  EXPECT_TRUE(Cancel(3, &messages));
  EXPECT_EQ(messages, 2u);
  EXPECT_EQ(SlotsInUse(), 0u);
  EXPECT_FALSE(Cancel(3));
}

TEST_F(MarkedSrq, WhatIsUnderWayCompletesAndThenItIsReleased) {
  PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 10));
  world.dma.is_held = true;
  Send(0, 0, 100);
  world.device->Run(world.now, 64);
  shm::CancelRecvRequest request{srq.handle, 0, 1};
  const uint32_t slot = b.Begin(CommandOp::kCancelRecv, &request, sizeof(request));
  ASSERT_TRUE(b.IsDone(slot));
  world.dma.is_held = false;
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_TRUE(IsReleased(wcs[0]));
}

TEST_F(MarkedSrq, OrdersThatMakeNoSenseAreRefused) {
  TestSrq made;
  EXPECT_EQ(b.CreateSrq(8, 0, &made, shm::kSrqMarked), EINVAL);
  EXPECT_EQ(b.CreateSrq(8, 2, &made, 1u << 7), EINVAL);
  shm::ModifySrqReply reply;
  EXPECT_EQ(b.Execute(CommandOp::kModifySrq,
                      shm::ModifySrqRequest{srq.handle, shm::kSrqLimit, 0, 2, 0}, &reply),
            EINVAL);
  TestSrq plain;
  ASSERT_EQ(b.CreateSrq(8, 2, &plain), 0);
  shm::CancelRecvRequest cancel{plain.handle, 0, 1};
  shm::CancelRecvReply cancelled;
  EXPECT_EQ(b.Execute(CommandOp::kCancelRecv, cancel, &cancelled), EINVAL);
}

// A lie costs the SRQ, and its QPs as they come by; nobody else anything.
TEST_F(MarkedSrq, AListWithoutAMarkIsALie) {
  b.PostSrqRecv(srq, 1, {});
  Send(0, 0, 8);
  world.Settle();
  std::vector<EventType> events = b.TakeAsyncEvents();
  EXPECT_NE(std::find(events.begin(), events.end(), EventType::kSrqErr), events.end());
  EXPECT_EQ(world.device->Stats().hostile_acts, 1u);
}

TEST_F(MarkedSrq, AMarkThatMeansNothingIsALie) {
  PostRecv(1, 0, 8, MarkOf(shm::kRecvDirected));  // at nobody
  shm::CancelRecvRequest request{srq.handle, 0, 1};
  shm::CancelRecvReply reply;
  EXPECT_EQ(b.Execute(CommandOp::kCancelRecv, request, &reply), EINVAL);
  EXPECT_EQ(b.TakeAsyncEvents().size(), 1u);
}

TEST_F(MarkedSrq, AWriteWithImmediateTakesNoReceive) {
  TestMr target;
  ASSERT_EQ(b.RegMr(b.pd, memory_b, 1'000, access::kLocalWrite | access::kRemoteWrite, &target), 0);
  for (bool in_one_step : {false, true}) {
    world.dma.moves_now = in_one_step;
    for (uint32_t length : {0u, 8u, 900u}) {
      shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWriteWithImm, 1);
      wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
      wqe.rkey = target.rkey;
      wqe.imm_or_rkey = 77 + length;
      a.Post(qp_a[0], wqe, {SgeOf(memory_a, length, mr_a.lkey)});
      world.Settle();
      const Wc wc = b.Poll(cq_b).value_or(Wc{});
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
      EXPECT_EQ(wc.opcode, shm::WcOpcode::kRecvRdmaWithImm);
      EXPECT_EQ(wc.wr_id, 0xabcu);  // the QP's cookie
      EXPECT_EQ(wc.imm, 77 + length);
      EXPECT_EQ(wc.byte_len, length);
      EXPECT_NE(wc.flags & shm::kWcWithImm, 0);
      EXPECT_EQ(a.PollAll(cq_a).size(), 1u);
    }
  }
  // One that is posted stays for a message.
  PostRecv(5, 2'000, 100);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWriteWithImm, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
  wqe.rkey = target.rkey;
  a.Post(qp_a[0], wqe, {SgeOf(memory_a, 10, mr_a.lkey)});
  Send(0, 0, 20);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 2u);
  EXPECT_EQ(wcs[1].wr_id, 5u);
}

// More than the CQ holds, of one receive and of none: its second half stays free.
TEST_F(MarkedSrq, WhatNoReceivesBoundDoesNotOverrunTheCq) {
  TestMr target;
  ASSERT_EQ(b.RegMr(b.pd, memory_b, 1'000, access::kLocalWrite | access::kRemoteWrite, &target), 0);
  for (bool in_one_step : {false, true}) {
    world.dma.moves_now = in_one_step;
    PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 1));
    constexpr int kEach = 30;
    std::vector<Wc> wcs;
    for (int i = 0; i < kEach; ++i) {
      Send(0, 0, 10);
      shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWriteWithImm, 1);
      wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b) + 990;
      wqe.rkey = target.rkey;
      a.Post(qp_a[1], wqe, {SgeOf(memory_a, 10, mr_a.lkey)});
      world.Settle();
      a.PollAll(cq_a);
    }
    for (const Wc& wc : b.PollAll(cq_b)) wcs.push_back(wc);
    EXPECT_EQ(wcs.size(), 32u);
    world.RunUntil([&] {
      for (const Wc& wc : b.PollAll(cq_b)) wcs.push_back(wc);
      return wcs.size() == 2 * kEach;
    });
    ASSERT_EQ(wcs.size(), 2u * kEach);
    for (const Wc& wc : wcs) EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_TRUE(b.TakeAsyncEvents().empty());
    EXPECT_TRUE(Cancel(1));
  }
}

TEST_F(MarkedSrq, DatagramsTakeMarkedReceivesAndAreCutOff) {
  shm::CreateQpRequest request = b.QpRequest(Service::kUd, cq_b.handle);
  request.srq = srq.handle;
  TestQp to, from = a.MustCreateQp(Service::kUd, cq_a);
  ASSERT_EQ(b.CreateQp(request, &to), 0);
  for (auto [client, qp] : {std::pair{&a, &from}, std::pair{&b, &to}}) {
    ASSERT_EQ(client->ToInit(*qp, Service::kUd), 0);
    ASSERT_EQ(client->ToRtr(*qp, Service::kUd, {}, {}), 0);
    ASSERT_EQ(client->ToRts(*qp, Service::kUd), 0);
  }
  PostRecv(1, 0, 140);
  PostRecv(2, 1'000, 140);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1);
  wqe.ah = a.CreateAh(TestWorld::GidOf(1));
  wqe.remote_qpn = to.qpn.value;
  shm::QueryQpReply state;
  ASSERT_EQ(b.Execute(CommandOp::kQueryQp, shm::HandleRequest{to.handle, 0}, &state), 0);
  wqe.remote_qkey = state.attr.qkey;
  a.Post(from, wqe, {SgeOf(memory_a, 100, mr_a.lkey)});
  a.Post(from, wqe, {SgeOf(memory_a, 101, mr_a.lkey)});
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 2u);
  EXPECT_EQ(wcs[0].status, WcStatus::kSuccess);
  EXPECT_EQ(wcs[0].byte_len, 140u);
  EXPECT_EQ(wcs[1].status, WcStatus::kLocLenErr);
  EXPECT_EQ(wcs[1].byte_len, 141u);
  EXPECT_TRUE(Holds(1'040, 0, 100));
  EXPECT_EQ(memory_b[1'140], 0);
  EXPECT_EQ(b.StateOf(to), QpState::kRts);
  EXPECT_EQ(SlotsInUse(), 0u);
}

}  // namespace
}  // namespace verbena::softnic::testing

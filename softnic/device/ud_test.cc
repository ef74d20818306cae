// UD and UC through the device: address handles, GRH, multicast, payload release.
#include <gtest/gtest.h>

#include <cerrno>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kQkey = 0x1111;  // as TestClient::ToInit sets it

class UdTest : public ::testing::Test {
 protected:
  UdTest() : a(world.AddClient(0)), b(world.AddClient(1)) {
    cq_a = a.MustCreateCq();
    cq_b = b.MustCreateCq();
    qp_a = a.MustCreateQp(Service::kUd, cq_a);
    qp_b = b.MustCreateQp(Service::kUd, cq_b);
    ToRts(a, qp_a);
    ToRts(b, qp_b);
    mr_a = a.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite);
    mr_b = b.MustRegMr(memory_b, sizeof(memory_b), access::kLocalWrite);
  }
  static void ToRts(TestClient& client, TestQp& qp) {
    ASSERT_EQ(client.ToInit(qp, Service::kUd), 0);
    ASSERT_EQ(client.ToRtr(qp, Service::kUd, {}, {}), 0);
    ASSERT_EQ(client.ToRts(qp, Service::kUd), 0);
  }
  shm::SendWqe To(shm::Handle ah, Qpn qpn, uint32_t qkey = kQkey) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1);
    wqe.ah = ah;
    wqe.remote_qpn = qpn.value;
    wqe.remote_qkey = qkey;
    return wqe;
  }
  int Mcast(shm::CommandOp op, TestClient& client, const TestQp& qp, const Gid& gid) {
    shm::McastRequest request{qp.handle, 0, {}};
    std::memcpy(request.gid, gid.raw.data(), 16);
    return client.ExecuteRaw(op, &request, sizeof(request), nullptr, 0);
  }
  static Gid Group(uint8_t number) {
    Gid gid;
    gid.raw[0] = 0xff;
    gid.raw[1] = 0x0e;
    gid.raw[15] = number;
    return gid;
  }

  alignas(64) uint8_t memory_a[8'192] = {};
  alignas(64) uint8_t memory_b[8'192] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  TestMr mr_a, mr_b;
};

TEST_F(UdTest, DatagramArrivesBehindItsGrh) {
  std::memcpy(memory_a, "datagram", 8);
  b.PostRecv(qp_b, 5, {SgeOf(memory_b, 2'000, mr_b.lkey)});
  a.Post(qp_a, To(a.CreateAh(TestWorld::GidOf(1)), qp_b.qpn), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.Poll(cq_a).value().status, WcStatus::kSuccess);
  Wc wc = b.Poll(cq_b).value();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 48u);
  EXPECT_EQ(wc.src_qpn, qp_a.qpn.value);
  EXPECT_EQ(wc.flags & shm::kWcGrh, shm::kWcGrh);
  EXPECT_EQ(std::memcmp(memory_b + 40, "datagram", 8), 0);
  // RoCE v2 over IPv4: the last 20 bytes are the IP header, with source and destination.
  EXPECT_EQ(std::memcmp(memory_b + 32, TestWorld::GidOf(0).raw.data() + 12, 4), 0);
  EXPECT_EQ(std::memcmp(memory_b + 36, TestWorld::GidOf(1).raw.data() + 12, 4), 0);
}

TEST_F(UdTest, SendCompletesWhenItsPayloadWasRead) {
  world.dma.is_held = true;
  b.PostRecv(qp_b, 5, {SgeOf(memory_b, 2'000, mr_b.lkey)});
  a.Post(qp_a, To(a.CreateAh(TestWorld::GidOf(1)), qp_b.qpn), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_FALSE(a.Poll(cq_a).has_value());
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(a.Poll(cq_a).has_value());
}

TEST_F(UdTest, WhatNobodyTakesIsDroppedAndCompletes) {
  shm::Handle known = a.CreateAh(TestWorld::GidOf(1));
  shm::Handle unknown = a.CreateAh(TestWorld::GidOf(77));
  std::vector<shm::Sge> sges = {SgeOf(memory_a, 8, mr_a.lkey)};
  a.Post(qp_a, To(known, qp_b.qpn), sges);  // no receive posted
  a.Post(qp_a, To(known, Qpn{0x777}), sges);
  a.Post(qp_a, To(unknown, qp_b.qpn), sges);
  world.Settle();
  std::vector<Wc> wcs = a.PollAll(cq_a);
  ASSERT_EQ(wcs.size(), 3u);
  for (const Wc& wc : wcs) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  b.PostRecv(qp_b, 5, {SgeOf(memory_b, 2'000, mr_b.lkey)});
  a.Post(qp_a, To(known, qp_b.qpn, 0x2222), sges);  // wrong Q_Key
  world.Settle();
  EXPECT_FALSE(b.Poll(cq_b).has_value());
  shm::QueryPortReply port;
  ASSERT_EQ(b.Execute(shm::CommandOp::kQueryPort, shm::PortRequest{1, 0}, &port), 0);
  EXPECT_EQ(port.qkey_viol_cntr, 1u);
}

TEST_F(UdTest, AddressHandleOfAnotherPdOrSessionIsRefused) {
  shm::Handle ah = a.CreateAh(TestWorld::GidOf(1));
  ASSERT_EQ(a.DoHandle(shm::CommandOp::kDestroyAh, ah), 0);
  a.PostInline(qp_a, To(ah, qp_b.qpn), "x");
  world.Settle();
  Wc wc = a.Poll(cq_a).value();
  EXPECT_EQ(wc.status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(wc.vendor_err, static_cast<uint32_t>(shm::VendorErr::kBadAh));
}

TEST_F(UdTest, MulticastReachesAllMembersAndTheSender) {
  Gid group = Group(1);
  ASSERT_EQ(Mcast(shm::CommandOp::kAttachMcast, a, qp_a, group), 0);
  ASSERT_EQ(Mcast(shm::CommandOp::kAttachMcast, b, qp_b, group), 0);
  ASSERT_EQ(Mcast(shm::CommandOp::kAttachMcast, b, qp_b, group), 0);  // once more is once
  std::memcpy(memory_a, "to all", 6);
  a.PostRecv(qp_a, 6, {SgeOf(memory_a + 4'096, 1'000, mr_a.lkey)});
  b.PostRecv(qp_b, 5, {SgeOf(memory_b, 1'000, mr_b.lkey)});
  b.PostRecv(qp_b, 7, {SgeOf(memory_b + 4'096, 1'000, mr_b.lkey)});
  shm::Handle ah = a.CreateAh(group);
  a.Post(qp_a, To(ah, kMulticastQpn), {SgeOf(memory_a, 6, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.PollAll(cq_a).size(), 2u);  // the send, and its own copy
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
  EXPECT_EQ(std::memcmp(memory_b + 40, "to all", 6), 0);
  EXPECT_EQ(std::memcmp(memory_a + 4'096 + 40, "to all", 6), 0);

  EXPECT_EQ(b.DoHandle(shm::CommandOp::kDestroyQp, qp_b.handle), EBUSY);
  ASSERT_EQ(Mcast(shm::CommandOp::kDetachMcast, b, qp_b, group), 0);
  EXPECT_EQ(Mcast(shm::CommandOp::kDetachMcast, b, qp_b, group), EINVAL);
  a.Post(qp_a, To(ah, kMulticastQpn), {SgeOf(memory_a, 6, mr_a.lkey)});
  world.Settle();
  EXPECT_TRUE(b.PollAll(cq_b).empty());
  EXPECT_EQ(b.DoHandle(shm::CommandOp::kDestroyQp, qp_b.handle), 0);
}

TEST_F(UdTest, MulticastChecksItsArguments) {
  EXPECT_EQ(Mcast(shm::CommandOp::kAttachMcast, a, qp_a, TestWorld::GidOf(0)), EINVAL);
  TestQp rc = a.MustCreateQp(Service::kRc, cq_a);
  EXPECT_EQ(Mcast(shm::CommandOp::kAttachMcast, a, rc, Group(1)), EINVAL);
  EXPECT_EQ(Mcast(shm::CommandOp::kDetachMcast, a, qp_a, Group(1)), EINVAL);
}

TEST(McastLimits, AreEnforced) {
  DeviceLimits limits;
  limits.max_mcast_grp = 1;
  limits.max_mcast_qp_attach = 1;
  TestWorld world(1, limits);
  TestClient& client = world.AddClient(0);
  TestCq cq = client.MustCreateCq();
  TestQp first = client.MustCreateQp(Service::kUd, cq),
         second = client.MustCreateQp(Service::kUd, cq);
  auto attach = [&](const TestQp& qp, uint8_t number) {
    shm::McastRequest request{qp.handle, 0, {0xff}};
    request.gid[15] = number;
    return client.ExecuteRaw(shm::CommandOp::kAttachMcast, &request, sizeof(request), nullptr, 0);
  };
  EXPECT_EQ(attach(first, 1), 0);
  EXPECT_EQ(attach(second, 1), ENOMEM);
  EXPECT_EQ(attach(second, 2), ENOMEM);
  world.Close(client);  // attached QPs of a dead session leave their groups
  TestClient& next = world.AddClient(0);
  cq = next.MustCreateCq();
  TestQp qp = next.MustCreateQp(Service::kUd, cq);
  shm::McastRequest request{qp.handle, 0, {0xff}};
  EXPECT_EQ(next.ExecuteRaw(shm::CommandOp::kAttachMcast, &request, sizeof(request), nullptr, 0),
            0);
}

TEST_F(UdTest, SourcePageGoneIsToldTheSenderOnceForAllCopies) {
  Gid group = Group(2);
  ASSERT_EQ(Mcast(shm::CommandOp::kAttachMcast, a, qp_a, group), 0);
  ASSERT_EQ(Mcast(shm::CommandOp::kAttachMcast, b, qp_b, group), 0);
  a.PostRecv(qp_a, 6, {SgeOf(memory_a + 4'096, 1'000, mr_a.lkey)});
  b.PostRecv(qp_b, 5, {SgeOf(memory_b, 1'000, mr_b.lkey)});
  world.dma.bad_addr = reinterpret_cast<uint64_t>(memory_a + 3);
  a.Post(qp_a, To(a.CreateAh(group), kMulticastQpn), {SgeOf(memory_a, 6, mr_a.lkey)});
  world.Settle();
  std::vector<Wc> wcs = a.PollAll(cq_a);
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].status, WcStatus::kLocProtErr);
  EXPECT_TRUE(b.PollAll(cq_b).empty());
}

TEST_F(UdTest, ManyMoreDatagramsThanTheReceiverTakesAtOnceAllArrive) {
  world.dma.is_held = true;
  constexpr int kCount = 200;
  shm::CreateQpRequest request = b.QpRequest(Service::kUd, cq_b.handle);
  request.max_recv_wr = kCount;
  TestCq big = b.MustCreateCq(kCount + 8);
  request.send_cq = request.recv_cq = big.handle;
  TestQp sink;
  ASSERT_EQ(b.CreateQp(request, &sink), 0);
  ToRts(b, sink);
  for (uint64_t i = 0; i < kCount; ++i) {
    b.PostRecv(sink, i, {SgeOf(memory_b, 1'000, mr_b.lkey)});
  }
  shm::Handle ah = a.CreateAh(TestWorld::GidOf(1));
  int posted = 0;
  while (posted < kCount || big.ring.Peek() == nullptr) {
    while (posted < kCount && qp_a.sq.producer_index() - qp_a.sq.ConsumerIndex() < 16) {
      a.Post(qp_a, To(ah, sink.qpn), {SgeOf(memory_a, 8, mr_a.lkey)});
      ++posted;
    }
    while (world.device->Run(world.now, 8)) {
    }
    world.dma.is_held = false;
    world.Settle();
    world.dma.is_held = posted < kCount;
    a.PollAll(cq_a);
  }
  EXPECT_EQ(b.PollAll(big).size(), static_cast<size_t>(kCount));
}

// A datagram waits at its destination while its sender deregisters the memory, whose id then goes
// to another client: nothing may be read from there.
TEST_F(UdTest, WaitingDatagramDoesNotOutliveItsMemory) {
  TestClient& other = world.AddClient(0);
  std::memset(memory_a, 0x5a, 64);
  uint32_t posted = 0;
  world.dma.is_held = true;
  TestCq cq_sink = b.MustCreateCq(512);
  shm::CreateQpRequest request = b.QpRequest(Service::kUd, cq_sink.handle);
  request.max_recv_wr = 256;
  TestQp sink;
  ASSERT_EQ(b.CreateQp(request, &sink), 0);
  ToRts(b, sink);
  for (uint64_t i = 0; i < 256; ++i) {
    b.PostRecv(sink, i, {SgeOf(memory_b, 1'000, mr_b.lkey)});
  }
  // Several senders, so that more comes than the sink places at once.
  shm::Handle ah = a.CreateAh(TestWorld::GidOf(1));
  for (int i = 0; i < 12; ++i) {
    TestQp qp = a.MustCreateQp(Service::kUd, cq_a);
    ToRts(a, qp);
    for (int k = 0; k < 16; ++k) {
      shm::SendWqe wqe = To(ah, sink.qpn);
      wqe.flags = 0;
      a.Post(qp, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
      ++posted;
    }
  }
  while (world.device->Run(world.now, 64)) {
  }
  size_t placing = world.dma.streams.size();
  ASSERT_LT(placing, posted);  // the rest waits
  shm::HandleRequest dereg{mr_a.handle, 0};
  uint32_t slot = a.Begin(shm::CommandOp::kDeregMr, &dereg, sizeof(dereg));
  world.dma.is_held = false;
  while (!a.IsDone(slot)) ASSERT_TRUE(world.dma.Step(*world.device, world.now));
  other.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite);  // gets the id
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_sink).size(), placing);
}

// Datagrams wait at one QP for others of the same session, and for that QP itself, when the session
// ends or the QP goes: what is dropped is an input to senders that are going too.
class UdGoingTest : public UdTest {
 protected:
  // A QP that gets more datagrams than it places at once, from others of its session and itself.
  TestQp MakeCrowdedSink() {
    world.dma.is_held = true;
    TestCq cq = b.MustCreateCq(1'024);
    std::vector<TestQp> senders;
    for (int i = 0; i < 4; ++i) {
      shm::CreateQpRequest request = b.QpRequest(Service::kUd, cq.handle);
      request.max_recv_wr = 128;
      TestQp qp;
      EXPECT_EQ(b.CreateQp(request, &qp), 0);
      ToRts(b, qp);
      senders.push_back(qp);
    }
    TestQp& sink = senders[1];  // senders stand before and behind it in the session's list
    for (uint64_t i = 0; i < 128; ++i) {
      b.PostRecv(sink, i, {SgeOf(memory_b, 1'000, mr_b.lkey)});
    }
    shm::Handle ah = b.CreateAh(TestWorld::GidOf(1));
    for (TestQp& qp : senders) {
      for (int k = 0; k < 16; ++k) {
        b.Post(qp, To(ah, sink.qpn), {SgeOf(memory_b, 8, mr_b.lkey)});
      }
    }
    while (world.device->Run(world.now, 64)) {
    }
    EXPECT_LT(world.dma.streams.size(), 64u);  // the rest waits
    return sink;
  }
};

TEST_F(UdGoingTest, SessionEndsWhileItsDatagramsWait) {
  MakeCrowdedSink();
  world.Close(b);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(world.device->Stats().sessions, 1u);
}

TEST_F(UdGoingTest, QpGoesWhileDatagramsWaitForIt) {
  TestQp sink = MakeCrowdedSink();
  shm::HandleRequest request{sink.handle, 0};
  uint32_t slot = b.Begin(shm::CommandOp::kDestroyQp, &request, sizeof(request));
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(b.IsDone(slot));
  EXPECT_EQ(world.device->Stats().qps, 5u);
}

TEST(UcTest, WriteAndSendOverUc) {
  TestWorld world;
  TestClient& a = world.AddClient(0);
  TestClient& b = world.AddClient(1);
  TestCq cq_a = a.MustCreateCq(), cq_b = b.MustCreateCq();
  TestQp qp_a = a.MustCreateQp(Service::kUc, cq_a), qp_b = b.MustCreateQp(Service::kUc, cq_b);
  Connect(a, qp_a, b, qp_b, Service::kUc);
  std::vector<uint8_t> from(20'000, 3), to(20'000, 0);
  TestMr mr_a = a.MustRegMr(from.data(), from.size(), access::kLocalWrite);
  TestMr mr_b = b.MustRegMr(to.data(), to.size(), access::kLocalWrite | access::kRemoteWrite);
  b.PostRecv(qp_b, 1, {});
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWriteWithImm, 9);
  wqe.remote_addr = reinterpret_cast<uint64_t>(to.data());
  wqe.rkey = mr_b.rkey;
  a.Post(qp_a, wqe, {SgeOf(from.data(), 20'000, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.Poll(cq_a).value().status, WcStatus::kSuccess);
  Wc wc = b.Poll(cq_b).value();
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(wc.byte_len, 20'000u);
  EXPECT_EQ(from, to);
  // The peer's death is not noticed: UC acknowledges nothing.
  world.Close(b);
  a.Post(qp_a, wqe, {SgeOf(from.data(), 20'000, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(a.Poll(cq_a).value().status, WcStatus::kSuccess);
}

}  // namespace
}  // namespace verbena::softnic::testing

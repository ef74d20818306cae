// Clients that lie, flood and die; fairness among the others; what `show` tells.
#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

class Hostile : public ::testing::Test {
 protected:
  Hostile()
      : liar(world.AddClient(0)),
        victim(world.AddClient(1)),
        cq_liar(liar.MustCreateCq()),
        cq_victim(victim.MustCreateCq()),
        qp_liar(liar.MustCreateQp(Service::kRc, cq_liar)),
        qp_victim(victim.MustCreateQp(Service::kRc, cq_victim)) {
    Connect(liar, qp_liar, victim, qp_victim, Service::kRc);
  }
  void ExpectFatalFor(const TestQp& qp, QpState state_of_victim = QpState::kRts) {
    world.Settle();
    EXPECT_EQ(liar.StateOf(qp), QpState::kErr);
    std::vector<EventType> events = liar.TakeAsyncEvents();
    EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kQpFatal), 1);
    EXPECT_EQ(world.device->Stats().hostile_acts, 1u);
    EXPECT_EQ(victim.StateOf(qp_victim), state_of_victim);
  }

  TestWorld world;
  TestClient& liar;
  TestClient& victim;
  TestCq cq_liar, cq_victim;
  TestQp qp_liar, qp_victim;
};

TEST_F(Hostile, ClaimOfMoreWqesThanFit) {
  qp_liar.sq.Reset(17);
  liar.Ring(qp_liar);
  ExpectFatalFor(qp_liar);
}

TEST_F(Hostile, IndexThatWentBack) {
  liar.PostInline(qp_liar, MakeWqe(shm::WrOpcode::kLocalInv, 1), "");
  qp_liar.sq.Reset(~0u);
  liar.Ring(qp_liar);
  world.Settle();
  EXPECT_EQ(liar.StateOf(qp_liar), QpState::kErr);
}

TEST_F(Hostile, MoreSgesThanTheQpHas) {
  std::vector<shm::Sge> sges(4);
  auto* entry = static_cast<std::byte*>(qp_liar.sq.Reserve());
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1);
  wqe.num_sge = 255;
  std::memcpy(entry, &wqe, sizeof(wqe));
  qp_liar.sq.Publish();
  liar.Ring(qp_liar);
  ExpectFatalFor(qp_liar);
}

TEST_F(Hostile, MoreInlineBytesThanTheQpHas) {
  auto* entry = static_cast<std::byte*>(qp_liar.sq.Reserve());
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1, shm::kSendInline);
  wqe.inline_bytes = 0xffff'ffff;
  std::memcpy(entry, &wqe, sizeof(wqe));
  qp_liar.sq.Publish();
  liar.Ring(qp_liar);
  ExpectFatalFor(qp_liar);
}

TEST_F(Hostile, MoreInTheHeadThanItHolds) {
  std::vector<shm::SendWqe> wqes(2, MakeWqe(shm::WrOpcode::kSend, 1, shm::kSendSmallBody));
  wqes[0].num_sge = 2;
  wqes[1].flags |= shm::kSendInline;
  wqes[1].inline_bytes = shm::kSmallBodyBytes + 1;
  TestQp qps[] = {qp_liar, liar.MustCreateQp(Service::kRc, cq_liar)};
  TestQp peer = victim.MustCreateQp(Service::kRc, cq_victim);
  Connect(liar, qps[1], victim, peer, Service::kRc);
  for (size_t i = 0; i < wqes.size(); ++i) {
    std::memcpy(qps[i].sq.Reserve(), &wqes[i], sizeof(shm::SendWqe));
    qps[i].sq.Publish();
    liar.Ring(qps[i]);
    world.Settle();
    EXPECT_EQ(liar.StateOf(qps[i]), QpState::kErr) << i;
    EXPECT_EQ(world.device->Stats().hostile_acts, i + 1);
  }
}

TEST_F(Hostile, ReceiveWithMoreSgesThanTheQpHas) {
  auto* entry = static_cast<std::byte*>(qp_liar.rq.Reserve());
  shm::RecvWqe wqe{1, 0xffff'ffff, 0};
  std::memcpy(entry, &wqe, sizeof(wqe));
  qp_liar.rq.Publish();
  victim.PostInline(qp_victim, MakeWqe(shm::WrOpcode::kSend, 1), "x");
  // The peer's work fails with "remote operational error".  Spec: IBTA 9.9.3, class A.
  ExpectFatalFor(qp_liar, QpState::kErr);
  EXPECT_EQ(victim.Poll(cq_victim).value().status, WcStatus::kRemOpErr);
}

TEST_F(Hostile, DoorbellsAndSessionsThatAreNone) {
  for (uint32_t doorbell : {0u, 63u, 64u + 1'000u, 65'535u, 65'536u, ~0u}) {
    EXPECT_FALSE(world.device->OnDoorbell(world.now, liar.id, doorbell)) << doorbell;
  }
  EXPECT_FALSE(world.device->OnDoorbell(world.now, 999, 64));
  world.device->OnDmaDone(world.now, ~uint64_t{0}, transport::DmaStatus::kOk, 0);
  world.device->OnDmaFence(world.now, 12'345);
  shm::CommandRequest request{};
  world.device->OnCommand(world.now, 999, 0, 1, request);
  world.device->CloseSession(world.now, 999);
  EXPECT_EQ(world.device->OpenSession(99, "x", 1, &liar.services), 0u);
}

TEST_F(Hostile, GarbageCommandsAndRingsHurtNobody) {
  std::mt19937 random(7);
  alignas(64) uint8_t memory[4'096] = {};
  TestMr mr = victim.MustRegMr(memory, sizeof(memory), kAll);
  size_t regions = world.dma.regions.size();
  for (int i = 0; i < 3'000; ++i) {
    shm::CommandRequest request{};
    for (uint8_t& byte : request.payload) byte = static_cast<uint8_t>(random() % 4 ? 0 : random());
    request.op = random() % 30;
    request.payload_bytes = random() % 2 ? random() % 500 : 8;
    uint32_t slot = 100'000 + static_cast<uint32_t>(i);
    liar.services.completed[slot] = {};
    world.device->OnCommand(world.now, liar.id, slot, 1, request);
    if (i % 100 == 0) world.Settle();
  }
  for (int i = 0; i < 2'000; ++i) {
    for (auto& [offset, queue] : liar.services.queues) {
      auto* bytes = static_cast<uint8_t*>(queue.memory);
      bytes[random() % queue.bytes] = static_cast<uint8_t>(random());
      bytes[random() % 128] = static_cast<uint8_t>(random());  // the head, with the indices
    }
    liar.Ring(qp_liar);
    world.Settle();
  }
  world.Settle();
  for (uint32_t i = 0; i < 3'000; ++i) EXPECT_TRUE(liar.IsDone(100'000 + i)) << i;
  for (uint8_t byte : memory) ASSERT_EQ(byte, 0);
  EXPECT_EQ(victim.DoHandle(shm::CommandOp::kDeregMr, mr.handle), 0);
  EXPECT_GE(world.dma.regions.size() + 1, regions);
  EXPECT_EQ(victim.StateOf(qp_victim), QpState::kRts);
}

TEST_F(Hostile, BusySessionsShareTheTurns) {
  // One client with 8 QPs full of work, and then one with a single message: that goes out after the
  // first's turn, not after all its work.
  TestClient& many = world.AddClient(0);
  TestCq cq_many = many.MustCreateCq(256);
  TestClient& sink = world.AddClient(1);
  TestCq cq_sink = sink.MustCreateCq(256);
  alignas(64) uint8_t memory[64] = {};
  TestMr mr = sink.MustRegMr(memory, 64, kAll);
  TestMr mr_victim = victim.MustRegMr(memory, 64, kAll);
  std::vector<TestQp> qps;
  for (int i = 0; i < 8; ++i) {
    qps.push_back(many.MustCreateQp(Service::kUc, cq_many));
    TestQp peer = sink.MustCreateQp(Service::kUc, cq_sink);
    Connect(many, qps[i], sink, peer, Service::kUc);
  }
  world.Settle();  // nobody is in line yet
  for (TestQp& qp : qps) {
    for (uint64_t i = 0; i < 16; ++i) {
      shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, i);
      wqe.remote_addr = reinterpret_cast<uint64_t>(memory);
      wqe.rkey = mr.rkey;
      many.PostInline(qp, wqe, "x");
    }
  }
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory);
  wqe.rkey = mr_victim.rkey;
  liar.PostInline(qp_liar, wqe, "y");
  world.dma.streams.clear();
  world.dma.is_held = true;
  world.device->Run(world.now, 1'000);
  const std::vector<uint64_t>& streams = world.dma.streams;
  ASSERT_EQ(streams.size(), 8u * 16 + 1);
  // The connection of the single message has the oldest QPs, so the lowest stream.
  auto single = std::min_element(streams.begin(), streams.end());
  EXPECT_EQ(std::count(streams.begin(), streams.end(), *single), 1);
  EXPECT_LE(single - streams.begin(), 32);
  // Nor does one QP keep the turn of its own session.
  EXPECT_EQ(std::count(streams.begin(), streams.begin() + 16, streams[0]), 8);
  world.dma.is_held = false;
  world.Settle();
}

TEST_F(Hostile, FlushOfAFullRingTakesTurns) {
  shm::CreateQpRequest request = liar.QpRequest(Service::kRc, cq_liar.handle);
  TestCq cq = liar.MustCreateCq(4'096);
  request.send_cq = request.recv_cq = cq.handle;
  request.max_recv_wr = 2'048;
  TestQp qp;
  ASSERT_EQ(liar.CreateQp(request, &qp), 0);
  ASSERT_EQ(liar.ToInit(qp, Service::kRc), 0);
  for (uint64_t i = 0; i < 2'048; ++i) TestClient::Fill(qp.rq, i, {});
  ASSERT_EQ(liar.ToError(qp), 0);
  size_t first = liar.PollAll(cq).size();
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, 2'048u);
  world.Settle();
  EXPECT_EQ(first + liar.PollAll(cq).size(), 2'048u);
}

TEST_F(Hostile, SessionsComeAndGoWithoutTrace) {
  for (int i = 0; i < 50; ++i) {
    TestClient& client = world.AddClient(0);
    shm::Handle channel = client.CreateChannel();
    TestCq cq = client.MustCreateCq(8, channel);
    TestQp qp = client.MustCreateQp(Service::kRc, cq);
    TestQp peer = victim.MustCreateQp(Service::kRc, cq_victim);
    Connect(client, qp, victim, peer, Service::kRc);
    uint8_t memory[64];
    client.MustRegMr(memory, 64, kAll);
    client.CreateAh(TestWorld::GidOf(1));
    TestSrq srq;
    ASSERT_EQ(client.CreateSrq(4, 1, &srq), 0);
    client.PostInline(qp, MakeWqe(shm::WrOpcode::kSend, 1), "x");
    if (i % 2 == 0) world.Settle();
    shm::HandleRequest request{qp.handle, 0};
    client.Begin(shm::CommandOp::kDestroyQp, &request, sizeof(request));
    world.Close(client);
    world.Close(client);                             // twice is once
    client.Begin(shm::CommandOp::kNop, nullptr, 0);  // nobody answers
    world.Settle();
    EXPECT_TRUE(world.device->SessionIsGone(client.id));
    EXPECT_TRUE(client.services.queues.empty());
    EXPECT_TRUE(client.services.open_channels.empty());
    ASSERT_EQ(victim.DoHandle(shm::CommandOp::kDestroyQp, peer.handle), 0);
  }
  DeviceStats stats = world.device->Stats();
  EXPECT_EQ(stats.sessions, 2u);
  EXPECT_EQ(stats.qps, 2u);
  EXPECT_EQ(stats.mrs + stats.ahs + stats.srqs + stats.channels, 0u);
}

TEST_F(Hostile, ShowTellsOwnersStatesAndKeys) {
  alignas(64) uint8_t memory[64] = {};
  TestMr mr = victim.MustRegMr(memory, 64, kAll);
  auto field = [](const ShowRow& row, const std::string& name) {
    for (const auto& [key, value] : row.fields) {
      if (key == name) return value;
    }
    return std::string("(none)");
  };
  std::vector<ShowRow> qps = world.device->Show(ShowKind::kQp);
  ASSERT_EQ(qps.size(), 2u);
  EXPECT_EQ(field(qps[0], "nic"), "verbena0");
  EXPECT_EQ(field(qps[0], "program"), "test");
  EXPECT_EQ(field(qps[0], "state"), "RTS");
  EXPECT_EQ(field(qps[0], "service"), "RC");
  EXPECT_EQ(field(qps[0], "remote_gid"), "::ffff:127.0.0.2");
  EXPECT_EQ(field(qps[0], "sq"), "0+0/16");
  std::vector<ShowRow> mrs = world.device->Show(ShowKind::kMr);
  ASSERT_EQ(mrs.size(), 1u);
  char key[16];
  std::snprintf(key, sizeof(key), "0x%x", mr.lkey);
  EXPECT_EQ(field(mrs[0], "key"), key);
  EXPECT_EQ(field(mrs[0], "backend"), "fake");
  EXPECT_EQ(field(mrs[0], "length"), "64");
  EXPECT_EQ(world.device->Show(ShowKind::kSession).size(), 2u);
  EXPECT_EQ(world.device->Show(ShowKind::kPd).size(), 2u);
  EXPECT_EQ(world.device->Show(ShowKind::kCq).size(), 2u);
  EXPECT_TRUE(world.device->Show(ShowKind::kSrq).empty());
  std::vector<ShowRow> commands = world.device->Show(ShowKind::kCommand);
  ASSERT_FALSE(commands.empty());
  EXPECT_EQ(field(commands.back(), "state"), "done");
  shm::HandleRequest request{mr.handle, 0};
  victim.Begin(shm::CommandOp::kDeregMr, &request, sizeof(request));
  EXPECT_EQ(field(world.device->Show(ShowKind::kCommand).back(), "state"), "waiting for DMA");
}

}  // namespace
}  // namespace verbena::softnic::testing

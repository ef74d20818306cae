// Messages in one step: that they are taken, and that nobody can tell but by the clock. The same
// random work goes through two worlds, one of which may not take the step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "softnic/device/test_direct.h"

namespace verbena::softnic::testing {
namespace {

TEST(Direct, SmallMessagesTakeTheStep) {
  DirectWorld world(true);
  for (uint64_t i = 0; i < 8; ++i) world.Write(0, i, 8);
  const uint64_t pdus_before = world.world.device->Stats().pdus;
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 8u);
  EXPECT_EQ(world.world.device->Stats().pdus, pdus_before + 16) << "and counted as ever";
  ASSERT_EQ(world.ends[0].sends.size(), 8u);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(world.ends[0].sends[i].wr_id, i);
  EXPECT_EQ(std::memcmp(world.ends[0].memory, world.ends[1].memory + 64, 8), 0);
}

TEST(Direct, SmallReadsTakeTheStep) {
  DirectWorld world(true);
  const End &end = world.ends[0], &peer = world.ends[1];
  const auto read = [&](uint64_t wr_id, uint32_t length, std::vector<shm::Sge> sges) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaRead, wr_id);
    wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory + 100);
    wqe.rkey = peer.mr.rkey;
    end.client->Post(*end.qp, wqe, sges);
    world.RunAll();
    EXPECT_EQ(end.all.back().wr_id, wr_id);
    EXPECT_EQ(end.all.back().opcode, shm::WcOpcode::kRdmaRead);
    EXPECT_EQ(end.all.back().byte_len, length);
    return end.all.back().status;
  };
  // More of them than may be outstanding: none is.
  for (uint64_t i = 0; i < 40; ++i) {
    peer.memory[100] = static_cast<uint8_t>(i);
    ASSERT_EQ(
        read(i, 24, {SgeOf(end.memory, 16, end.mr.lkey), SgeOf(end.memory + 50, 8, end.mr.lkey)}),
        WcStatus::kSuccess);
    ASSERT_EQ(std::memcmp(end.memory, peer.memory + 100, 16), 0);
    ASSERT_EQ(std::memcmp(end.memory + 50, peer.memory + 116, 8), 0);
  }
  EXPECT_EQ(world.world.dma.moved_now, 40u);
  EXPECT_EQ(read(77, 0, {}), WcStatus::kSuccess);
  // Both ways to memory have to be allowed.
  const TestMr own = end.client->MustRegMr(end.memory, 64, 0);
  EXPECT_EQ(read(78, 8, {SgeOf(end.memory, 8, own.lkey)}), WcStatus::kLocProtErr);
  EXPECT_EQ(world.world.dma.moved_now, 40u);
}

TEST(Direct, AQpThatTakesNoReadsTakesNone) {
  DirectWorld world(true);
  shm::QpAttr attr{};
  attr.qp_access_flags = access::kRemoteWrite;
  const End &end = world.ends[0], &peer = world.ends[1];
  ASSERT_EQ(peer.client->Modify(*peer.qp, attr, shm::qp_mask::kAccessFlags), 0);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaRead, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory);
  wqe.rkey = peer.mr.rkey;
  end.client->Post(*end.qp, wqe, {SgeOf(end.memory, 8, end.mr.lkey)});
  world.RunAll();
  ASSERT_EQ(end.sends.size(), 1u);
  EXPECT_EQ(end.sends.back().status, WcStatus::kRemInvReqErr);
  EXPECT_EQ(world.world.dma.moved_now, 0u);
}

// So many that their lines are asked for ahead: what is looked at may be gone, or have failed.
TEST(Direct, ManyRungTogetherAreServedEach) {
  TestWorld world(1);
  world.dma.moves_now = true;
  TestClient& client = world.AddClient(0);
  constexpr size_t kQps = 300;
  std::vector<uint64_t> memory(2 * kQps);
  TestMr mr = client.MustRegMr(memory.data(), memory.size() * 8, kAll);
  TestCq cq = client.MustCreateCq(2 * kQps);
  std::vector<TestQp> qps;
  for (size_t i = 0; i < kQps; ++i) qps.push_back(client.MustCreateQp(Service::kRc, cq));
  for (size_t i = 0; i < kQps; i += 2) Connect(client, qps[i], client, qps[i + 1], Service::kRc);
  std::vector<uint32_t> doorbells;
  const auto post = [&](size_t i, uint64_t value) {
    memory[i] = value;
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, i, shm::kSendSignaled);
    wqe.remote_addr = reinterpret_cast<uint64_t>(&memory[kQps + i]);
    wqe.rkey = mr.rkey;
    wqe.num_sge = 1;
    const shm::Sge sge = SgeOf(&memory[i], 8, mr.lkey);
    auto* entry = static_cast<std::byte*>(qps[i].sq.Reserve());
    ASSERT_NE(entry, nullptr);
    std::memcpy(entry, &wqe, sizeof(wqe));
    std::memcpy(entry + sizeof(wqe), &sge, sizeof(sge));
    qps[i].sq.Publish();
    doorbells.push_back(qps[i].reply.sq.doorbell);
  };
  const auto ring = [&] {
    const auto count = static_cast<uint32_t>(doorbells.size());
    const uint32_t fruitless =
        world.device->OnDoorbells(world.now, client.id, doorbells.data(), count);
    doorbells.clear();
    world.Settle();
    return fruitless;
  };
  // The first message of a connection goes the long way, the second in one step.
  for (uint64_t round : {1, 2}) {
    for (size_t i = 0; i < kQps; ++i) post(i, round << 32 | i);
    world.dma.moved_now = 0;
    EXPECT_EQ(ring(), 0u);
    EXPECT_EQ(client.PollAll(cq).size(), kQps);
    for (size_t i = 0; i < kQps; ++i) ASSERT_EQ(memory[kQps + i], round << 32 | i);
  }
  EXPECT_EQ(world.dma.moved_now, kQps);
  // Every third is destroyed, and is rung all the same; another one has failed.
  for (size_t i = 0; i < kQps; ++i) post(i, uint64_t{3} << 32 | i);
  uint32_t gone = 0;
  for (size_t i = 0; i < kQps; i += 3, ++gone) {
    ASSERT_EQ(client.DoHandle(shm::CommandOp::kDestroyQp, qps[i].handle), 0);
  }
  ASSERT_EQ(client.ToError(qps[1]), 0);
  EXPECT_EQ(ring(), gone + 1);
  for (size_t i = 0; i < kQps; ++i) {
    const bool has_arrived = i % 3 != 0 && (i ^ 1) % 3 != 0 && i != 1;
    EXPECT_EQ(memory[kQps + i] >> 32, has_arrived ? 3u : 2u) << i;
  }
}

// ... by their bytes, too: the turn of another QP comes before many large ones are through.
TEST(Direct, LargeMessagesTakeTheStepByTurns) {
  DirectWorld world(true);
  constexpr uint64_t kLarge = 16;
  for (uint64_t i = 0; i < kLarge; ++i) world.Write(0, i, kDirectBytesMax);
  world.Write(1, 100, 8);
  world.world.device->Run(world.world.now, 40);
  const uint64_t moved = world.world.dma.moved_now;
  EXPECT_GE(moved, 8u);
  EXPECT_LE(moved, 14u) << "40 steps";
  const std::vector<Wc> other = world.ends[1].client->PollAll(*world.ends[1].cq);
  ASSERT_EQ(other.size(), 1u) << "waited for all of the large ones";
  EXPECT_EQ(other[0].wr_id, 100u);
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, kLarge + 1);
  ASSERT_EQ(world.ends[0].sends.size(), kLarge);
  for (uint64_t i = 0; i < kLarge; ++i) EXPECT_EQ(world.ends[0].sends[i].wr_id, i);
}

// Nothing is told of them, and their places in the queue are free again.
TEST(Direct, WritesWithoutACompletionGoOnForEver) {
  DirectWorld world(true);
  const End& end = world.ends[0];
  const uint32_t entries = end.qp->sq.limit();
  for (uint32_t i = 0; i < 3 * entries; ++i) {
    world.Write(0, i, 8, 0);
    world.Settle();
  }
  world.Write(0, 77, 8);
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 3 * entries + 1);
  ASSERT_EQ(end.sends.size(), 1u);
  EXPECT_EQ(end.sends[0].wr_id, 77u);
}

// A WRITE is over at once, a SEND is when its receiver has been told: in one turn.
TEST(Direct, CompletionsKeepTheirOrder) {
  DirectWorld world(true, Peers::kOneQp);
  const End& end = world.ends[0];
  for (uint64_t i = 0; i < 6; ++i) world.Receive(0, 100 + i, 64);
  for (uint64_t i = 0; i < 6; i += 2) {
    end.client->PostInline(*end.qp, MakeWqe(shm::WrOpcode::kSend, i), "one");
    world.Write(0, i + 1, 8);
  }
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 6u);
  ASSERT_EQ(end.sends.size(), 6u);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(end.sends[i].wr_id, i);
}

// What could not go in one step goes, once, and so does what is behind it.
TEST(Direct, AWriteThatCannotMoveAtOnceIsNotLost) {
  DirectWorld world(true);
  const End& end = world.ends[0];
  world.world.dma.moves_now = false;
  for (uint64_t i = 0; i < 3; ++i) world.Write(0, i, 8);
  world.Settle();
  world.world.dma.moves_now = true;
  for (uint64_t i = 3; i < 6; ++i) world.Write(0, i, 8);
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 3u);
  ASSERT_EQ(end.sends.size(), 6u);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(end.sends[i].wr_id, i);
}

// The step finds out; what stands before the lie is done.
TEST(Direct, AQueueThatLiesFailsItsQp) {
  for (bool in_a_wqe : {false, true}) {
    for (uint64_t honest : {0, 1, 2}) {
      SCOPED_TRACE(honest);
      DirectWorld world(true);
      const End& end = world.ends[0];
      for (uint64_t i = 0; i < honest; ++i) world.Write(0, i, 8);
      if (in_a_wqe) {
        shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 77);
        wqe.num_sge = 255;
        std::memcpy(end.qp->sq.Reserve(), &wqe, sizeof(wqe));
        end.qp->sq.Publish();
      } else {
        world.Settle();
        end.qp->sq.Reset(1'000);
      }
      end.client->Ring(*end.qp);
      world.RunAll();
      EXPECT_EQ(world.world.dma.moved_now, honest);
      EXPECT_EQ(world.StateOf(0), QpState::kErr);
      EXPECT_EQ(end.client->TakeAsyncEvents(), std::vector{EventType::kQpFatal});
      EXPECT_EQ(world.world.device->Stats().hostile_acts, 1u);
      EXPECT_EQ(world.StateOf(1), QpState::kRts);
      ASSERT_EQ(end.sends.size(), honest);
      for (const Wc& wc : end.sends) EXPECT_EQ(wc.status, WcStatus::kSuccess);
    }
  }
}

TEST(Direct, SendFindsItsReceive) {
  DirectWorld world(true);
  world.Receive(1, 7, 100);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSendWithImm, 1);
  wqe.imm_or_rkey = 0x0102'0304;
  world.ends[0].client->PostInline(*world.ends[0].qp, wqe, "hello");
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 1u);
  ASSERT_EQ(world.ends[1].receives.size(), 1u);
  const Wc& wc = world.ends[1].receives[0];
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.byte_len, 5u);
  EXPECT_EQ(wc.imm, 0x0102'0304u);
  EXPECT_EQ(std::memcmp(world.ends[1].memory + kInboxAt, "hello", 5), 0);
}

TEST(Direct, AQpConnectedToItselfReceivesBeforeItHasSent) {
  DirectWorld world(true, Peers::kOneQp);
  world.Receive(0, 7, 100);
  world.ends[0].client->PostInline(*world.ends[0].qp, MakeWqe(shm::WrOpcode::kSend, 1), "me");
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 1u);
  ASSERT_EQ(world.ends[0].all.size(), 2u);
  EXPECT_EQ(world.ends[0].all[0].wr_id, 7u);
  EXPECT_EQ(world.ends[0].all[1].wr_id, 1u);
}

TEST(Direct, WhatFailedIsToldBeforeTheReceivesThatAreFlushedForIt) {
  for (bool moves_now : {true, false}) {
    DirectWorld world(moves_now);
    End &end = world.ends[0], &peer = world.ends[1];
    world.Receive(0, 7, 100);
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory);
    wqe.rkey = peer.mr.rkey ^ 1;
    end.client->Post(*end.qp, wqe, {SgeOf(end.memory, 8, end.mr.lkey)});
    world.RunAll();
    ASSERT_EQ(end.all.size(), 2u);
    EXPECT_EQ(end.all[0].status, WcStatus::kRemAccessErr);
    EXPECT_EQ(end.all[1].status, WcStatus::kWrFlushErr);
  }
}

// Each of these has to be refused, waited for, or ordered by the roles.
TEST(Direct, WhatIsNotAsUsualGoesTheUsualWay) {
  DirectWorld world(true);
  End &end = world.ends[0], &peer = world.ends[1];
  world.Write(0, 1, kDirectBytesMax + 1);  // large
  world.Settle();
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kAtomicFetchAndAdd, 2);
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory);
  wqe.rkey = peer.mr.rkey;
  end.client->Post(*end.qp, wqe, {SgeOf(end.memory, 8, end.mr.lkey)});
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 0u);
  // A receive that is not there yet: the sender is told to wait, and goes on after that.
  end.client->PostInline(*end.qp, MakeWqe(shm::WrOpcode::kSend, 3), "late");
  world.Settle();
  EXPECT_EQ(end.sends.size(), 2u);
  world.Receive(1, 8, 100);
  world.RunAll();
  EXPECT_EQ(end.sends.size(), 3u);
  EXPECT_EQ(world.world.dma.moved_now, 0u);
  world.Write(0, 4, 8);  // and what follows takes the step again
  world.Settle();
  EXPECT_EQ(world.world.dma.moved_now, 1u);
  wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 5);
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory + kEndBytes - 4);  // beyond the end
  wqe.rkey = peer.mr.rkey;
  end.client->Post(*end.qp, wqe, {SgeOf(end.memory, 8, end.mr.lkey)});
  world.Settle();
  EXPECT_EQ(end.sends.back().status, WcStatus::kRemAccessErr);
  EXPECT_EQ(world.world.dma.moved_now, 1u);
}

TEST(Direct, AQpThatTakesNoWritesTakesNone) {
  DirectWorld world(true);
  shm::QpAttr attr{};
  attr.qp_access_flags = access::kRemoteRead;
  const End &end = world.ends[0], &peer = world.ends[1];
  ASSERT_EQ(peer.client->Modify(*peer.qp, attr, shm::qp_mask::kAccessFlags), 0);
  world.Write(0, 1, 8);
  world.Settle();
  ASSERT_EQ(end.sends.size(), 1u);
  EXPECT_EQ(end.sends.back().status, WcStatus::kRemInvReqErr);
  EXPECT_EQ(world.world.dma.moved_now, 0u);
}

TEST(Direct, WhatFailsHereTakesNoReceiveThere) {
  TestPair<> pair;
  TestSrq srq;
  ASSERT_EQ(pair.b.CreateSrq(4, 1, &srq), 0);
  TestQp from = pair.a.MustCreateQp(Service::kRc, pair.cq_a), to;
  shm::CreateQpRequest request = pair.b.QpRequest(Service::kRc, pair.cq_b.handle);
  request.srq = srq.handle;
  ASSERT_EQ(pair.b.CreateQp(request, &to), 0);
  Connect(pair.a, from, pair.b, to, Service::kRc);
  const TestMr mr_a = pair.a.MustRegMr(pair.memory_a, 4'096, kAll);
  const TestMr mr_b = pair.b.MustRegMr(pair.memory_b, 4'096, kAll);
  pair.world.dma.moves_now = true;
  for (uint64_t i = 1; i <= 3; ++i) {
    pair.b.PostSrqRecv(srq, i, {SgeOf(pair.memory_b, 64, mr_b.lkey)});
  }
  for (uint32_t lkey : {mr_a.lkey, mr_a.lkey, mr_a.lkey + 1}) {
    pair.a.Post(from, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(pair.memory_a, 8, lkey)});
    pair.world.Settle();
  }
  EXPECT_EQ(pair.world.dma.moved_now, 1u);
  EXPECT_EQ(pair.b.PollAll(pair.cq_b).size(), 2u);
  // The third receive is still anybody's.
  TestQp from_2 = pair.a.MustCreateQp(Service::kRc, pair.cq_a), to_2;
  ASSERT_EQ(pair.b.CreateQp(request, &to_2), 0);
  Connect(pair.a, from_2, pair.b, to_2, Service::kRc);
  pair.a.Post(from_2, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(pair.memory_a, 8, mr_a.lkey)});
  pair.world.Settle();
  const std::vector<Wc> received = pair.b.PollAll(pair.cq_b);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].wr_id, 3u);
}

// --- the same work in both worlds ---------------------------------------------------------------

class DirectRandom : public ::testing::TestWithParam<std::tuple<uint32_t, Peers>> {};

TEST_P(DirectRandom, NobodyCanTell) {
  uint64_t moved_now = 0;
  const auto [part, peers] = GetParam();
  for (uint32_t seed = part * 60; seed < part * 60 + 60; ++seed) {
    SCOPED_TRACE(seed);
    Terms terms;
    terms.has_srq = peers == Peers::kTwo && seed % 3 == 0;
    if (seed % 4 == 0) terms.peer_path_mtu = seed % 8 == 0 ? 2 : 4;
    DirectWorld direct(true, peers, terms), usual(false, peers, terms);
    ProgramMaker program(seed, direct.terms);
    // One piece after the other: if two were under way, whose turn comes when would decide in which
    // order they complete.
    for (int i = 0; i < 16; ++i) {
      SCOPED_TRACE(i);
      const Burst burst = program.Draw();
      for (DirectWorld* world : {&direct, &usual}) world->CarryOut(burst);
      for (int at : {0, 1}) {
        ASSERT_EQ(direct.Tell(at, Told::kAll), usual.Tell(at, Told::kAll));
        ASSERT_EQ(std::memcmp(direct.ends[at].memory, usual.ends[at].memory, kEndBytes), 0);
      }
      ASSERT_EQ(direct.world.device->Stats().pdus, usual.world.device->Stats().pdus);
      if (!direct.IsReady()) {
        for (DirectWorld* world : {&direct, &usual}) world->Renew();
      }
    }
    EXPECT_EQ(usual.world.dma.moved_now, 0u);
    moved_now += direct.world.dma.moved_now;
  }
  EXPECT_GT(moved_now, 250u) << "or this shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Seeds, DirectRandom,
                         ::testing::Combine(::testing::Range(0u, 4u),
                                            ::testing::Values(Peers::kTwo, Peers::kOneQp)));

}  // namespace
}  // namespace verbena::softnic::testing

// Messages in one step: that they are taken, and that nobody can tell but by the clock. The same
// random work goes through two worlds, one of which may not take the step.
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
constexpr uint32_t kDirectBytesMax = 65'536;
constexpr uint32_t kBytes = 160'000;

struct End {
  TestClient* client;
  TestCq* cq;
  TestQp* qp;
  uint8_t* memory;
  TestMr mr;
  std::vector<Wc> sends, receives, all;
};

enum class Peers { kTwo, kOneQp };

class DirectWorld : protected TestPair<kBytes> {
 public:
  // kOneQp: both ends are one QP, connected to itself.
  explicit DirectWorld(bool moves_now, Peers peers = Peers::kTwo)
      : ends{End{&a, &cq_a, &qp_a, memory_a, {}, {}, {}, {}},
             End{&b, &cq_b, &qp_b, memory_b, {}, {}, {}, {}}} {
    world.dma.moves_now = moves_now;
    if (peers == Peers::kOneQp) {
      loop_ = a.MustCreateQp(Service::kRc, cq_a);
      EXPECT_EQ(a.ToInit(loop_, Service::kRc), 0);
      EXPECT_EQ(a.ToRtr(loop_, Service::kRc, TestWorld::GidOf(a.nic), loop_.qpn), 0);
      EXPECT_EQ(a.ToRts(loop_, Service::kRc), 0);
      ends[0].qp = ends[1].qp = &loop_;
      ends[1].client = &a;
      ends[1].cq = &cq_a;
    }
    for (End& end : ends) {
      end.mr = end.client->MustRegMr(end.memory, kBytes, kAll);
      for (uint32_t i = 0; i < kBytes; ++i) end.memory[i] = static_cast<uint8_t>(i * 7 + i / 256);
    }
    // The first message of a connection, which has an event of its own.
    for (int i : {0, 1}) Write(i, 0, 8, 0);
    Settle();
    world.dma.moved_now = 0;
  }

  void Write(int from, uint64_t wr_id, uint32_t bytes, uint8_t flags = shm::kSendSignaled) {
    End &end = ends[from], &peer = ends[1 - from];
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, wr_id, flags);
    wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory + 64);
    wqe.rkey = peer.mr.rkey;
    end.client->Post(*end.qp, wqe, {SgeOf(end.memory, bytes, end.mr.lkey)});
  }
  void Receive(int at, uint64_t wr_id, uint32_t bytes) {
    End& end = ends[at];
    end.client->PostRecv(*end.qp, wr_id, {SgeOf(end.memory + 128, bytes, end.mr.lkey)});
  }
  // Runs until nothing moves; completions go to the ends' lists.
  void Settle() {
    world.Settle();
    for (End& end : ends) {
      for (const Wc& wc : end.client->PollAll(*end.cq)) {
        (wc.is_send ? end.sends : end.receives).push_back(wc);
        end.all.push_back(wc);
      }
    }
  }
  // ... and lets pass what time a few timers take: a sender that is told to wait tries for ever.
  void RunAll() {
    Settle();
    for (int i = 0; i < 4 && world.AdvanceToTimer(); ++i) Settle();
  }
  bool HasFailed() {
    return ends[0].client->StateOf(*ends[0].qp) == QpState::kErr ||
           ends[1].client->StateOf(*ends[1].qp) == QpState::kErr;
  }
  shm::QpAttr Query(int at) {
    shm::HandleRequest request{ends[at].qp->handle, 0};
    shm::QueryQpReply reply{};
    EXPECT_EQ(ends[at].client->Execute(shm::CommandOp::kQueryQp, request, &reply), 0);
    return reply.attr;
  }

  using TestPair::world;
  std::array<End, 2> ends;

 private:
  TestQp loop_;
};

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
  EXPECT_EQ(std::memcmp(world.ends[1].memory + 128, "hello", 5), 0);
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
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaRead, 2);
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
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory + kBytes - 4);  // beyond the end
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

bool TakesReceive(shm::WrOpcode opcode) {
  return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm ||
         opcode == shm::WrOpcode::kRdmaWriteWithImm;
}

// Posts one piece of random work, and runs it to its end: if two were under way, whose turn comes
// when would decide what is read from where the other writes. What is drawn depends on the random
// numbers alone.
void PostRandom(DirectWorld& world, std::mt19937& random, uint64_t wr_id) {
  auto draw = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const int from = static_cast<int>(draw(2));
  End &end = world.ends[from], &peer = world.ends[1 - from];
  const uint32_t sizes[] = {0, 1, 8, 63, 1'024, 6'000, kDirectBytesMax, kDirectBytesMax + 1};
  const uint32_t bytes = sizes[draw(8)];
  const uint64_t here = draw(4'000), there = 80'000 + draw(4'000);
  const uint8_t flags = draw(4) == 0 ? 0 : shm::kSendSignaled;
  using Op = shm::WrOpcode;
  const Op ops[] = {Op::kRdmaWrite,        Op::kRdmaWrite,        Op::kSend,
                    Op::kSendWithImm,      Op::kRdmaRead,         Op::kSend,
                    Op::kRdmaWriteWithImm, Op::kAtomicFetchAndAdd};
  const Op op = ops[draw(8)];
  shm::SendWqe wqe = MakeWqe(op, wr_id, flags);
  const bool is_atomic = op == Op::kAtomicFetchAndAdd;
  const bool takes_receive = TakesReceive(op);
  // Now and then it comes late.
  const bool is_late = draw(16) == 0;
  const uint32_t room = draw(64) == 0 ? 16 : 70'000;
  if (takes_receive && !is_late) world.Receive(1 - from, wr_id, room);
  wqe.flags |= draw(10) == 0 ? shm::kSendFence : 0;
  wqe.flags |= draw(4) == 0 ? shm::kSendSolicited : 0;
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory) + (is_atomic ? there & ~7ull : there);
  wqe.rkey = peer.mr.rkey;
  wqe.imm_or_rkey = static_cast<uint32_t>(wr_id);
  wqe.atomic.compare_add = 3;
  const bool is_inline = draw(2) == 0 && !is_atomic && bytes < 64 && op != Op::kRdmaRead;
  if (is_inline) {
    end.client->PostInline(*end.qp, wqe, std::string(bytes, static_cast<char>(wr_id)));
  } else {
    const uint32_t fault = draw(200);
    if (fault == 0) wqe.rkey ^= 1;
    const uint32_t lkey = fault == 1 ? end.mr.lkey ^ 1 : end.mr.lkey;
    const uint32_t length = is_atomic ? 8 : bytes;
    end.client->Post(*end.qp, wqe,
                     {SgeOf(end.memory + here, length / 3, lkey),
                      SgeOf(end.memory + here + 1'000, length - length / 3, lkey)});
  }
  world.RunAll();
  if (!takes_receive || !is_late) return;
  world.Receive(1 - from, wr_id, room);
  world.RunAll();
}

auto AsTuple(const Wc& wc) {
  return std::tuple(wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm, wc.flags, wc.vendor_err);
}

class DirectRandom : public ::testing::TestWithParam<std::tuple<uint32_t, Peers>> {};

TEST_P(DirectRandom, NobodyCanTell) {
  uint64_t moved_now = 0;
  const auto [hundred, peers] = GetParam();
  for (uint32_t seed = hundred * 100; seed < hundred * 100 + 100; ++seed) {
    SCOPED_TRACE(seed);
    DirectWorld direct(true, peers), usual(false, peers);
    for (DirectWorld* world : {&direct, &usual}) {
      std::mt19937 random(seed);
      for (uint64_t i = 1; i <= 60 && !world->HasFailed(); ++i) PostRandom(*world, random, i);
      world->RunAll();
    }
    EXPECT_EQ(usual.world.dma.moved_now, 0u);
    moved_now += direct.world.dma.moved_now;
    for (int at : {0, 1}) {
      for (auto list : {&End::sends, &End::receives, &End::all}) {
        const auto &ours = direct.ends[at].*list, &theirs = usual.ends[at].*list;
        ASSERT_EQ(ours.size(), theirs.size());
        for (size_t i = 0; i < ours.size(); ++i) ASSERT_EQ(AsTuple(ours[i]), AsTuple(theirs[i]));
      }
      EXPECT_EQ(std::memcmp(direct.ends[at].memory, usual.ends[at].memory, kBytes), 0);
      const shm::QpAttr ours = direct.Query(at), theirs = usual.Query(at);
      EXPECT_EQ(ours.qp_state, theirs.qp_state);
      EXPECT_EQ(ours.sq_psn, theirs.sq_psn);
      EXPECT_EQ(ours.rq_psn, theirs.rq_psn);
      EXPECT_EQ(direct.ends[at].client->TakeAsyncEvents(),
                usual.ends[at].client->TakeAsyncEvents());
    }
    EXPECT_EQ(direct.world.device->Stats().pdus, usual.world.device->Stats().pdus);
    if (HasFailure()) return;
  }
  EXPECT_GT(moved_now, 300u) << "or this shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Seeds, DirectRandom,
                         ::testing::Combine(::testing::Range(0u, 4u),
                                            ::testing::Values(Peers::kTwo, Peers::kOneQp)));

}  // namespace
}  // namespace verbena::softnic::testing

// Completions of WRITEs in one step that are published together.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "softnic/device/test_direct.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kManyWrites = 16;  // completed in a turn, after which those of the next are held

// After a turn with many completions, those of the next are held.
class HeldWritesTest : public ::testing::Test {
 protected:
  HeldWritesTest() {
    world.world.dma.on_move_now = [this] { seen.push_back(Poll(0)); };
  }
  size_t Poll(int at) { return world.ends[at].client->PollAll(*world.ends[at].cq).size(); }
  void TakeTurn(uint64_t writes, uint32_t max_pdus = 64) {
    for (uint64_t i = 0; i < writes; ++i) world.Write(0, i, 8);
    world.world.device->Run(world.world.now, max_pdus);
  }
  void TakeLongTurn() {
    TakeTurn(kManyWrites);
    Poll(0);
    seen.clear();
  }

  DirectWorld world{true};
  // Completions that the client of end 0 found just before each message was moved.
  std::vector<size_t> seen;
};

TEST_F(HeldWritesTest, EightAreToldOfAtOnce) {
  TakeTurn(kManyWrites - 1);
  std::vector<size_t> each(kManyWrites - 1, 1);
  each[0] = 0;
  EXPECT_EQ(seen, each) << "whoever has few under way is told of each";
  Poll(0);
  TakeTurn(1);
  EXPECT_EQ(Poll(0), 1u);
  TakeLongTurn();
  TakeTurn(20);
  std::vector<size_t> by_eights(20);
  by_eights[8] = by_eights[16] = 8;
  EXPECT_EQ(seen, by_eights);
  EXPECT_EQ(Poll(0), 4u);
}

TEST_F(HeldWritesTest, NoneIsHeldBeyondItsTurn) {
  for (uint32_t steps : {1, 3, 8, 9, 20}) {
    TakeLongTurn();
    TakeTurn(20, steps);
    size_t told = Poll(0);
    for (size_t count : seen) told += count;
    EXPECT_EQ(told, steps);
    world.Settle();
    world.ends[0].sends.clear();
  }
}

// A large message of its own, one without a completion, and one that goes the long way.
TEST_F(HeldWritesTest, WhatTakesLongerIsNotWaitedFor) {
  TakeLongTurn();
  world.Write(0, 1, 8);
  world.Write(0, 2, 2'000);
  world.Write(0, 3, 8);
  world.Write(0, 4, 8, 0);
  world.Write(0, 5, 8);
  TakeTurn(0);
  EXPECT_EQ(seen, (std::vector<size_t>{0, 1, 0, 0, 2}));
  EXPECT_EQ(Poll(0), 1u);
  TakeLongTurn();
  size_t told_before = 0;
  world.world.dma.on_submit = [&] { told_before += Poll(0); };
  world.Write(0, 3, 8);
  world.Write(0, 4, kDirectBytesMax + 1);
  TakeTurn(0);
  EXPECT_EQ(told_before, 1u);
}

// Until it is told of, a WRITE is one that would be flushed if the daemon died.
TEST_F(HeldWritesTest, WqesAreReleasedWithTheirCompletions) {
  const TestQp& qp = *world.ends[0].qp;
  TakeLongTurn();
  const uint32_t before = qp.sq.ConsumerIndex();
  std::vector<uint32_t> released;
  world.world.dma.on_move_now = [&] { released.push_back(qp.sq.ConsumerIndex() - before); };
  TakeTurn(10);
  EXPECT_EQ(released, (std::vector<uint32_t>{0, 0, 0, 0, 0, 0, 0, 0, 8, 8}));
  EXPECT_EQ(qp.sq.ConsumerIndex() - before, 10u);
}

// Each by what it has itself.
TEST_F(HeldWritesTest, ABusyClientHoldsUpNoOther) {
  TakeLongTurn();
  std::vector<size_t> seen_by_other;
  world.world.dma.on_move_now = [&] { seen_by_other.push_back(Poll(1)); };
  for (uint64_t i = 0; i < 3; ++i) world.Write(1, i, 8);
  TakeTurn(0);
  EXPECT_EQ(seen_by_other, (std::vector<size_t>{0, 1, 1}));
}

TEST_F(HeldWritesTest, AShortTurnChangesNothingTwoDo) {
  TakeTurn(2 * kManyWrites);  // and one that finds nothing more
  for (const std::vector<size_t>& expected : {std::vector<size_t>{0, 0, 0}, {0, 1, 1}}) {
    Poll(0);
    seen.clear();
    TakeTurn(3);
    EXPECT_EQ(seen, expected);
  }
}

// WRITEs of one client to another, completed in a CQ that is small.
struct SmallCq {
  static constexpr uint32_t kEntries = 16;
  explicit SmallCq(uint32_t cq_flags) {
    VERBENA_CHECK(pair.a.CreateCq(kEntries, 0, &cq, cq_flags) == 0);
    from = pair.a.MustCreateQp(Service::kRc, cq);
    to = pair.b.MustCreateQp(Service::kRc, pair.cq_b);
    mr_a = pair.a.MustRegMr(pair.memory_a, 4'096, kAll);
    mr_b = pair.b.MustRegMr(pair.memory_b, 4'096, kAll);
    Begin();
  }
  void Begin() {
    Connect(pair.a, from, pair.b, to, Service::kRc);
    Post(1, 0);
    pair.world.Settle();
  }
  void Post(uint64_t count, uint8_t flags = shm::kSendSignaled) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1, flags);
    wqe.remote_addr = reinterpret_cast<uint64_t>(pair.memory_b);
    wqe.rkey = mr_b.rkey;
    for (; count != 0; --count) pair.a.Post(from, wqe, {SgeOf(pair.memory_a, 8, mr_a.lkey)});
  }
  void Run() { pair.world.device->Run(pair.world.now, 64); }

  TestPair<> pair;
  TestCq cq;
  TestQp from, to;
  TestMr mr_a, mr_b;
};

TEST(HeldWrites, WhatIsLostToAnOverrunIsReleasedAllTheSame) {
  constexpr uint32_t kIgnoreOverrun = 2;
  SmallCq it(kIgnoreOverrun);
  it.pair.world.dma.moves_now = true;
  const uint32_t before = it.from.sq.ConsumerIndex();
  constexpr uint32_t kTurns = 4;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    it.Post(SmallCq::kEntries);
    it.Run();
  }
  EXPECT_EQ(it.pair.world.dma.moved_now, kTurns * SmallCq::kEntries);
  EXPECT_EQ(it.from.sq.ConsumerIndex() - before, kTurns * SmallCq::kEntries);
  EXPECT_EQ(it.pair.a.StateOf(it.from), QpState::kRts);
  EXPECT_EQ(it.pair.a.PollAll(it.cq).size(), SmallCq::kEntries);
  it.Post(3);
  it.Run();
  EXPECT_EQ(it.pair.a.PollAll(it.cq).size(), 3u);
}

// Nobody is told of anything there, and nothing is amiss.
TEST(HeldWrites, AQpMayComeBackWithACqThatHasFailed) {
  SmallCq it(0);
  it.pair.world.dma.moves_now = true;
  it.Post(SmallCq::kEntries);
  it.Run();
  it.Post(1);
  it.pair.world.Settle();
  ASSERT_EQ(it.pair.a.StateOf(it.from), QpState::kErr);
  EXPECT_EQ(it.pair.a.PollAll(it.cq).size(), SmallCq::kEntries);
  ASSERT_EQ(it.pair.a.ToReset(it.from), 0);
  ASSERT_EQ(it.pair.b.ToReset(it.to), 0);
  it.Begin();
  const uint32_t before = it.from.sq.ConsumerIndex();
  constexpr uint32_t kTurns = 4;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    it.Post(SmallCq::kEntries);
    it.Run();
  }
  EXPECT_EQ(it.from.sq.ConsumerIndex() - before, kTurns * SmallCq::kEntries);
  EXPECT_TRUE(it.pair.a.PollAll(it.cq).empty());
}

TEST(HeldWrites, CompletionsOfSeveralCqsInOneTurn) {
  TestPair<> pair;
  pair.world.dma.moves_now = true;
  const TestMr mr_a = pair.a.MustRegMr(pair.memory_a, 4'096, kAll);
  const TestMr mr_b = pair.b.MustRegMr(pair.memory_b, 4'096, kAll);
  TestCq cqs[] = {pair.a.MustCreateCq(16), pair.a.MustCreateCq(16)};
  std::vector<TestQp> from;
  for (const TestCq& cq : cqs) {
    from.push_back(pair.a.MustCreateQp(Service::kRc, cq));
    TestQp to = pair.b.MustCreateQp(Service::kRc, pair.cq_b);
    Connect(pair.a, from.back(), pair.b, to, Service::kRc);
  }
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1, shm::kSendSignaled);
  wqe.remote_addr = reinterpret_cast<uint64_t>(pair.memory_b);
  wqe.rkey = mr_b.rkey;
  for (uint64_t count : {1, 8, 5}) {
    pair.world.dma.moved_now = 0;
    for (TestQp& qp : from) {
      for (uint64_t i = 0; i < count; ++i) {
        pair.a.Post(qp, wqe, {SgeOf(pair.memory_a, 8, mr_a.lkey)});
      }
    }
    pair.world.device->Run(pair.world.now, 64);
    if (count == 1) pair.world.Settle();
    for (TestCq& cq : cqs) EXPECT_EQ(pair.a.PollAll(cq).size(), count);
  }
  EXPECT_EQ(pair.world.dma.moved_now, 10u);
}

// The CQ is full in the middle of a turn: what was before is told, what is behind fails, and so it
// is when completions are held.
TEST(HeldWrites, ACqThatIsOverrunFailsItsQp) {
  for (bool moves_now : {true, false}) {
    SCOPED_TRACE(moves_now);
    SmallCq it(0);
    TestClient &a = it.pair.a, &b = it.pair.b;
    it.pair.world.dma.moves_now = moves_now;
    static_assert(SmallCq::kEntries == kManyWrites);
    it.Post(SmallCq::kEntries);
    it.Run();
    if (!moves_now) it.pair.world.Settle();
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(a.Poll(it.cq).has_value());
    it.pair.world.dma.moved_now = 0;
    it.Post(8);
    it.pair.world.Settle();
    EXPECT_EQ(it.pair.world.dma.moved_now, moves_now ? 5u : 0u) << "the fifth finds it full";
    EXPECT_EQ(a.StateOf(it.from), QpState::kErr);
    EXPECT_EQ(b.StateOf(it.to), QpState::kRts);
    EXPECT_EQ(a.PollAll(it.cq).size(), SmallCq::kEntries);
    const std::vector<EventType> events = a.TakeAsyncEvents();
    EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kCqErr), 1);
    EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kQpFatal), 1);
  }
}

}  // namespace
}  // namespace verbena::softnic::testing

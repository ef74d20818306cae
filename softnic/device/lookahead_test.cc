// With many QPs: the lines that the next messages write to are asked for while others are worked
// on. What is looked at for it is the client's, and may be anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr uint32_t kManyQps = 128;
constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite;

// One client's QPs, each connected to itself, which may move messages in one step.
class LookaheadTest : public ::testing::Test {
 protected:
  LookaheadTest() { world_.dma.moves_now = true; }

  void Open(uint32_t count) {
    cq_ = client_.MustCreateCq(1'024);
    mr_ = client_.MustRegMr(memory_.data(), memory_.size(), kAll);
    for (uint32_t i = 0; i < count; ++i) {
      qps_.push_back(client_.MustCreateQp(Service::kRc, cq_));
      TestQp& qp = qps_.back();
      ASSERT_EQ(client_.ToInit(qp, Service::kRc), 0);
      ASSERT_EQ(client_.ToRtr(qp, Service::kRc, TestWorld::GidOf(0), qp.qpn), 0);
      ASSERT_EQ(client_.ToRts(qp, Service::kRc), 0);
      Post(i, Write(i));  // the first of each goes the long way
    }
    EXPECT_EQ(Settle(), count);
    world_.dma.expected.clear();
  }
  uint64_t AddressOf(uint32_t i) {
    return reinterpret_cast<uint64_t>(memory_.data()) + 64 * (i + 1) + 32;
  }
  shm::SendWqe Write(uint32_t i) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, i, shm::kSendSignaled);
    wqe.remote_addr = AddressOf(i);
    wqe.rkey = mr_.rkey;
    return wqe;
  }
  void Post(uint32_t i, const shm::SendWqe& wqe) {
    client_.Post(qps_[i], wqe, {SgeOf(memory_.data(), 8, mr_.lkey)});
  }
  // Returns how many completions came, good ones.
  size_t Settle() {
    world_.Settle();
    size_t good = 0;
    for (const Wc& wc : client_.PollAll(cq_)) good += wc.status == WcStatus::kSuccess ? 1 : 0;
    return good;
  }
  bool IsExpected(uint64_t addr) const {
    return std::find(world_.dma.expected.begin(), world_.dma.expected.end(), addr) !=
           world_.dma.expected.end();
  }

  std::array<uint8_t, 64 * (kManyQps + 2)> memory_{};
  TestWorld world_{1};
  TestClient& client_ = world_.AddClient(0);
  TestCq cq_;
  TestMr mr_;
  std::vector<TestQp> qps_;
};

TEST_F(LookaheadTest, AsksForWhatEachWritesToBeforeItDoes) {
  Open(kManyQps);
  constexpr uint32_t kPosted = 70;  // several turns of the client
  std::vector<uint64_t> unexpected;
  uint32_t moved = 0;
  world_.dma.on_move_now = [&] {
    if (!IsExpected(AddressOf(moved))) unexpected.push_back(moved);
    ++moved;
  };
  for (uint32_t i = 0; i < kPosted; ++i) Post(i, Write(i));
  EXPECT_EQ(Settle(), kPosted);
  EXPECT_EQ(moved, kPosted);
  EXPECT_EQ(unexpected, std::vector<uint64_t>{});
  EXPECT_EQ(world_.dma.expected.size(), kPosted);
}

TEST_F(LookaheadTest, FewQpsAreInCacheAnyway) {
  Open(kManyQps - 1);
  for (uint32_t i = 0; i < 20; ++i) Post(i, Write(i));
  EXPECT_EQ(Settle(), 20u);
  EXPECT_TRUE(world_.dma.expected.empty());
}

TEST_F(LookaheadTest, AsksForNothingElse) {
  Open(kManyQps);
  TestClient& stranger = world_.AddClient(0);
  const TestMr of_stranger = stranger.MustRegMr(memory_.data(), memory_.size(), kAll);
  const TestMr to_read =
      client_.MustRegMr(memory_.data(), memory_.size(), access::kLocalWrite | access::kRemoteRead);
  std::vector<shm::SendWqe> wqes(6);
  for (uint32_t i = 0; i < wqes.size(); ++i) wqes[i] = Write(i);
  wqes[0].rkey ^= 0x5a00;
  wqes[1].remote_addr = AddressOf(kManyQps + 2);
  wqes[2].opcode = 0xee;
  wqes[3].rkey = 0;
  wqes[4].rkey = of_stranger.rkey;
  wqes[5].rkey = to_read.rkey;
  for (uint32_t i = 0; i < wqes.size(); ++i) Post(i, wqes[i]);
  EXPECT_EQ(Settle(), 0u);
  EXPECT_TRUE(world_.dma.expected.empty());
  for (uint32_t i = 0; i < wqes.size(); ++i) EXPECT_EQ(client_.StateOf(qps_[i]), QpState::kErr);
}

// Where a WRITE of the lap before is left.
TEST_F(LookaheadTest, ADoorbellWithNothingBehindItSaysNothing) {
  Open(kManyQps);
  const uint32_t lap = qps_[0].sq.limit();
  for (uint32_t n = 0; n < lap; ++n) {
    Post(0, Write(0));
    EXPECT_EQ(Settle(), 1u);
  }
  world_.dma.expected.clear();
  client_.Ring(qps_[0]);
  EXPECT_EQ(Settle(), 0u);
  EXPECT_TRUE(world_.dma.expected.empty());
}

// Of what was good when it was posted, too, the turn says what comes of it.
TEST_F(LookaheadTest, ARegionGoesBeforeTheTurn) {
  Open(kManyQps);
  const TestMr other = client_.MustRegMr(memory_.data(), memory_.size(), kAll);
  shm::SendWqe wqe = Write(0);
  wqe.rkey = other.rkey;
  Post(0, wqe);
  ASSERT_EQ(client_.DoHandle(shm::CommandOp::kDeregMr, other.handle), 0);
  EXPECT_EQ(Settle(), 0u);
  EXPECT_TRUE(world_.dma.expected.empty());
  EXPECT_EQ(client_.StateOf(qps_[0]), QpState::kErr);
}

}  // namespace
}  // namespace verbena::softnic::testing

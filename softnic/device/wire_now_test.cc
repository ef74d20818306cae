// Payload that a NIC reads and places at once, without its DMA engine's queue: small messages over
// a network, in memory that the NIC maps. Nobody can tell but by the clock.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

class WireNow : public Wire {
 protected:
  void SetUp() override {
    Connect(Service::kRc);
    a->dma.moves_now = b->dma.moves_now = true;
  }
  void Write(uint64_t offset, uint32_t bytes) {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite, offset),
               {SgeOf(from.data() + offset, bytes, mr_a.lkey)});
  }
};

TEST_P(WireNow, ASmallWriteWaitsForNoEngine) {
  Write(0, 8);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(a->dma.moved_now, 1u) << "read into its packet";
  EXPECT_EQ(b->dma.moved_now, 1u) << "and out of it";
  EXPECT_TRUE(a->dma.streams.empty());
  EXPECT_TRUE(b->dma.streams.empty());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), 8), 0);
  EXPECT_EQ(to[8], 0);
}

TEST_P(WireNow, ASendOfSeveralPiecesFindsItsReceive) {
  bob.PostRecv(qp_b, 3, {SgeOf(to.data(), 5, mr_b.lkey), SgeOf(to.data() + 64, 100, mr_b.lkey)});
  alice.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 1),
             {SgeOf(from.data(), 3, mr_a.lkey), SgeOf(from.data() + 3, 17, mr_a.lkey)});
  EXPECT_EQ(Wait(bob, cq_b), WcStatus::kSuccess);
  EXPECT_EQ(last.byte_len, 20u);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), 5), 0);
  EXPECT_EQ(std::memcmp(from.data() + 5, to.data() + 64, 15), 0);
  EXPECT_EQ(a->dma.moved_now + b->dma.moved_now, 2u);
}

TEST_P(WireNow, WhatIsUnderWayComesFirst) {
  // The later write is small, and to the same place.
  a->dma.is_held = true;
  Write(0, 4096);
  a->Settle();
  a->dma.is_held = false;
  from[0] = 77;
  b->dma.is_held = true;
  Write(0, 8);
  Settle();
  b->dma.is_held = false;
  Settle();
  EXPECT_EQ(alice.PollAll(cq_a).size(), 2u);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), 4096), 0);
  EXPECT_EQ(to[0], 77);
}

TEST_P(WireNow, MemoryThatIsGoneIsAFaultAsEver) {
  a->dma.bad_addr = reinterpret_cast<uint64_t>(from.data()) + 3;
  Write(0, 8);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kLocProtErr);
  EXPECT_EQ(a->dma.moved_now, 0u);
}

TEST_P(WireNow, AKeyThatWentIsRefusedAsEver) {
  Write(0, 8);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(bob.DoHandle(shm::CommandOp::kDeregMr, mr_b.handle), 0);
  Settle();
  Write(0, 8);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kRemAccessErr);
}

// The same random work, at once and through the engine: memory and completions are equal.
TEST_P(WireNow, NobodyCanTell) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<uint8_t> memory[2];
    std::vector<uint64_t> completed[2];
    for (bool moves_now : {false, true}) {
      a->dma.moves_now = b->dma.moves_now = moves_now;
      std::iota(to.begin(), to.end(), uint8_t{3});
      std::mt19937 random(seed);
      for (uint64_t i = 0; i < 40; ++i) {
        const uint32_t bytes = random() % 4 == 0 ? random() % 20'000 : random() % 600;
        const bool is_read = random() % 4 == 0;
        // Without a fence a READ may be answered after the WRITE behind it: elsewhere.
        shm::SendWqe wqe = Rdma(is_read ? shm::WrOpcode::kRdmaRead : shm::WrOpcode::kRdmaWrite,
                                (is_read ? 100'000 : 0) + random() % 20'000);
        wqe.wr_id = i;
        const uint32_t at = is_read ? 200'000 + random() % 20'000 : random() % 20'000;
        alice.Post(qp_a, wqe, {SgeOf(from.data() + at, bytes, mr_a.lkey)});
        if (random() % 3 == 0) Settle();
      }
      Settle();
      memory[moves_now] = to;
      memory[moves_now].insert(memory[moves_now].end(), from.begin() + 200'000, from.end());
      for (const Wc& wc : alice.PollAll(cq_a)) {
        EXPECT_EQ(wc.status, WcStatus::kSuccess);
        completed[moves_now].push_back(wc.wr_id);
      }
    }
    EXPECT_EQ(completed[0].size(), 40u);
    EXPECT_EQ(completed[0], completed[1]);
    EXPECT_TRUE(memory[0] == memory[1]) << seed;
  }
  EXPECT_GT(a->dma.moved_now, 100u);
  EXPECT_GT(b->dma.moved_now, 100u);
}

INSTANTIATE_TEST_SUITE_P(Packets, WireNow, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing

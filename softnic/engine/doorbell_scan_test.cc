#include "softnic/engine/doorbell_scan.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace verbena::softnic {
namespace {

constexpr uint32_t kPerTurn = 64;

class DoorbellScanTest : public ::testing::Test {
 protected:
  // At most `budget` doorbells, a leaf without bits counted as one; each is given to `serve`.
  void Turn(uint32_t budget, const std::function<void(uint32_t)>& serve) {
    scan.Take(shared);
    while (budget != 0 && scan.HasBits()) {
      if (scan.leaf_bits == 0) {
        scan.TakeLeaf(shared);
        --budget;
      }
      for (; budget != 0 && scan.leaf_bits != 0; --budget) {
        const auto bit = static_cast<uint32_t>(std::countr_zero(scan.leaf_bits));
        scan.leaf_bits &= scan.leaf_bits - 1;
        serve(scan.leaf * 64 + bit);
      }
    }
  }
  std::multiset<uint32_t> ServeAll() {
    std::multiset<uint32_t> served;
    do {
      Turn(kPerTurn, [&](uint32_t doorbell) { served.insert(doorbell); });
    } while (scan.HasBits());
    return served;
  }

  const std::unique_ptr<shm::DoorbellPage> memory = std::make_unique<shm::DoorbellPage>();
  shm::DoorbellPage& shared = *memory;
  DoorbellScan scan;
};

TEST_F(DoorbellScanTest, EachDoorbellIsServedOnce) {
  std::multiset<uint32_t> rung;
  EXPECT_FALSE(scan.HasRung(shared));
  for (uint32_t i = 0; i < shm::kMaxDoorbells; i += 37) {
    shared.Set(i);
    rung.insert(i);
  }
  EXPECT_TRUE(scan.HasRung(shared));
  EXPECT_EQ(ServeAll(), rung);
  EXPECT_FALSE(scan.HasRung(shared));
  EXPECT_TRUE(ServeAll().empty());
}

// Whoever is served rings again at once, and there are more than a turn serves.
TEST_F(DoorbellScanTest, WhoRingsAllTheTimeStarvesNobody) {
  constexpr uint32_t kBusy = 64 * 64;
  for (uint32_t busy_from : {0u, 64u, 4'096u}) {
    for (uint32_t rare : {70u, 4'000u, 4'095u, 9'000u, shm::kMaxDoorbells - 1}) {
      SCOPED_TRACE(testing::Message() << busy_from << " " << rare);
      for (uint32_t i = 0; i < kBusy; ++i) {
        if (busy_from + i != rare) shared.Set(busy_from + i);
      }
      Turn(kPerTurn, [&](uint32_t doorbell) { shared.Set(doorbell); });
      shared.Set(rare);
      int turns = 0;
      for (bool is_served = false; !is_served; ++turns) {
        ASSERT_LT(turns, 4 * 64) << "more than all of them take twice";
        Turn(kPerTurn, [&](uint32_t doorbell) {
          is_served |= doorbell == rare;
          if (doorbell != rare) shared.Set(doorbell);
        });
      }
      ServeAll();
    }
  }
}

// ... nor has who waits for a command, however many of its other queues ring.
TEST_F(DoorbellScanTest, ACommandWaitsForNoRound) {
  for (uint32_t i = 64; i < 64 * 64; ++i) shared.Set(i);
  for (int command = 0; command < 100; ++command) {
    shared.Set(static_cast<uint32_t>(command) % 64);
    int turns = 0;
    for (bool is_served = false; !is_served; ++turns) {
      ASSERT_LT(turns, 5) << command;
      Turn(kPerTurn, [&](uint32_t doorbell) {
        is_served |= doorbell < 64;
        if (doorbell >= 64) shared.Set(doorbell);
      });
    }
  }
}

// Commands, the near leaf, thread domains and far leaves have a turn each.
TEST_F(DoorbellScanTest, SourcesTakeTurns) {
  std::vector<shm::ThreadDoorbellPage> pages(2);
  scan.OpenPage(3, &pages[0]);
  scan.OpenPage(9, &pages[1]);
  constexpr uint32_t kFar = 5'000;
  const auto thread_doorbell = [](uint32_t page) {
    return shm::kFirstThreadDoorbell + page * shm::kThreadDoorbells;
  };
  std::vector<uint32_t> served;
  for (int i = 0; i < 9; ++i) {
    shared.Set(5);
    shared.Set(64);
    shared.Set(kFar);
    for (shm::ThreadDoorbellPage& page : pages) page.Set(0);
    Turn(2, [&](uint32_t doorbell) { served.push_back(doorbell); });
  }
  const uint32_t third = thread_doorbell(3), ninth = thread_doorbell(9);
  EXPECT_EQ(served, (std::vector<uint32_t>{64, third, kFar, 5, 64, ninth, kFar, 5, 64}));
  scan.ClosePage(3);
  scan.ClosePage(9);
  for (uint32_t doorbell : ServeAll()) EXPECT_LT(doorbell, shm::kFirstThreadDoorbell);
}

TEST_F(DoorbellScanTest, SummaryBitsMayLie) {
  for (auto& word : shared.summary) word.store(~uint64_t{0});
  shared.far_leaves[700].store(1);
  EXPECT_EQ(ServeAll(), std::multiset<uint32_t>{700 * 64});
  EXPECT_FALSE(scan.HasRung(shared));
}

TEST_F(DoorbellScanTest, KnowsTheCpuOfTheLastRing) {
  shm::ThreadDoorbellPage page;
  shared.last_cpu.store(5);
  page.last_cpu.store(6);
  EXPECT_EQ(scan.LastCpu(shared), 5u);
  scan.OpenPage(1, &page);
  page.Set(0);
  EXPECT_TRUE(scan.HasRung(shared));
  EXPECT_EQ(scan.Take(shared), 1u);
  EXPECT_EQ(scan.LastCpu(shared), 6u);
  shared.Set(100);
  EXPECT_EQ(scan.Take(shared), 0u);
  EXPECT_EQ(scan.LastCpu(shared), 5u);
  page.Set(0);
  scan.Take(shared);
  scan.ClosePage(1);
  EXPECT_EQ(scan.LastCpu(shared), 5u) << "its page is gone";
}

}  // namespace
}  // namespace verbena::softnic

#include "core/client/empty_polls.h"

#include <gtest/gtest.h>

namespace verbena::client {
namespace {

constexpr int64_t kCallNs = 70;
constexpr int64_t kAloneNs = 200;
constexpr int64_t kSwitchesNs = 3'000;
constexpr int64_t kWholeTurnNs = 3'000'000;

TEST(EmptyPolls, YieldEachTimeWhileOthersGiveTheCpuBack) {
  EXPECT_EQ(EmptyPolls::PollsPerYield(EmptyPolls::kPollsPerYieldMax, kSwitchesNs, kCallNs), 1u);
  EXPECT_EQ(EmptyPolls::PollsPerYield(1, kSwitchesNs, kCallNs), 1u);
}

TEST(EmptyPolls, YieldSeldomBesideWhoKeepsTheCpu) {
  EXPECT_EQ(EmptyPolls::PollsPerYield(1, kWholeTurnNs, kCallNs), EmptyPolls::kPollsPerYieldMax);
}

TEST(EmptyPolls, YieldMoreAndMoreSeldomWhereNobodyElseIs) {
  uint32_t polls = 1;
  for (int i = 0; i < 4; ++i) polls = EmptyPolls::PollsPerYield(polls, kAloneNs, kCallNs);
  EXPECT_EQ(polls, 16u);
  for (int i = 0; i < 20; ++i) polls = EmptyPolls::PollsPerYield(polls, kAloneNs, kCallNs);
  EXPECT_EQ(polls, EmptyPolls::kPollsPerYieldMax);
}

// A virtual machine's: its lone yield is as long as another's two switches.
TEST(EmptyPolls, WhatAYieldTellsIsByWhatACallTakes) {
  constexpr int64_t kSlowCallNs = 1'000;
  constexpr uint32_t kSoFar = 8;
  EXPECT_EQ(EmptyPolls::PollsPerYield(kSoFar, 1'250, kSlowCallNs), 2 * kSoFar);
  EXPECT_EQ(EmptyPolls::PollsPerYield(kSoFar, 3'500, kSlowCallNs), 1u);
  EXPECT_EQ(EmptyPolls::PollsPerYield(kSoFar, 1'250, kCallNs), 1u);
  EXPECT_EQ(EmptyPolls::PollsPerYield(kSoFar, 699, kCallNs), 2 * kSoFar);
  EXPECT_EQ(EmptyPolls::PollsPerYield(kSoFar, 700, kCallNs), 1u);
}

}  // namespace
}  // namespace verbena::client

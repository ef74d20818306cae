#include "core/client/empty_polls.h"

#include <gtest/gtest.h>

namespace verbena::client {
namespace {

constexpr int64_t kAloneNs = 200;
constexpr int64_t kSwitchesNs = 3'000;
constexpr int64_t kWholeTurnNs = 3'000'000;

TEST(EmptyPolls, YieldEachTimeWhileOthersGiveTheCpuBack) {
  EXPECT_EQ(EmptyPolls::PollsPerYield(EmptyPolls::kPollsPerYieldMax, kSwitchesNs), 1u);
  EXPECT_EQ(EmptyPolls::PollsPerYield(1, kSwitchesNs), 1u);
}

TEST(EmptyPolls, YieldSeldomBesideWhoKeepsTheCpu) {
  EXPECT_EQ(EmptyPolls::PollsPerYield(1, kWholeTurnNs), EmptyPolls::kPollsPerYieldMax);
}

TEST(EmptyPolls, YieldMoreAndMoreSeldomWhereNobodyElseIs) {
  uint32_t polls = 1;
  for (int i = 0; i < 4; ++i) polls = EmptyPolls::PollsPerYield(polls, kAloneNs);
  EXPECT_EQ(polls, 16u);
  for (int i = 0; i < 20; ++i) polls = EmptyPolls::PollsPerYield(polls, kAloneNs);
  EXPECT_EQ(polls, EmptyPolls::kPollsPerYieldMax);
}

}  // namespace
}  // namespace verbena::client

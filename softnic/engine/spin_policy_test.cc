#include "softnic/engine/spin_policy.h"

#include <gtest/gtest.h>

#include "softnic/engine/wakeup_cost.h"

namespace verbena::softnic {
namespace {

constexpr uint32_t kHere = 3;
constexpr uint32_t kElsewhere = 5;

TEST(SpinPolicy, SpinsLongWhileNobodySharesTheCpu) {
  SpinPolicy nobody(kHere);
  EXPECT_EQ(nobody.Limit(), SpinTimes{}.alone);
  SpinPolicy policy(kHere);
  policy.AddClient(kElsewhere, true);
  policy.AddClient(kElsewhere, false);
  EXPECT_EQ(policy.Limit(), SpinTimes{}.alone);
  EXPECT_FALSE(policy.SharesCpu());
}

TEST(SpinPolicy, AwaitsTheAnswerFromElsewhereToWhoWaitsHere) {
  SpinPolicy policy(kHere);
  policy.AddClient(kHere, true);
  policy.AddClient(kElsewhere, false);
  EXPECT_EQ(policy.Limit(), kSpinForAnswer);
  EXPECT_TRUE(policy.SharesCpu());
}

TEST(SpinPolicy, LetsTheClientHereAnswerAtOnce) {
  SpinPolicy policy(kHere);
  policy.AddClient(kHere, false);
  policy.AddClient(kElsewhere, true);
  EXPECT_EQ(policy.Limit(), Duration{0});
}

TEST(SpinPolicy, DoesNotSpinWhereNobodyElseRuns) {
  SpinPolicy one(kHere);
  one.AddClient(kHere, true);
  EXPECT_EQ(one.Limit(), Duration{0});
  SpinPolicy two(kHere);
  two.AddClient(kHere, true);
  two.AddClient(kHere, false);
  EXPECT_EQ(two.Limit(), Duration{0});
}

TEST(SpinPolicy, MakesRoomForAClientThatFollows) {
  SpinPolicy policy(kHere);
  policy.AddClient(kElsewhere, true);
  policy.ExpectLastToFollow();
  EXPECT_EQ(policy.Limit(), Duration{0});
  EXPECT_TRUE(policy.SharesCpu());
}

TEST(SpinPolicy, AwaitsTheNextPacketsOfAMessage) {
  SpinPolicy shared(kHere);
  shared.AddClient(kHere, true);
  shared.ExpectPackets();
  EXPECT_EQ(shared.Limit(), SpinTimes{}.for_packets);
  SpinPolicy alone(kHere);
  alone.ExpectPackets();
  EXPECT_EQ(alone.Limit(), SpinTimes{}.alone);
}

TEST(SpinPolicy, SpinsLongerWhereWakingTakesLonger) {
  const SpinTimes quick = SpinTimes::ForWakeup(Microseconds(13));
  EXPECT_EQ(quick.alone, Microseconds(50));
  EXPECT_EQ(quick.for_packets, Microseconds(20));
  const SpinTimes slow = SpinTimes::ForWakeup(Microseconds(50));
  EXPECT_EQ(slow.alone, Microseconds(150));
  EXPECT_EQ(slow.for_packets, Microseconds(50));
  SpinPolicy policy(kHere, slow);
  EXPECT_EQ(policy.Limit(), slow.alone);
  policy.AddClient(kHere, true);
  policy.ExpectPackets();
  EXPECT_EQ(policy.Limit(), slow.for_packets);
  // Measured while the machine was busy with something else.
  const SpinTimes most = SpinTimes::ForWakeup(Milliseconds(30));
  EXPECT_EQ(most.alone, SpinTimes::kAloneMax);
  EXPECT_EQ(most.for_packets, SpinTimes::kForPacketsMax);
}

TEST(WakeupCost, IsMeasured) {
  const Duration cost = MeasureWakeupCost();
  EXPECT_GT(cost.ns, 0);
  EXPECT_LT(cost, Milliseconds(1'000));
}

TEST(SpinPolicy, NeverSpinsLongBesideAClientOnTheSameCpu) {
  for (int bits = 0; bits < 8; ++bits) {
    SpinPolicy policy(kHere);
    policy.AddClient(kHere, (bits & 1) != 0);
    policy.AddClient((bits & 2) != 0 ? kHere : kElsewhere, (bits & 4) != 0);
    EXPECT_LE(policy.Limit(), kSpinForAnswer) << bits;
  }
}

}  // namespace
}  // namespace verbena::softnic

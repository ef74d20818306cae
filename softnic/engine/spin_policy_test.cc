#include "softnic/engine/spin_policy.h"

#include <gtest/gtest.h>

namespace verbena::softnic {
namespace {

constexpr uint32_t kHere = 3;
constexpr uint32_t kElsewhere = 5;

TEST(SpinPolicy, SpinsLongWhileNobodySharesTheCpu) {
  SpinPolicy nobody(kHere);
  EXPECT_EQ(nobody.Limit(), kSpinMax);
  SpinPolicy policy(kHere);
  policy.AddClient(kElsewhere, true);
  policy.AddClient(kElsewhere, false);
  EXPECT_EQ(policy.Limit(), kSpinMax);
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
  EXPECT_EQ(shared.Limit(), kSpinForPackets);
  SpinPolicy alone(kHere);
  alone.ExpectPackets();
  EXPECT_EQ(alone.Limit(), kSpinMax);
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

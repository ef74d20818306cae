#include "softnic/engine/yield_policy.h"

#include <gtest/gtest.h>

namespace verbena::softnic {
namespace {

constexpr Duration kQuick = Microseconds(2);
constexpr Duration kTurn = Milliseconds(3);  // of somebody who does not yield

class Yields : public ::testing::Test {
 protected:
  void Yield(Duration took) {
    now_ = now_ + took;
    policy_.OnYielded(now_, took);
  }
  // For how long the shard does not yield after one that was late.
  Duration Pause() {
    for (int i = 0; i < 10 && policy_.MayYield(now_); ++i) Yield(kTurn);
    const Instant begin = now_;
    while (!policy_.MayYield(now_)) now_ = now_ + Microseconds(10);
    return now_ - begin;
  }
  void YieldFor(Duration length) {
    for (const Instant end = now_ + length; now_ < end;) Yield(kQuick);
  }

  YieldPolicy policy_;
  Instant now_{5'000'000'000};
};

TEST_F(Yields, GoOnWhileOthersGiveTheCpuBack) {
  YieldFor(Milliseconds(10));
  EXPECT_TRUE(policy_.MayYield(now_));
}

TEST_F(Yields, EndForAWhileWhenSomebodyKeepsTheCpu) {
  EXPECT_EQ(Pause(), YieldPolicy::kFirst);
  EXPECT_EQ(Pause(), YieldPolicy::kFirst * 2);
  for (int i = 0; i < 10; ++i) Pause();
  EXPECT_EQ(Pause(), YieldPolicy::kLongest);
}

TEST_F(Yields, AreLateByWhatWakingTakes) {
  YieldPolicy quick(Microseconds(13)), slow(Microseconds(75)), busy(Milliseconds(30));
  EXPECT_FALSE(quick.OnYielded(now_, Nanoseconds(299'999)));
  EXPECT_TRUE(quick.OnYielded(now_, YieldPolicy::kLateMin));
  EXPECT_FALSE(slow.OnYielded(now_, Nanoseconds(599'999)));
  EXPECT_TRUE(slow.OnYielded(now_, Microseconds(600)));
  EXPECT_FALSE(busy.OnYielded(now_, Nanoseconds(999'999)));
  EXPECT_TRUE(busy.OnYielded(now_, YieldPolicy::kLateMax));
}

TEST_F(Yields, AreForgivenWhatIsSeldom) {
  for (int i = 0; i < 5; ++i) {
    Yield(kTurn);
    EXPECT_TRUE(policy_.MayYield(now_)) << i;
    YieldFor(Milliseconds(25));
  }
  Yield(kTurn);
  Yield(kTurn);
  EXPECT_FALSE(policy_.MayYield(now_));
}

TEST_F(Yields, AreOnProbationAfterAPause) {
  Pause();
  Yield(YieldPolicy::kLateMin);
  EXPECT_FALSE(policy_.MayYield(now_));
}

// A long pause must not be followed by another one because something ran once within as long.
TEST_F(Yields, AreOnProbationForAShortTimeHoweverLongThePauseWas) {
  for (int i = 0; i < 10; ++i) Pause();
  EXPECT_EQ(Pause(), YieldPolicy::kLongest);
  YieldFor(YieldPolicy::kProbation);
  Yield(kTurn);
  EXPECT_TRUE(policy_.MayYield(now_));
  Yield(kTurn);
  EXPECT_FALSE(policy_.MayYield(now_)) << "that is an eighth of the time and more";
}

TEST_F(Yields, PauseBrieflyAgainAfterAGoodWhile) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Pause(), YieldPolicy::kFirst) << i;
    YieldFor(Milliseconds(50));
  }
}

TEST_F(Yields, EndWhereTheSchedulerLetsNobodyElseRun) {
  for (uint64_t i = 0; i < YieldPolicy::kManyInVain; ++i) Yield(kQuick);
  ASSERT_TRUE(policy_.HasYielded());
  policy_.OnSleep(now_, 0, true);
  EXPECT_FALSE(policy_.HasYielded());
  EXPECT_FALSE(policy_.MayYield(now_));
}

TEST_F(Yields, GoOnWhereSomebodyRanOrNobodyIsThere) {
  for (uint64_t i = 0; i < YieldPolicy::kManyInVain; ++i) Yield(kQuick);
  policy_.OnSleep(now_, 5, true);
  EXPECT_TRUE(policy_.MayYield(now_));
  for (uint64_t i = 0; i < YieldPolicy::kManyInVain; ++i) Yield(kQuick);
  policy_.OnSleep(now_, 5, false);
  EXPECT_TRUE(policy_.MayYield(now_));
  for (uint64_t i = 0; i + 1 < YieldPolicy::kManyInVain; ++i) Yield(kQuick);
  policy_.OnSleep(now_, 5, true);
  EXPECT_TRUE(policy_.MayYield(now_)) << "too few to tell";
}

}  // namespace
}  // namespace verbena::softnic

#include "softnic/engine/spin_policy.h"

#include <gtest/gtest.h>

#include "softnic/engine/cpu_contention.h"
#include "softnic/engine/run_delay.h"
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
  EXPECT_EQ(policy.Limit(), SpinTimes{}.for_answer);
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
  EXPECT_EQ(quick.for_answer, SpinTimes::kForAnswerMin);
  const SpinTimes slow = SpinTimes::ForWakeup(Microseconds(50));
  EXPECT_EQ(slow.alone, Microseconds(150));
  EXPECT_EQ(slow.for_packets, Microseconds(50));
  EXPECT_EQ(slow.for_answer, SpinTimes::kForAnswerMin);
  const SpinTimes emulated = SpinTimes::ForWakeup(Microseconds(75));
  EXPECT_EQ(emulated.for_answer, Nanoseconds(12'500));
  SpinPolicy policy(kHere, slow);
  EXPECT_EQ(policy.Limit(), slow.alone);
  policy.AddClient(kHere, true);
  policy.ExpectPackets();
  EXPECT_EQ(policy.Limit(), slow.for_packets);
  SpinPolicy awaits(kHere, emulated);
  awaits.AddClient(kHere, true);
  awaits.AddClient(kElsewhere, false);
  EXPECT_EQ(awaits.Limit(), emulated.for_answer);
  // Measured while the machine was busy with something else.
  const SpinTimes most = SpinTimes::ForWakeup(Milliseconds(30));
  EXPECT_EQ(most.alone, SpinTimes::kAloneMax);
  EXPECT_EQ(most.for_packets, SpinTimes::kForPacketsMax);
  EXPECT_EQ(most.for_answer, SpinTimes::kForAnswerMax);
  EXPECT_EQ(SpinTimes::ForWakeup(Duration{0}).for_answer, SpinTimes{}.for_answer);
}

TEST(SpinPolicy, WhoYieldsSpinsWithoutOnlyForAnAnswer) {
  SpinPolicy here(kHere);
  here.AddClient(kHere, true);
  EXPECT_EQ(here.QuietLimit(false), Duration{0});
  EXPECT_EQ(here.YieldingLimit(), SpinTimes{}.alone);
  here.AddClient(kElsewhere, false);
  EXPECT_EQ(here.QuietLimit(false), SpinTimes{}.for_answer);
  EXPECT_EQ(here.QuietLimit(true), SpinTimes{}.for_answer);
  EXPECT_EQ(here.YieldingLimit(), SpinTimes{}.for_answer)
      << "the client here may poll memory from then on";
  here.ExpectPackets();
  EXPECT_EQ(here.QuietLimit(true), Duration{0});
  here.MakeRoom();
  EXPECT_EQ(here.QuietLimit(false), Duration{0});
}

TEST(SpinPolicy, WhoIsAloneYieldsOnlyBetweenLooksAtNetworks) {
  SpinPolicy policy(kHere);
  policy.AddClient(kElsewhere, true);
  EXPECT_EQ(policy.QuietLimit(false), policy.Limit());
  EXPECT_EQ(policy.QuietLimit(true), Duration{0});
}

TEST(SpinPolicy, MakesRoomForWhoeverWaits) {
  SpinPolicy policy(kHere);
  policy.AddClient(kElsewhere, true);
  policy.ExpectPackets();
  policy.MakeRoom();
  EXPECT_EQ(policy.Limit(), Duration{0});
  EXPECT_TRUE(policy.SharesCpu());
}

// Looks after each kSleepsPerLook sleeps of which each waited for so long; time passes with them.
class Contention : public ::testing::Test {
 protected:
  void Sleep(Duration each, Duration takes) {
    for (uint32_t i = 0; i < CpuContention::kSleepsPerLook; ++i) {
      now_ = now_ + takes;
      waited_.ns += each.ns;
      const bool is_due = contention_.OnSlept();
      EXPECT_EQ(is_due, i + 1 == CpuContention::kSleepsPerLook);
      if (is_due) contention_.OnLook(now_, waited_);
    }
  }
  // For how long it makes room if it has to wait whenever it does not.
  Duration Round() {
    while (!contention_.IsContended(now_)) Sleep(kLong, Microseconds(250));
    const Instant begin = now_;
    while (contention_.IsContended(now_)) Sleep(kShort, Microseconds(50));
    return now_ - begin;
  }
  static constexpr Duration kWakeup = Microseconds(40), kShort = Microseconds(60),
                            kLong = Microseconds(200);
  CpuContention contention_{kWakeup};
  Instant now_{5'000'000'000};
  Duration waited_ = Milliseconds(77);  // before anybody looked
};

TEST_F(Contention, IsWhereWakingTakesMuchLongerThanItCosts) {
  Sleep(kShort, Microseconds(250));
  Sleep(kShort, Microseconds(250));
  EXPECT_FALSE(contention_.IsContended(now_));
  Sleep(kLong, Microseconds(250));
  EXPECT_TRUE(contention_.IsContended(now_));
}

TEST_F(Contention, IsLookedForMoreAndMoreSeldom) {
  Duration last{0};
  for (int i = 0; i < 12; ++i) {
    const Duration length = Round();
    EXPECT_GE(length, last);
    EXPECT_LE(length, CpuContention::kLongest + Milliseconds(1));
    last = std::min(length, CpuContention::kLongest);
  }
  EXPECT_EQ(last, CpuContention::kLongest);
  // Nobody is there for a while, and then somebody is again.
  for (int i = 0; i < 700; ++i) Sleep(kShort, Microseconds(250));
  EXPECT_FALSE(contention_.IsContended(now_));
  EXPECT_LE(Round(), CpuContention::kFirst + Milliseconds(1));
}

TEST_F(Contention, OfAnotherThreadSaysNothing) {
  Sleep(kShort, Microseconds(250));
  contention_.OnNewThread();
  waited_ = Milliseconds(900);
  Sleep(kShort, Microseconds(250));
  EXPECT_FALSE(contention_.IsContended(now_));
  Sleep(kLong, Microseconds(250));
  EXPECT_TRUE(contention_.IsContended(now_));
}

TEST(RunDelay, GrowsOrCantBeTold) {
  RunDelay delay;
  Duration before, after;
  EXPECT_FALSE(delay.Read(&before)) << "not opened";
  delay.OpenOfThisThread();
  if (!delay.Read(&before)) GTEST_SKIP() << "this kernel does not tell";
  delay.OpenOfThisThread();
  ASSERT_TRUE(delay.Read(&after));
  EXPECT_GE(after, before);
  EXPECT_GE(before.ns, 0);
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
    EXPECT_LE(policy.Limit(), SpinTimes{}.for_answer) << bits;
  }
}

}  // namespace
}  // namespace verbena::softnic

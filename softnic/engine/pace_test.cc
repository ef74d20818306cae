#include "softnic/engine/pace.h"

#include <gtest/gtest.h>

namespace verbena::softnic {
namespace {

constexpr Duration kInterval = Microseconds(50);
constexpr int64_t kBurst = 4;
constexpr Instant kStart = {1'000'000'000};

int CountUntilEarly(Pace& pace, Instant now) {
  int count = 0;
  for (; pace.IsDue(now) && count < 100; ++count) pace.Count(now);
  return count;
}

TEST(Pace, LetsABurstPassAndThenOnePerInterval) {
  Pace pace(kInterval, kBurst);
  EXPECT_EQ(CountUntilEarly(pace, kStart), kBurst + 1);
  EXPECT_EQ(pace.due(), kStart + kInterval);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(CountUntilEarly(pace, kStart + kInterval * i), 1) << i;
  }
}

TEST(Pace, EarnsTheBurstBackInQuietTime) {
  Pace pace(kInterval, kBurst);
  CountUntilEarly(pace, kStart);
  EXPECT_EQ(CountUntilEarly(pace, kStart + kInterval * 3), 3);
  EXPECT_EQ(CountUntilEarly(pace, kStart + kInterval * 1'000), kBurst + 1);
}

TEST(Pace, NeverStopsWhoKeepsToTheInterval) {
  Pace pace(kInterval, kBurst);
  for (int i = 0; i < 1'000; ++i) {
    Instant now = kStart + kInterval * i;
    EXPECT_TRUE(pace.IsDue(now));
    pace.Count(now);
  }
}

TEST(Pace, APauseIsKept) {
  Pace pace(kInterval, kBurst);
  pace.Pause(kStart + Milliseconds(3));
  EXPECT_FALSE(pace.IsDue(kStart + Milliseconds(2)));
  EXPECT_TRUE(pace.IsDue(kStart + Milliseconds(3)));
}

}  // namespace
}  // namespace verbena::softnic

#include "softnic/engine/network_looks.h"

#include <gtest/gtest.h>

namespace verbena::softnic {
namespace {

constexpr Instant kStart = {1'000'000'000};
constexpr Duration kTurn = Nanoseconds(500);

// Turns of `total`, each with a look if one is due: so many looks.
int CountLooks(NetworkLooks& looks, Instant from, Duration total, uint64_t packets,
               size_t networks = 1) {
  int count = 0;
  for (Instant now = from; now - from < total; now = now + kTurn) {
    looks.OnTurn(now, packets);
    if (!looks.IsDue(now, networks)) continue;
    ++count;
    looks.OnLook(now);
  }
  return count;
}

TEST(NetworkLooks, AreSeldomWhereNothingComesOrGoes) {
  NetworkLooks looks;
  EXPECT_TRUE(looks.IsQuiet(kStart));
  EXPECT_EQ(CountLooks(looks, kStart, Microseconds(100), 0), 5);
}

TEST(NetworkLooks, CostNoMoreWhereThereAreManyNetworks) {
  NetworkLooks looks;
  EXPECT_EQ(CountLooks(looks, kStart, Microseconds(6400), 0, 64), 5);
}

TEST(NetworkLooks, AreMadeInEachTurnWhilePacketsComeOrGo) {
  NetworkLooks looks;
  CountLooks(looks, kStart, Microseconds(100), 0);
  const Instant first = kStart + Microseconds(100);
  EXPECT_EQ(CountLooks(looks, first, Microseconds(100), 1), 200);
  EXPECT_FALSE(looks.IsQuiet(first + Microseconds(999)));
  EXPECT_TRUE(looks.IsQuiet(first + NetworkLooks::kQuietAfter)) << "none came since";
  EXPECT_EQ(CountLooks(looks, first + NetworkLooks::kQuietAfter, Microseconds(100), 1), 5);
}

TEST(NetworkLooks, AreDueAtOnceWhereSomethingMayBe) {
  NetworkLooks looks;
  looks.OnTurn(kStart, 0);
  looks.OnLook(kStart);
  EXPECT_FALSE(looks.IsDue(kStart + kTurn, 1));
  looks.MakeDue();
  EXPECT_TRUE(looks.IsDue(kStart + kTurn, 1));
  looks.OnLook(kStart + kTurn);
  EXPECT_FALSE(looks.IsDue(kStart + kTurn, 1));
}

}  // namespace
}  // namespace verbena::softnic

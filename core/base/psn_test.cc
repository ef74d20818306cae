#include "core/base/psn.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

constexpr uint32_t kModulus = 1u << 24;

TEST(Psn, KeepsTwentyFourBits) {
  EXPECT_EQ(Psn(kModulus).value(), 0u);
  EXPECT_EQ(Psn(~0u).value(), Psn::kMask);
  EXPECT_EQ(Psn(Psn::kMask).Next(), Psn(0));
  EXPECT_EQ(Psn(), Psn(0));
}

// Every distance from values at both ends and in the middle of the number space.
TEST(Psn, DeltaIsExactForEveryDistance) {
  for (uint32_t from : {0u, 1u, kModulus / 2 - 1, kModulus / 2, Psn::kMask - 1, Psn::kMask}) {
    for (uint32_t step = 0; step < kModulus; ++step) {
      Psn to(from + step);
      int32_t delta = Psn::Delta(Psn(from), to).value;
      int32_t expected = static_cast<int32_t>(step < kModulus / 2 ? step : step - kModulus);
      if (delta != expected || Psn(from) + PsnCount{delta} != to ||
          to - PsnCount{delta} != Psn(from)) {
        FAIL() << from << " + " << step << " gave " << delta;
      }
    }
  }
}

TEST(Psn, BeforeAndAfterAreSerial) {
  EXPECT_TRUE(Psn(Psn::kMask).Before(Psn(0)));
  EXPECT_FALSE(Psn(Psn::kMask).After(Psn(0)));
  EXPECT_TRUE(Psn(0).After(Psn(Psn::kMask)));
  EXPECT_FALSE(Psn(5).Before(Psn(5)));
  EXPECT_FALSE(Psn(5).After(Psn(5)));
  EXPECT_TRUE(Psn(0).Before(Psn(kModulus / 2 - 1)));
  // Half the space away is behind, by the definition's asymmetric range.  Spec: IBTA 9.7.2.
  EXPECT_TRUE(Psn(0).After(Psn(kModulus / 2)));
}

TEST(Psn, AddsAndSubtractsAcrossTheWrap) {
  EXPECT_EQ(Psn(Psn::kMask) + PsnCount{1}, Psn(0));
  EXPECT_EQ(Psn(0) - PsnCount{1}, Psn(Psn::kMask));
  EXPECT_EQ(Psn(3) + PsnCount{-4}, Psn(Psn::kMask));
  EXPECT_EQ(Psn(Psn::kMask) - PsnCount{-1}, Psn(0));
}

}  // namespace
}  // namespace verbena

#include "fi_shim/hw_cq.h"

#include <gtest/gtest.h>

#include <bit>

namespace verbena::fi {
namespace {

constexpr uint64_t kSizes[] = {0, 1, 32, 255, 256, 257, 512, 4'096, 262'144, 1'048'576};

TEST(RingEntries, AllThatIsReservedFitsBesideABatchThatTheNicHasNotHeardOf) {
  for (const uint64_t reserved : kSizes) {
    EXPECT_GE(RingEntriesFor(reserved, false), reserved + kCqeBatch);
  }
}

// The NIC lets in what no receive bounds until the ring is half full.
TEST(RingEntries, WithUnboundedMessagesSoDoesHalfOfTheRing) {
  for (const uint64_t reserved : kSizes) {
    const uint64_t entries = RingEntriesFor(reserved, true);
    EXPECT_GE(entries - entries / 2, reserved + kCqeBatch) << reserved;
  }
}

// What docs/fi-endpoints.md says of a CQ of 2^22 entries and endpoints of 256 sends and receives.
TEST(RingEntries, SoManyEndpointsFitIntoOneCq) {
  constexpr uint64_t kMaxCqe = 1u << 22;
  const auto fits = [](uint64_t endpoints, bool has_receives) {
    return std::bit_ceil(RingEntriesFor(endpoints * 512, has_receives)) <= kMaxCqe;
  };
  EXPECT_TRUE(fits(2'048, true));
  EXPECT_FALSE(fits(2'049, true));
  EXPECT_TRUE(fits(8'191, false));
  EXPECT_FALSE(fits(8'192, false));
}

}  // namespace
}  // namespace verbena::fi

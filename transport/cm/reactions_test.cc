#include "transport/cm/reactions.h"

#include <gtest/gtest.h>

namespace verbena::transport::cm {
namespace {

TEST(CmReactions, EachRowIsReached) {
  // No row is hidden by one before it.
  for (size_t i = 0; i < kReactionCount; ++i) {
    const ReactionRow& row = kReactions[i];
    bool is_found = false;
    for (int state = 0; state < kStateCount; ++state) {
      if ((row.states & (1u << state)) == 0) continue;
      EXPECT_EQ(FindReaction(static_cast<State>(state), row.message, row.about), &row)
          << NameOf(row.message) << " in " << NameOf(static_cast<State>(state));
      is_found = true;
    }
    EXPECT_TRUE(is_found);
  }
}

}  // namespace
}  // namespace verbena::transport::cm

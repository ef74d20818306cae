// Whole devices on a network in virtual time: some thousand seeds, and what must be true of a seed.
#include <gtest/gtest.h>

#include <string>

#include "tests/simulation/world.h"

namespace verbena::simulation {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeeds = 300;  // one thread: that sanitizer makes it slow and finds nothing
#else
constexpr uint64_t kSeeds = 1'000;
#endif
constexpr uint64_t kSeedsTwice = 40;
constexpr uint64_t kSeedsCompared = 100;

Stage& TheStage() {
  static Stage stage;
  return stage;
}

// The last things that happened in a run that fails.
std::string StoryOf(uint64_t seed) {
  World world(MakePlan(seed), &TheStage(), {.keeps_trace = true});
  world.Run();
  std::string story;
  for (const std::string& line : world.trace()) story += "  " + line + '\n';
  return story;
}

TEST(Simulation, NoSeedViolatesAnOracle) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world(MakePlan(seed), &TheStage(), {});
    const bool is_good = world.Run();
    EXPECT_GE(world.stats().qps, kQpsMin) << "seed " << seed;
    if (is_good) {
      EXPECT_GE(world.stats().wqes + world.stats().receive_wqes, kWqesMin) << "seed " << seed;
      continue;
    }
    const std::string violation = world.violation();
    FAIL() << "seed " << seed << ": " << violation << "\n  tests/simulation/run --seed " << seed
           << " --trace\n"
           << StoryOf(seed);
  }
}

TEST(Simulation, ASeedReplaysByteForByte) {
  for (uint64_t seed = 1; seed <= kSeedsTwice; ++seed) {
    World first(MakePlan(seed), &TheStage(), {});
    first.Run();
    const uint64_t digest = first.digest();
    // Not even watching it changes anything.
    World again(MakePlan(seed), &TheStage(), {.keeps_trace = true});
    again.Run();
    EXPECT_EQ(again.digest(), digest) << "seed " << seed;
  }
}

TEST(Simulation, SeedsDiffer) {
  World one(MakePlan(1), &TheStage(), {});
  one.Run();
  const uint64_t digest = one.digest();
  World two(MakePlan(2), &TheStage(), {});
  two.Run();
  EXPECT_NE(two.digest(), digest);
}

// The local port carries whole messages, a network packets: no program may see the difference.
TEST(Simulation, LocalAndPacketsGiveTheSame) {
  for (uint64_t seed = 1; seed <= kSeedsCompared; ++seed) {
    std::string outcomes[2];
    for (bool is_local : {false, true}) {
      World world(MakeQuietPlan(seed, is_local), &TheStage(),
                  {.keeps_outcomes = true, .is_paced = true});
      EXPECT_TRUE(world.Run()) << "seed " << seed << (is_local ? " local: " : " packets: ")
                               << world.violation();
      outcomes[is_local] = world.Outcome();
      EXPECT_EQ(world.stats().network.sent == 0, is_local);
    }
    EXPECT_EQ(outcomes[0], outcomes[1]) << "seed " << seed;
    if (HasFailure()) break;  // one says enough
  }
}

}  // namespace
}  // namespace verbena::simulation

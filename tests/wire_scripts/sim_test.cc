// Every story of scripts/ on a whole device in memory: over IPv4 and IPv6, with packets that arrive
// one by one and in batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/wire_scripts/player.h"
#include "tests/wire_scripts/sim_subject.h"

namespace verbena::wire_scripts {
namespace {

constexpr size_t kStoriesMin = 20;  // so that scripts which are not found don't pass

std::vector<Story> AllStories() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/wire_scripts/scripts")) {
    if (entry.path().extension() == ".wire") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Story> all;
  for (const std::filesystem::path& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    for (Story& story : ParseStories(path.string(), text.str())) all.push_back(std::move(story));
  }
  return all;
}

class EveryStory : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(EveryStory, ComesTrue) {
  const auto [is_ipv6, comes_in_batches] = GetParam();
  const std::vector<Story> stories = AllStories();
  ASSERT_GE(stories.size(), kStoriesMin);
  for (const Story& story : stories) {
    SCOPED_TRACE(story.name);
    SimSubject subject({is_ipv6, comes_in_batches});
    try {
      Player(&subject, {}).Play(story);
    } catch (const ScriptError& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, EveryStory, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Ipv6" : "Ipv4") +
                                  (std::get<1>(info.param) ? "InBatches" : "OneByOne");
                         });

}  // namespace
}  // namespace verbena::wire_scripts

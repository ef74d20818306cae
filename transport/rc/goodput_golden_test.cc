// docs/spec/goodput.md says what the simulator says: a change of the protocol that costs goodput
// shows as a diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "transport/rc/goodput.h"

namespace verbena::transport::rc {
namespace {

std::string GoldenPath() {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (runfiles == nullptr || workspace == nullptr) return kGoodputFile;
  return std::string(runfiles) + "/" + workspace + "/" + kGoodputFile;
}

TEST(GoodputGolden, EqualsTheSimulation) {
  std::ifstream file(GoldenPath(), std::ios::binary);
  ASSERT_TRUE(file) << kGoodputFile << " is missing";
  std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(golden, GoodputPage())
      << "\nIf the change is meant, run\n    bazel run //transport/rc:print_goodput\n"
      << "commit the result with it, and say why in CHANGELOG.md.";
}

}  // namespace
}  // namespace verbena::transport::rc

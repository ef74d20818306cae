#include "tools/cli/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace verbena::cli {
namespace {

using ::testing::StartsWith;

class ProviderPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/providersXXXXXX";
    libraries_ = ::mkdtemp(name.data());
    ours_ = libraries_ + "/libfabric";
    std::filesystem::create_directory(ours_);
    std::ofstream(ours_ + "/libverbena-fi.so");
  }
  void TearDown() override { std::filesystem::remove_all(libraries_); }

  std::string libraries_;
  std::string ours_;
};

TEST_F(ProviderPathTest, OursComesFirstWhereNothingIsChosen) {
  EXPECT_THAT(ProviderPath(libraries_, nullptr), StartsWith(ours_));
  EXPECT_EQ(ProviderPath(libraries_, ""), ProviderPath(libraries_, nullptr));
}

TEST_F(ProviderPathTest, FollowsWhatTheUserChose) {
  EXPECT_EQ(ProviderPath(libraries_, "/a:/b"), "/a:/b:" + ours_);
  EXPECT_EQ(ProviderPath(libraries_, "@/a"), "@/a:" + ours_);
}

TEST_F(ProviderPathTest, IsThereOnce) {
  for (const std::string& there : {ours_, "@" + ours_, "/a:" + ours_, ours_ + ":/a"}) {
    EXPECT_EQ(ProviderPath(libraries_, there.c_str()), there);
  }
  EXPECT_EQ(ProviderPath(libraries_, (ours_ + "2").c_str()), ours_ + "2:" + ours_);
}

TEST_F(ProviderPathTest, NothingIsSetWithoutTheProvider) {
  std::filesystem::remove_all(ours_);
  EXPECT_EQ(ProviderPath(libraries_, "/a"), "");
}

}  // namespace
}  // namespace verbena::cli

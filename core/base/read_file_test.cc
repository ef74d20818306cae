#include "core/base/read_file.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <fstream>

namespace verbena {
namespace {

TEST(ReadFile, AWholeFile) {
  const std::string path = testing::TempDir() + "/read_file";
  const std::string text(10'000, 'x');
  std::ofstream(path) << text;
  std::string read = "before";
  EXPECT_EQ(ReadFile(path, text.size(), &read), 0);
  EXPECT_EQ(read, text);
  EXPECT_EQ(ReadFile(path, text.size() - 1, &read), EFBIG);
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(ReadFile(path, 1, &read), 0);
  EXPECT_EQ(read, "");
}

TEST(ReadFile, WhatCannotBeReadIsNotEmpty) {
  std::string read;
  EXPECT_EQ(ReadFile("/nowhere/to be found", 1, &read), ENOENT);
  EXPECT_EQ(ReadFile("/", 1, &read), EISDIR);
  EXPECT_EQ(ReadFile("/proc/self/mem", 1, &read), EIO);
}

}  // namespace
}  // namespace verbena

#include "tools/cli/elf_check.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace verbena::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ElfCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/elf_check_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    ASSERT_EQ(::mkdir(Path("ours").c_str(), 0700), 0);
    Write("ours/libibverbs.so.1", "ours");
  }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  void Write(const std::string& name, const std::string& text, mode_t mode = 0755) {
    std::ofstream(Path(name), std::ios::binary) << text;
    ASSERT_EQ(::chmod(Path(name).c_str(), mode), 0);
  }
  // Links a one-line program with the given flags.
  void Link(const std::string& name, const std::string& flags) {
    Write("main.c", "int main(void) { return 0; }\n", 0644);
    const std::string command = "cc -o " + Path(name) + " " + Path("main.c") + " " + flags;
    ASSERT_EQ(::system(command.c_str()), 0) << command;
  }
  std::string Warning(const std::string& name) const {
    return LibraryWarning(Path(name), Path("ours"));
  }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string directory_;
};

TEST_F(ElfCheckTest, ReadsWhatAProgramNeeds) {
  Link("plain", "");
  const ElfFacts facts = ReadElf(Path("plain"));
  EXPECT_TRUE(facts.is_elf);
  EXPECT_TRUE(facts.is_64_bit);
  EXPECT_TRUE(facts.is_dynamic);
  EXPECT_THAT(facts.needed, Contains("libc.so.6"));
  EXPECT_THAT(Warning("plain"), IsEmpty());
}

TEST_F(ElfCheckTest, StaticProgramIsNamed) {
  Link("static", "-static");
  EXPECT_FALSE(ReadElf(Path("static")).is_dynamic);
  EXPECT_THAT(Warning("static"), HasSubstr("statically linked"));
  Link("static_pie", "-static-pie");
  EXPECT_THAT(Warning("static_pie"), HasSubstr("statically linked"));
}

TEST_F(ElfCheckTest, RpathToAnotherLibraryIsNamed) {
  ASSERT_EQ(::mkdir(Path("other").c_str(), 0700), 0);
  const std::string rpath = "-Wl,--disable-new-dtags,-rpath,'$ORIGIN/other'";
  Link("rpath", rpath);
  EXPECT_EQ(ReadElf(Path("rpath")).rpath, "$ORIGIN/other");
  EXPECT_THAT(Warning("rpath"), IsEmpty()) << "no libibverbs there";
  Write("other/libibverbs.so.1", "theirs");
  EXPECT_THAT(Warning("rpath"), HasSubstr("/other/libibverbs.so.1"));
  Link("runpath", "-Wl,--enable-new-dtags,-rpath,'$ORIGIN/other'");
  EXPECT_EQ(ReadElf(Path("runpath")).runpath, "$ORIGIN/other");
  EXPECT_THAT(Warning("runpath"), IsEmpty()) << "LD_LIBRARY_PATH goes before DT_RUNPATH";
}

TEST_F(ElfCheckTest, RpathToOursIsFine) {
  Link("mine", "-Wl,--disable-new-dtags,-rpath," + Path("ours"));
  EXPECT_THAT(Warning("mine"), IsEmpty());
}

TEST_F(ElfCheckTest, ScriptsAndNonsenseGiveNoWarning) {
  Write("script", "#!/bin/sh\nexit 0\n");
  EXPECT_FALSE(ReadElf(Path("script")).is_elf);
  EXPECT_THAT(Warning("script"), IsEmpty());
  EXPECT_FALSE(ReadElf(Path("missing")).is_elf);
  EXPECT_FALSE(ReadElf(directory_).is_elf);
}

TEST_F(ElfCheckTest, SurvivesAnyTruncationAndFlippedBytes) {
  Link("whole", "-Wl,--disable-new-dtags,-rpath,/somewhere");
  const std::string whole = Contents(Path("whole"));
  for (size_t size = 0; size < whole.size(); size = size < 1024 ? size + 7 : size * 5 / 4) {
    Write("cut", whole.substr(0, size));
    ReadElf(Path("cut"));
  }
  for (size_t at = 16; at < 1024; at += 3) {
    std::string broken = whole;
    broken[at] = static_cast<char>(0xff);
    Write("broken", broken);
    ReadElf(Path("broken"));
  }
}

TEST_F(ElfCheckTest, FindsProgramsAsAShellDoes) {
  ASSERT_EQ(::mkdir(Path("a").c_str(), 0700), 0);
  ASSERT_EQ(::mkdir(Path("b").c_str(), 0700), 0);
  Write("a/tool", "data", 0644);
  const std::string list = Path("a") + ":" + Path("b");
  EXPECT_EQ(FindProgram("tool", list), "");
  EXPECT_EQ(errno, EACCES);
  Write("b/tool", "#!/bin/sh\n");
  EXPECT_EQ(FindProgram("tool", list), Path("b") + "/tool");
  EXPECT_EQ(FindProgram(Path("b/tool"), ""), Path("b/tool"));
  EXPECT_EQ(FindProgram("none", list), "");
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(FindProgram(Path("b"), ""), "") << "a directory";
  EXPECT_EQ(errno, EACCES);
}

}  // namespace
}  // namespace verbena::cli

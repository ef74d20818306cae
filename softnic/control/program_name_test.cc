#include "softnic/control/program_name.h"

#include <gtest/gtest.h>

namespace verbena::softnic {
namespace {

std::string NameOf(const std::string& text) { return ProgramNameOf(text.data(), text.size()); }

TEST(ProgramName, StaysAsItIsWhereItCanBeShown) {
  for (const char* name : {"", "ib_write_bw", "a b/c~", "caf\xc3\xa9", "\xc2\xa0", "\xe2\x82\xac",
                           "\xef\xbf\xbd", "\xf0\x9f\x8c\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(NameOf(name), name);
  }
}

TEST(ProgramName, EndsAtItsZeroOrItsLastByte) {
  EXPECT_EQ(NameOf(std::string("ab\0cd", 5)), "ab");
  EXPECT_EQ(ProgramNameOf("abcd", 3), "abc");
  // Cut within a character.
  EXPECT_EQ(ProgramNameOf("ab\xc3\xa9", 3), "ab?");
  EXPECT_EQ(ProgramNameOf("ab\xf0\x9f\x8c\xbf", 5), "ab???");
}

TEST(ProgramName, WhatCannotBeShownIsReplaced) {
  EXPECT_EQ(NameOf("a\nb\rc\td\x1b[2J\x7f"), "a?b?c?d?[2J?");
  EXPECT_EQ(NameOf("\xff\xfe\x80\xbf"), "????");
  EXPECT_EQ(NameOf("\xc2\x9b"), "??") << "a control character of two bytes";
  EXPECT_EQ(NameOf("\xc0\xaf\xc1\xbf"), "????") << "longer than need be";
  EXPECT_EQ(NameOf("\xe0\x9f\xbf"), "???");
  EXPECT_EQ(NameOf("\xf0\x8f\xbf\xbf"), "????");
  EXPECT_EQ(NameOf("\xed\xa0\x80"), "???") << "half of a pair";
  EXPECT_EQ(NameOf("\xf4\x90\x80\x80"), "????") << "beyond the last";
  EXPECT_EQ(NameOf("\xf8\x88\x80\x80\x80"), "?????");
  EXPECT_EQ(NameOf("\xc3z\xe2\x82z"), "?z??z");
}

}  // namespace
}  // namespace verbena::softnic

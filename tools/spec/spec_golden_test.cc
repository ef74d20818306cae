// docs/spec says what the tables say: a changed rule shows as a diff beside the spec's clause.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tools/spec/spec_documents.h"

namespace verbena::tools {
namespace {

constexpr char kHowTo[] =
    "\nThe tables and docs/spec differ. If the change is meant, run\n"
    "    bazel run //tools/spec:print_spec\n"
    "and commit the result with it.";

std::string GoldenFolder() {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (runfiles == nullptr || workspace == nullptr) return "docs/spec";
  return std::string(runfiles) + "/" + workspace + "/docs/spec";
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class SpecGoldenTest : public ::testing::TestWithParam<SpecDocument> {};

TEST_P(SpecGoldenTest, EqualsTheTables) {
  const SpecDocument& document = GetParam();
  std::ifstream file(GoldenFolder() + "/" + document.file_name, std::ios::binary);
  ASSERT_TRUE(file) << "docs/spec/" << document.file_name << " is missing" << kHowTo;
  std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (golden == document.text) return;
  std::vector<std::string> was = Lines(golden);
  std::vector<std::string> is = Lines(document.text);
  size_t line = 0;
  while (line < was.size() && line < is.size() && was[line] == is[line]) ++line;
  FAIL() << "docs/spec/" << document.file_name << ":" << line + 1
         << "\n  file:   " << (line < was.size() ? was[line] : "(ends)")
         << "\n  tables: " << (line < is.size() ? is[line] : "(ends)") << kHowTo;
}

std::string NameOf(const ::testing::TestParamInfo<SpecDocument>& info) {
  return info.param.file_name.substr(0, info.param.file_name.find('.'));
}
INSTANTIATE_TEST_SUITE_P(Docs, SpecGoldenTest, ::testing::ValuesIn(PrintAllDocuments()), NameOf);

TEST(SpecTablesTest, EveryRowNamesItsClauseAndNothingIsUnknown) {
  std::set<std::string> names;
  for (const SpecDocument& document : PrintSpec()) {
    EXPECT_TRUE(names.insert(document.file_name).second);
    for (const std::string& line : Lines(document.text)) {
      EXPECT_EQ(line.find("| ? "), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace verbena::tools

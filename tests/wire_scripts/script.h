// Wire scripts as text: stories of one queue pair, line by line. README.md describes the format.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::wire_scripts {

// What is wrong with a script, or what came out other than it says; begins with file and line.
class ScriptError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The words of a line behind its first one: names, and options key=value. Who reads it takes what
// it knows; what is left over at the end is a mistake of the script's.
class Words {
 public:
  explicit Words(std::string_view text);

  bool IsEmpty() const { return words_.empty(); }
  // The next word; an error without one.
  std::string Take();
  // The value of `key=value`, "1" of a bare `key`, or nothing.
  std::optional<std::string> TakeOption(std::string_view key);
  // Numbers, decimal or with 0x. Without a default the option has to be there.
  std::optional<uint64_t> TakeNumber(std::string_view key);
  uint64_t TakeNumber(std::string_view key, uint64_t otherwise);
  uint64_t NeedNumber(std::string_view key);
  // An error if there is a word left.
  void End() const;

 private:
  std::vector<std::string> words_;
};

uint64_t ParseNumber(std::string_view text);

// To which subjects a line applies, where kernel rxe differs.
enum class Only : uint8_t { kEverybody, kRxe, kOthers };

struct Line {
  int number = 0;
  Only only = Only::kEverybody;
  std::string verb;
  std::string rest;
  std::string text;  // as written
};

struct Story {
  std::string file;
  std::string name;
  std::string rxe_differs;  // why lines are marked, or ...
  std::string rxe_skipped;  // ... why rxe is not asked at all; empty: neither
  std::vector<Line> lines;
};

// Throws ScriptError. `file` is for messages.
std::vector<Story> ParseStories(const std::string& file, std::string_view text);

}  // namespace verbena::wire_scripts

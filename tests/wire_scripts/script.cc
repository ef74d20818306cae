#include "tests/wire_scripts/script.h"

#include <charconv>
#include <sstream>

namespace verbena::wire_scripts {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Takes `prefix` off the text, if it begins with it.
bool TakePrefix(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  *text = Trimmed(text->substr(prefix.size()));
  return true;
}

[[noreturn]] void Fail(const std::string& file, int number, const std::string& what) {
  throw ScriptError(file + ":" + std::to_string(number) + ": " + what);
}

Line LineOf(int number, Only only, std::string_view text) {
  const size_t verb_end = std::min(text.find(' '), text.size());
  return {number, only, std::string(text.substr(0, verb_end)),
          std::string(Trimmed(text.substr(verb_end))), std::string(text)};
}

}  // namespace

uint64_t ParseNumber(std::string_view text) {
  const bool is_hex = text.starts_with("0x");
  const std::string_view digits = is_hex ? text.substr(2) : text;
  uint64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, is_hex ? 16 : 10);
  if (error != std::errc() || stop != end) {
    throw ScriptError("not a number: '" + std::string(text) + "'");
  }
  return value;
}

Words::Words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) words_.push_back(word);
}

std::string Words::Take() {
  if (words_.empty()) throw ScriptError("a word is missing at the end");
  std::string word = words_.front();
  words_.erase(words_.begin());
  return word;
}

std::optional<std::string> Words::TakeOption(std::string_view key) {
  for (auto it = words_.begin(); it != words_.end(); ++it) {
    const size_t sign = it->find('=');
    if (it->substr(0, sign) != key) continue;
    std::string value = sign == std::string::npos ? "1" : it->substr(sign + 1);
    words_.erase(it);
    return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> Words::TakeNumber(std::string_view key) {
  const std::optional<std::string> value = TakeOption(key);
  if (!value) return std::nullopt;
  return ParseNumber(*value);
}

uint64_t Words::TakeNumber(std::string_view key, uint64_t otherwise) {
  return TakeNumber(key).value_or(otherwise);
}

uint64_t Words::NeedNumber(std::string_view key) {
  const std::optional<uint64_t> value = TakeNumber(key);
  if (!value) throw ScriptError("'" + std::string(key) + "=' is missing");
  return *value;
}

void Words::End() const {
  if (!words_.empty()) throw ScriptError("not understood: '" + words_.front() + "'");
}

std::vector<Story> ParseStories(const std::string& file, std::string_view text) {
  std::vector<Story> stories;
  int number = 0;
  std::istringstream stream{std::string(text)};
  for (std::string read; std::getline(stream, read);) {
    ++number;
    std::string_view line = Trimmed(std::string_view(read).substr(0, read.find('#')));
    if (line.empty()) continue;
    if (TakePrefix("story ", &line)) {
      stories.push_back({file, std::string(line), {}, {}, {}});
      continue;
    }
    if (stories.empty()) Fail(file, number, "before the first 'story'");
    Story& story = stories.back();
    if (line.starts_with("rxe differs:") || line.starts_with("rxe skipped:")) {
      if (!story.lines.empty()) Fail(file, number, "has to stand before the story's first line");
      std::string& why = TakePrefix("rxe differs:", &line) ? story.rxe_differs : story.rxe_skipped;
      TakePrefix("rxe skipped:", &line);
      if (line.empty()) Fail(file, number, "says no reason");
      why += (why.empty() ? "" : " ") + std::string(line);
      continue;
    }
    Only only = Only::kEverybody;
    if (TakePrefix("rxe:", &line))
      only = Only::kRxe;
    else if (TakePrefix("others:", &line))
      only = Only::kOthers;
    if (only != Only::kEverybody && story.rxe_differs.empty()) {
      Fail(file, number, "for some subjects only, but no 'rxe differs:' says why");
    }
    story.lines.push_back(LineOf(number, only, line));
  }
  return stories;
}

}  // namespace verbena::wire_scripts

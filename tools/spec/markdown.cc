#include "tools/spec/markdown.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace verbena::tools {

MarkdownTable::MarkdownTable(std::vector<std::string> header) {
  rows_.push_back(std::move(header));
}

void MarkdownTable::AddRow(std::vector<std::string> cells) {
  VERBENA_CHECK(cells.size() == rows_[0].size());
  rows_.push_back(std::move(cells));
}

std::string MarkdownTable::Text() const {
  std::vector<size_t> widths(rows_[0].size(), 3);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string& cell = rows_[r][i];
      text += "| " + cell + std::string(widths[i] - cell.size(), ' ') + " ";
    }
    text += "|\n";
    if (r != 0) continue;
    for (size_t width : widths) text += "|" + std::string(width + 2, '-');
    text += "|\n";
  }
  return text;
}

std::string DotBlock(const std::string& dot) { return "```dot\n" + dot + "```\n"; }

}  // namespace verbena::tools

// Markdown tables with aligned columns, so that a diff of them reads well.
#pragma once

#include <string>
#include <vector>

namespace verbena::tools {

class MarkdownTable {
 public:
  explicit MarkdownTable(std::vector<std::string> header);
  // Precondition: as many cells as the header has.
  void AddRow(std::vector<std::string> cells);
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A fenced block of Graphviz.
std::string DotBlock(const std::string& dot);

}  // namespace verbena::tools

// The protocol's tables as Markdown and DOT, as docs/spec holds them.
#pragma once

#include <string>
#include <vector>

namespace verbena::tools {

struct SpecDocument {
  std::string file_name;  // below docs/spec
  std::string text;
};

// All documents, in the order of docs/spec/README.md. Same tables, same bytes.
std::vector<SpecDocument> PrintSpec();

}  // namespace verbena::tools

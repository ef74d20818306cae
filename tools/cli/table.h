// Text for people: aligned tables, byte counts and durations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::cli {

struct Table {
  std::vector<std::string> headers;
  std::vector<std::vector<std::string>> rows;
};

// Columns two spaces apart, headers in capitals; a column of numbers only is right-aligned. Rows
// shorter than the header are filled up. No trailing blanks. Ends with a newline.
std::string RenderTable(const Table& table);

std::string HumanBytes(uint64_t bytes);      // "0 B", "1.5 KB", "23 GB": powers of 1000
std::string HumanSeconds(uint64_t seconds);  // "5 s", "3 min 12 s", "2 h 5 min", "4 d 1 h"

}  // namespace verbena::cli

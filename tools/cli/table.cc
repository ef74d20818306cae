#include "tools/cli/table.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace verbena::cli {
namespace {

bool IsNumber(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  size_t digits = 0;
  for (const char c : cell) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      ++digits;
    } else if (c != '.' && c != '-' && c != '%' && c != ' ') {
      return false;
    }
  }
  return digits > 0 && std::count(cell.begin(), cell.end(), '.') <= 1;
}

std::string Upper(std::string text) {
  for (char& c : text) {
    c = c == '_' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

std::string CellAt(const std::vector<std::string>& row, size_t column) {
  return column < row.size() ? row[column] : std::string();
}

}  // namespace

std::string RenderTable(const Table& table) {
  const size_t columns = table.headers.size();
  std::vector<size_t> width(columns);
  std::vector<bool> right(columns, !table.rows.empty());
  for (size_t c = 0; c < columns; ++c) {
    width[c] = table.headers[c].size();
    for (const auto& row : table.rows) {
      width[c] = std::max(width[c], CellAt(row, c).size());
      right[c] = right[c] && IsNumber(CellAt(row, c));
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      if (c > 0) line += "  ";
      const std::string cell = cell_of(c);
      const std::string fill(width[c] - cell.size(), ' ');
      line += right[c] ? fill + cell : cell + fill;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t c) { return Upper(table.headers[c]); });
  for (const auto& row : table.rows) add_line([&](size_t c) { return CellAt(row, c); });
  return text;
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.5 would be printed as 1000 of the unit below.
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value >= 9.95 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

std::string HumanSeconds(uint64_t seconds) {
  const auto pair = [](uint64_t big, const char* big_unit, uint64_t small, const char* small_unit) {
    return std::to_string(big) + " " + big_unit + " " + std::to_string(small) + " " + small_unit;
  };
  if (seconds < 60) return std::to_string(seconds) + " s";
  if (seconds < 3600) return pair(seconds / 60, "min", seconds % 60, "s");
  if (seconds < 86400) return pair(seconds / 3600, "h", seconds % 3600 / 60, "min");
  return pair(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

}  // namespace verbena::cli

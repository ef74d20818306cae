#include "tools/cli/json.h"

#include <boost/json/src.hpp>
#include <cstdio>

namespace verbena::cli {
namespace {

void Pretty(const json::value& value, size_t depth, std::string* out) {
  const std::string inner(2 * (depth + 1), ' ');
  const std::string outer(2 * depth, ' ');
  if (const json::object* object = value.if_object(); object != nullptr && !object->empty()) {
    *out += "{";
    const char* separator = "\n";
    for (const auto& [key, field] : *object) {
      *out += separator + inner + json::serialize(json::string(key)) + ": ";
      Pretty(field, depth + 1, out);
      separator = ",\n";
    }
    *out += "\n" + outer + "}";
  } else if (const json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    *out += "[";
    const char* separator = "\n";
    for (const json::value& item : *array) {
      *out += separator + inner;
      Pretty(item, depth + 1, out);
      separator = ",\n";
    }
    *out += "\n" + outer + "]";
  } else {
    *out += json::serialize(value);
  }
}

}  // namespace

std::string PrettyJson(const json::value& value) {
  std::string text;
  Pretty(value, 0, &text);
  return text + "\n";
}

std::string CellText(const json::value& value) {
  if (const json::string* text = value.if_string()) return std::string(text->c_str(), text->size());
  if (value.is_null()) return "-";
  if (const bool* flag = value.if_bool()) return *flag ? "yes" : "no";
  if (const double* number = value.if_double()) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", *number);
    return text;
  }
  if (const json::array* array = value.if_array()) {
    std::string text;
    for (const json::value& item : *array) text += (text.empty() ? "" : ",") + CellText(item);
    return text.empty() ? "-" : text;
  }
  if (const json::object* object = value.if_object()) {
    std::string text;
    for (const auto& [key, field] : *object) {
      text += (text.empty() ? "" : ", ") + std::string(key) + " " + CellText(field);
    }
    return text.empty() ? "-" : text;
  }
  return json::serialize(value);
}

std::string FieldText(const json::object& object, const char* key, const char* fallback) {
  const json::value* field = object.if_contains(key);
  return field == nullptr ? fallback : CellText(*field);
}

uint64_t FieldNumber(const json::object& object, const char* key) {
  const json::value* field = object.if_contains(key);
  if (field == nullptr) return 0;
  if (const uint64_t* number = field->if_uint64()) return *number;
  if (const int64_t* number = field->if_int64()) {
    return *number < 0 ? 0 : static_cast<uint64_t>(*number);
  }
  if (const double* number = field->if_double()) {
    return *number < 0 ? 0 : static_cast<uint64_t>(*number);
  }
  return 0;
}

}  // namespace verbena::cli

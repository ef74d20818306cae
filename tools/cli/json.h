// The JSON that the CLI exchanges with verbenad and prints.
#pragma once

#include <boost/json.hpp>
#include <string>

namespace verbena::cli {

namespace json = boost::json;

// Two-space indented text, keys in their own order, ending with a newline.
std::string PrettyJson(const json::value& value);

// What a table cell shows: strings bare, numbers as they are, null as "-", true as "yes".
std::string CellText(const json::value& value);

// A field of an object as text, or `fallback` where it is missing.
std::string FieldText(const json::object& object, const char* key, const char* fallback = "-");

// A non-negative number, or 0 where the field is missing or no number.
uint64_t FieldNumber(const json::object& object, const char* key);

}  // namespace verbena::cli

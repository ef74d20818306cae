// `verbena status`, `devices` and `show`: the daemon's answers as text for people or as JSON.
#include <errno.h>
#include <string.h>

#include <algorithm>
#include <cstdio>

#include "core/client/instance.h"
#include "tools/cli/admin.h"
#include "tools/cli/commands.h"
#include "tools/cli/paths.h"
#include "tools/cli/table.h"

namespace verbena::cli {
namespace {

constexpr char kNotRunningHint[] =
    "No instance is running. `verbena up` starts one; `verbena run -- CMD` does so by itself.\n";

constexpr size_t kLabelColumns = 21;
constexpr size_t kStatusColumns = 96;

// Asks the caller's instance. kExitOk with the reply; else what to exit with, all said.
// `directory` is set in any case.
int AskOwn(const json::object& request, bool as_json, std::string* directory, json::object* reply) {
  *directory = client::InstanceDirectory(false);
  AskResult result = AskResult::kNotRunning;
  std::string error;
  if (!directory->empty()) {
    result = AskInstance(*directory, request, reply, &error);
  } else if (errno != ENOENT) {
    return Fail(DirectoryProblem(errno));
  }
  if (result == AskResult::kOk) return kExitOk;
  if (result == AskResult::kFailed) return Fail(error);
  if (as_json) {
    std::fputs(PrettyJson(json::object{{"running", false}, {"directory", *directory}}).c_str(),
               stdout);
  } else {
    std::fputs(kNotRunningHint, stderr);
  }
  return kExitFailed;
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// Rows of objects as a table; columns in the order in which the fields first appear.
Table TableOf(const json::array& rows) {
  Table table;
  for (const json::value& row : rows) {
    if (!row.is_object()) continue;
    for (const auto& [key, value] : row.get_object()) {
      if (value.is_object()) continue;  // counters: a line of their own
      const std::string name(key);
      if (std::find(table.headers.begin(), table.headers.end(), name) == table.headers.end()) {
        table.headers.push_back(name);
      }
    }
  }
  for (const json::value& row : rows) {
    if (!row.is_object()) continue;
    std::vector<std::string> cells;
    for (const std::string& header : table.headers) {
      cells.push_back(FieldText(row.get_object(), header.c_str()));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

const json::array& ArrayAt(const json::object& object, const char* key) {
  static const json::array kNone;
  const json::value* field = object.if_contains(key);
  return field != nullptr && field->is_array() ? field->get_array() : kNone;
}

// "12 turns, 3 sleeps": an object of counters as a sentence; *_bytes become readable sizes.
std::string Sentence(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return CellText(value);
  std::string text;
  for (const auto& [key, field] : *object) {
    std::string name(key);
    std::string cell = CellText(field);
    const std::string suffix = "_bytes";
    if (name.size() > suffix.size() && name.ends_with(suffix) && !field.is_string()) {
      cell = HumanBytes(FieldNumber(*object, name.c_str()));
      name.resize(name.size() - suffix.size());
    } else if (name == "cpu_pct") {
      cell += " %";
      name = "cpu";
    }
    std::replace(name.begin(), name.end(), '_', ' ');
    text += (text.empty() ? "" : ", ") + name + " " + cell;
  }
  return text.empty() ? "-" : text;
}

// One line of `status`; a long list of counters goes on below itself.
void PrintLine(const std::string& label, const std::string& text) {
  std::string head = label;
  head.resize(std::max(head.size() + 2, kLabelColumns), ' ');
  std::string line = head;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t comma = text.find(", ", begin);
    const size_t end = comma == std::string::npos ? text.size() : comma + 2;
    if (line.size() > kLabelColumns && line.size() + (end - begin) > kStatusColumns) {
      std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
      line.assign(kLabelColumns, ' ');
    }
    line += text.substr(begin, end - begin);
    begin = end;
  }
  std::printf("%s\n", line.c_str());
}

json::object NonZero(const json::value& counters) {
  json::object out;
  if (!counters.is_object()) return out;
  for (const auto& [name, value] : counters.get_object()) {
    if (FieldNumber(counters.get_object(), std::string(name).c_str()) != 0) out[name] = value;
  }
  return out;
}

// Fields that PrintStatus shows in a place of their own.
bool HasOwnPlace(const std::string& key) {
  for (const char* own : {"pid", "version", "directory", "uptime_s", "nics"}) {
    if (key == own) return true;
  }
  return false;
}

void PrintStatus(const std::string& directory, const json::object& reply) {
  PrintLine("instance", FieldText(reply, "directory", directory.c_str()));
  PrintLine("daemon", "verbenad " + FieldText(reply, "version") + ", pid " +
                          FieldText(reply, "pid") + ", up " +
                          HumanSeconds(FieldNumber(reply, "uptime_s")));
  for (const auto& [key, value] : reply) {
    const std::string name(key);
    if (HasOwnPlace(name)) continue;
    std::string label = name;
    std::replace(label.begin(), label.end(), '_', ' ');
    PrintLine(label, Sentence(value));
  }
  for (const json::value& nic : ArrayAt(reply, "nics")) {
    if (!nic.is_object()) continue;
    const std::string name = FieldText(nic.get_object(), "name");
    if (const json::value* wire = nic.get_object().if_contains("wire")) {
      const json::object counted = NonZero(*wire);
      PrintLine(name, counted.empty() ? "no packets yet" : Sentence(counted));
    }
    if (const json::value* refused = nic.get_object().if_contains("refused")) {
      const json::object counted = NonZero(*refused);
      if (!counted.empty()) PrintLine(name + " refused", Sentence(counted));
    }
  }
  Print("\n" + RenderTable(TableOf(ArrayAt(reply, "nics"))));
}

}  // namespace

int Status(const Arguments& arguments) {
  std::string directory;
  json::object reply;
  const int code = AskOwn({{"op", "status"}}, arguments.json, &directory, &reply);
  if (code != kExitOk) return code;
  if (arguments.json) {
    json::object out = {{"running", true}};
    for (const auto& [key, value] : reply) out[key] = value;
    Print(PrettyJson(out));
  } else {
    PrintStatus(directory, reply);
  }
  return kExitOk;
}

int Devices(const Arguments& arguments) {
  std::string directory;
  json::object reply;
  const int code = AskOwn({{"op", "devices"}}, arguments.json, &directory, &reply);
  if (code != kExitOk) return code;
  if (arguments.json) {
    Print(PrettyJson(reply));
    return kExitOk;
  }
  // Under either name: the NICs are what status calls "nics".
  const char* key = reply.contains("devices") ? "devices"
                    : reply.contains("nics")  ? "nics"
                                              : "rows";
  Print(RenderTable(TableOf(ArrayAt(reply, key))));
  return kExitOk;
}

int Show(const Arguments& arguments) {
  std::string directory;
  json::object reply;
  const json::object request = {{"op", "show"}, {"kind", arguments.kind}};
  const int code = AskOwn(request, arguments.json, &directory, &reply);
  if (code != kExitOk) return code;
  if (arguments.json) {
    Print(PrettyJson(reply));
    return kExitOk;
  }
  const json::array& rows = ArrayAt(reply, "rows");
  Print(rows.empty() ? "No " + arguments.kind + " at the moment.\n" : RenderTable(TableOf(rows)));
  return kExitOk;
}

}  // namespace verbena::cli

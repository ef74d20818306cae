// `verbena doctor`: what the probes found, for people or as JSON.
#include <cstdio>

#include "tools/cli/commands.h"
#include "tools/cli/json.h"
#include "tools/cli/probes.h"
#include "tools/cli/version.h"

namespace verbena::cli {
namespace {

void PrintFinding(const Finding& finding) {
  std::printf("%-8s %-48s %s\n", VerdictName(finding.verdict), finding.title.c_str(),
              finding.found.c_str());
  if (!finding.effect.empty()) std::printf("         Instead: %s\n", finding.effect.c_str());
  if (!finding.fix.empty()) std::printf("         To fix:  %s\n", finding.fix.c_str());
}

json::object ToJson(const Finding& finding) {
  return {{"id", finding.id},
          {"title", finding.title},
          {"verdict", VerdictName(finding.verdict)},
          {"found", finding.found},
          {"effect", finding.effect},
          {"fix", finding.fix}};
}

}  // namespace

int Doctor(const Arguments& arguments) {
  const std::vector<Finding> findings = RunProbes();
  int missing = 0;
  int limited = 0;
  for (const Finding& finding : findings) {
    missing += finding.verdict == Verdict::kMissing;
    limited += finding.verdict == Verdict::kLimited;
  }
  if (arguments.json) {
    json::array list;
    for (const Finding& finding : findings) list.push_back(ToJson(finding));
    const json::object out = {{"version", kVersion},
                              {"works", missing == 0},
                              {"limited", limited},
                              {"findings", std::move(list)}};
    std::fputs(PrettyJson(out).c_str(), stdout);
  } else {
    for (const Finding& finding : findings) PrintFinding(finding);
    if (missing > 0) {
      std::printf("\nVerbena does not work here until %d thing%s above %s fixed.\n", missing,
                  missing == 1 ? "" : "s", missing == 1 ? "is" : "are");
    } else {
      std::printf("\nVerbena works here%s.\n", limited > 0 ? ", with the limits named above" : "");
    }
  }
  return missing == 0 ? kExitOk : kExitFailed;
}

}  // namespace verbena::cli

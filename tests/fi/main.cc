// Asks a libfabric provider to keep what fi_domain(3) and its neighbours promise.
//
//   fi_conformance --provider NAME [--endpoint msg|rdm|dgram] [--node ADDRESS] [--case TEXT]...
//   [--json]
//                  [--list] [--in-process]
//
// Every case runs in a process of its own. --json prints a list of {case, endpoint, verdict,
// reason}, otherwise there is a line for each. Exits 0 whatever the answers are: they are for
// others to judge.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fi/fabric.h"
#include "tests/fi/suite.h"

namespace verbena::fi_test {
namespace {

struct Arguments {
  Target target;
  std::string endpoint;
  std::vector<std::string> cases;
  bool is_json = false, is_list = false, in_process = false;
};

constexpr const char* kVerdicts[] = {"yes", "no", "refused", "n.a.", "crashed", "hung"};

bool Parse(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--json") {
      out->is_json = true;
    } else if (word == "--list") {
      out->is_list = true;
    } else if (word == "--in-process") {
      out->in_process = true;
    } else if (word == "--provider" && has_value) {
      out->target.provider = argv[++i];
    } else if (word == "--endpoint" && has_value) {
      out->endpoint = argv[++i];
      if (FindEndpointType(out->endpoint) == nullptr) return false;
    } else if (word == "--node" && has_value) {
      out->target.node = argv[++i];
    } else if (word == "--patience" && has_value) {
      SetPatience(std::max(1, atoi(argv[++i])));
    } else if (word == "--case" && has_value) {
      out->cases.push_back(argv[++i]);
    } else {
      return false;
    }
  }
  return out->is_list || !out->target.provider.empty();
}

// Debian's libfabric loads libraries whose constructors catch signals and turn crashes into exits.
void BeWithoutHandlers(char** argv) {
  if (getenv("HFI_NO_BACKTRACE") != nullptr) return;
  setenv("HFI_NO_BACKTRACE", "1", 1);
  setenv("IPATH_NO_BACKTRACE", "1", 1);
  execv("/proc/self/exe", argv);
}

// A text that is a whole name means that case, otherwise it is a part of names.
bool IsChosen(const Arguments& arguments, const std::string& name) {
  if (arguments.cases.empty()) return true;
  for (const std::string& text : arguments.cases) {
    bool is_name = false;
    for (const Case& test : Cases()) is_name |= test.name == text;
    if (is_name ? name == text : name.find(text) != std::string::npos) return true;
  }
  return false;
}

// Asked in a child: fi_getinfo starts providers, and those don't live on in a forked child.
bool Lists(const std::string& provider, fi_ep_type type) {
  const Case ask = {"lists", kOnce, [&] {
                      const Info hints(fi_allocinfo());
                      hints->ep_attr->type = type;
                      hints->mode = ~0ULL;
                      hints->domain_attr->mode = ~0ULL;
                      hints->domain_attr->mr_mode =
                          FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
                      hints->fabric_attr->prov_name = strdup(provider.c_str());
                      fi_info* info = nullptr;
                      Need(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info),
                           "");
                      const Info all(info);
                      while (info != nullptr && provider != info->fabric_attr->prov_name) {
                        info = info->next;
                      }
                      Expect(info != nullptr, "only what is layered over it");
                    }};
  return RunIsolated(ask).verdict == Verdict::kYes;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out;
}

class Report {
 public:
  explicit Report(bool is_json) : is_json_(is_json) {
    if (is_json_) printf("[");
  }
  ~Report() { printf("%s", is_json_ ? "\n]\n" : ""); }
  void Add(const Case& test, const char* endpoint, const Answer& answer) {
    const char* verdict = kVerdicts[static_cast<int>(answer.verdict)];
    if (is_json_) {
      printf(
          "%s\n {\"case\": \"%s\", \"endpoint\": \"%s\", \"verdict\": \"%s\", \"reason\": \"%s\"}",
          count_ == 0 ? "" : ",", test.name.c_str(), endpoint, verdict,
          Escaped(answer.reason).c_str());
    } else {
      printf("%-8s %-5s %s%s%s\n", verdict, endpoint, test.name.c_str(),
             answer.reason.empty() ? "" : ": ", answer.reason.c_str());
    }
    fflush(stdout);
    ++count_;
  }

 private:
  const bool is_json_;
  int count_ = 0;
};

void RunOne(const Arguments& arguments, const Case& test, const char* endpoint, Report* report) {
  if (arguments.in_process) {  // for debuggers
    test.run();
    report->Add(test, endpoint, {});
  } else {
    report->Add(test, endpoint, RunIsolated(test));
  }
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    fprintf(stderr,
            "usage: fi_conformance --provider NAME [--endpoint msg|rdm|dgram] "
            "[--node ADDRESS] [--case TEXT]... [--json] [--patience TIMES] [--list]\n");
    return 2;
  }
  if (arguments.is_list) {
    for (const Case& test : Cases()) printf("%s\n", test.name.c_str());
    return 0;
  }
  BeWithoutHandlers(argv);
  setenv("FI_PROVIDER", arguments.target.provider.c_str(), 0);
  // What libfabric does once, it does here: in every case it would cost more than the case itself.
  fi_param* parameters = nullptr;
  int count = 0;
  if (fi_getparams(&parameters, &count) == 0) fi_freeparams(parameters);
  Report report(arguments.is_json);
  bool is_first = true;
  for (const EndpointType& type : kEndpointTypes) {
    if (!arguments.endpoint.empty() && arguments.endpoint != type.name) continue;
    if (!Lists(arguments.target.provider, type.type)) continue;
    arguments.target.type = type.type;
    Ask(arguments.target);
    for (const Case& test : Cases()) {
      if (!IsChosen(arguments, test.name)) continue;
      if ((test.endpoints & kOnce) != 0 ? is_first : (test.endpoints & type.endpoints) != 0) {
        RunOne(arguments, test, (test.endpoints & kOnce) != 0 ? "" : type.name, &report);
      }
    }
    is_first = false;
  }
  if (is_first) fprintf(stderr, "no such provider: %s\n", arguments.target.provider.c_str());
  return is_first ? 1 : 0;
}

}  // namespace
}  // namespace verbena::fi_test

int main(int argc, char** argv) { return verbena::fi_test::Main(argc, argv); }

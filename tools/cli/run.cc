// `verbena run`: a program with our libraries in front, in a shared or a private instance.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "core/client/instance.h"
#include "tools/cli/child.h"
#include "tools/cli/commands.h"
#include "tools/cli/elf_check.h"
#include "tools/cli/guardian.h"
#include "tools/cli/paths.h"
#include "tools/cli/session.h"
#include "tools/cli/table.h"

namespace verbena::cli {
namespace {

// A shared instance outlives its last program a little, so that the next one finds it warm.
constexpr int kSharedIdleExitS = 5;
// A private one is ended by us; this counts only when we were killed.
constexpr int kPrivateIdleExitS = 2;

// The instance that CMD runs in; a private one ends and vanishes with this object.
class Instance {
 public:
  Instance() = default;
  ~Instance() {
    hold_.Close();
    if (!private_) return;
    std::string error;
    EndInstance(directory_, true, &error);
    RemoveInstanceDirectory(directory_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  bool Open(const Arguments& arguments, std::string* error) {
    // NICs of CMD's own are no business of other programs.
    private_ = arguments.private_instance || arguments.has_own_nics;
    if (private_) {
      if (!CreatePrivateDirectory(&directory_, error)) {
        private_ = false;
        return false;
      }
    } else {
      directory_ = client::InstanceDirectory(true);
      if (directory_.empty()) {
        *error = DirectoryProblem(errno);
        return false;
      }
    }
    const int idle_exit_s = private_ ? kPrivateIdleExitS : kSharedIdleExitS;
    if (!JoinOrStart(OptionsFor(arguments, directory_, idle_exit_s), &hold_, error)) {
      // The log of a private instance goes with its directory, so what it says is told now.
      if (private_) {
        *error = error->substr(0, error->find("; its log: "));
        const std::string tail = LogTail(directory_);
        // Mostly the log says the same once more.
        const size_t reason = error->find(": ");
        const bool is_said = reason != std::string::npos &&
                             tail.find(error->substr(reason + 2)) != std::string::npos;
        *error += is_said ? "." : ".\n" + tail;
      }
      return false;
    }
    if (private_) {
      const int pidfd = DaemonPidfd(directory_);
      guardian_.emplace(directory_, pidfd);
      if (pidfd >= 0) ::close(pidfd);
    } else if (arguments.nics.has_value()) {
      return EnsureNics(directory_, *arguments.nics, error);
    }
    return true;
  }

  const std::string& directory() const { return directory_; }
  bool is_private() const { return private_; }

 private:
  std::string directory_;
  bool private_ = false;
  AdminConnection hold_{-1};
  std::optional<Guardian> guardian_;  // destroyed after the destructor's body has cleaned up
};

// A capture or trace that is not whole must not be taken for one: a disk may be full.
int EndRecording(const std::string& kind, const std::string& directory, int code) {
  json::object reply;
  std::string error;
  const json::object request = {{"op", kind}, {"action", "stop"}};
  if (AskInstance(directory, request, &reply, &error) == AskResult::kOk) {
    error = FieldText(reply, "failure", "");
    if (error.empty()) return code;
  } else if (error.empty()) {
    error = "the instance ended";
  }
  return Fail("the " + kind + " is not whole: " + error + ".", code != 0 ? code : kExitFailed);
}

// A rule that never fired means that the run did not test what it was meant to.
int JudgeFaults(const std::string& directory, int code) {
  json::object reply;
  std::string error;
  const json::object request = {{"op", "faults"}, {"action", "report"}};
  if (AskInstance(directory, request, &reply, &error) != AskResult::kOk) {
    return Fail("what the fault rules did can't be told: " +
                    (error.empty() ? "the instance ended." : error),
                code != 0 ? code : kExitFailed);
  }
  const json::value* unfired = reply.if_contains("unfired");
  if (unfired == nullptr || !unfired->is_array() || unfired->get_array().empty()) return code;
  for (const json::value& rule : unfired->get_array()) {
    Fail("this fault rule never fired: " + CellText(rule));
  }
  return code != 0 ? code : kExitUnfiredRule;
}

}  // namespace

int RunProgram(const Arguments& arguments) {
  std::string error;
  std::string libraries;
  if (!LibraryDirectory(&libraries, &error)) return Fail(error, kExitRunFailed);
  const std::string& name = arguments.program[0];
  const char* path_list = ::getenv("PATH");
  ChildSpec child;
  child.path = FindProgram(name, path_list != nullptr ? path_list : "/usr/local/bin:/usr/bin:/bin");
  if (child.path.empty()) {
    const bool missing = errno == ENOENT;
    return missing ? Fail(name + ": not found.", kExitNotFound)
                   : Fail(name + ": found, but it is not an executable file.", kExitNotExecutable);
  }
  child.argv = arguments.program;
  ProgramEnvironment environment;
  const EnvironmentWish wish = {libraries, child.path, !arguments.no_paths,
                                arguments.system_librdmacm, ::getenv("FI_PROVIDER_PATH")};
  if (!MakeEnvironment(wish, ::getenv("LD_LIBRARY_PATH"), ::getenv("LD_PRELOAD"), &environment,
                       &error)) {
    return Fail(error, kExitRunFailed);
  }
  child.environment.emplace_back("LD_LIBRARY_PATH", environment.library_path);
  if (!environment.fi_providers.empty()) {
    child.environment.emplace_back("FI_PROVIDER_PATH", environment.fi_providers);
  }
  if (!environment.preload.empty()) {
    child.environment.emplace_back("LD_PRELOAD", environment.preload);
    child.environment.emplace_back("ASAN_OPTIONS", AllowPreload(::getenv("ASAN_OPTIONS")));
  }
  if (!arguments.dma.empty()) {
    child.environment.emplace_back("VERBENA_DMA", arguments.dma);
  } else if (const char* dma = ::getenv("VERBENA_DMA"); dma != nullptr && *dma != '\0') {
    const std::string error = DmaError("VERBENA_DMA", dma);
    if (!error.empty()) return Fail(error, kExitUsage);
  }
  // Looked at before: CMD may replace itself.
  const std::string warning = LibraryWarning(child.path, libraries);
  int code;
  {
    Instance instance;
    if (!instance.Open(arguments, &error)) return Fail(error, kExitRunFailed);
    if (instance.is_private()) {
      child.environment.emplace_back("VERBENA_INSTANCE", instance.directory());
      // It runs already. Were it gone, a new one would be nobody's to end.
      child.environment.emplace_back("VERBENA_AUTOSTART", "0");
    }
    code = RunChild(child, &error);
    for (const std::string& kind : arguments.records) {
      if (error.empty()) code = EndRecording(kind, instance.directory(), code);
    }
    if (arguments.has_faults && error.empty()) code = JudgeFaults(instance.directory(), code);
  }
  if (!error.empty()) Fail(error);
  if (!warning.empty()) std::fprintf(stderr, "verbena: warning: %s\n", warning.c_str());
  return code;
}

}  // namespace verbena::cli

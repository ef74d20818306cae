// `verbena up`, `down` and `env`.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>

#include "core/client/instance.h"
#include "tools/cli/child.h"
#include "tools/cli/commands.h"
#include "tools/cli/guardian.h"
#include "tools/cli/paths.h"
#include "tools/cli/session.h"

namespace verbena::cli {
namespace {

bool OwnDirectory(std::string* directory) {
  *directory = client::InstanceDirectory(true);
  if (!directory->empty()) return true;
  Fail(DirectoryProblem(errno));
  return false;
}

bool IsRunning(const std::string& directory) {
  const AdminConnection probe(client::ConnectInstance(directory));
  return probe.IsOpen();
}

// Quotes for a POSIX shell.
std::string Quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

// Runs verbenad as a child with its log on our standard error. Should another process start the
// instance at the same moment, one of the two daemons cannot bind the socket, says so and ends.
int UpInForeground(const Arguments& arguments, const std::string& directory) {
  if (IsRunning(directory)) {
    return Fail("an instance already runs here; end it with `verbena down` first.");
  }
  const std::string daemon = client::DaemonPath();
  if (daemon.empty()) return Fail("verbenad is not beside this program; run `tools/stage`.");
  const client::StartOptions options = OptionsFor(arguments, directory, 0);
  ChildSpec child;
  child.path = daemon;
  child.argv = {daemon, "--directory=" + directory, "--nics=" + std::to_string(options.nics),
                "--idle-exit-s=0"};
  child.argv.insert(child.argv.end(), options.extra_args.begin(), options.extra_args.end());
  std::string error;
  const int code = RunChild(child, &error);
  return error.empty() ? code : Fail(error);
}

}  // namespace

int Up(const Arguments& arguments) {
  std::string directory;
  if (!OwnDirectory(&directory)) return kExitFailed;
  if (arguments.foreground) return UpInForeground(arguments, directory);
  const bool was_running = IsRunning(directory);
  if (was_running && arguments.has_own_nics) {
    return Fail(
        "an instance already runs here, and --nic is for a new one; end it with "
        "`verbena down` first.");
  }
  std::string error;
  AdminConnection hold(-1);
  if (!JoinOrStart(OptionsFor(arguments, directory, 0), &hold, &error)) return Fail(error);
  if (arguments.nics.has_value() && !EnsureNics(directory, *arguments.nics, &error)) {
    return Fail(error);
  }
  // An instance that `run` or a program started ends when idle; the holder keeps it up.
  if (was_running && !StartHolder(hold.fd())) {
    return Fail(std::string("cannot start a process that keeps the instance: ") + strerror(errno) +
                ".");
  }
  hold.Close();
  std::printf("%s; `verbena status` shows it, `verbena down` ends it.\n",
              was_running ? "The running instance now stays up" : "An instance is up");
  if (arguments.has_netns) {
    // The default one belongs to the namespace that a program is in.
    std::printf("In other network namespaces programs find it by VERBENA_INSTANCE=%s.\n",
                directory.c_str());
  }
  return kExitOk;
}

int Down() {
  std::string directory;
  if (!OwnDirectory(&directory)) return kExitFailed;
  std::string error;
  switch (EndInstance(directory, false, &error)) {
    case AskResult::kNotRunning:
      std::printf("No instance is running.\n");
      return kExitOk;
    case AskResult::kFailed:
      return Fail(error);
    case AskResult::kOk:
      std::printf("The instance has ended.\n");
      return kExitOk;
  }
  return kExitFailed;
}

int Environment(const Arguments& arguments) {
  std::string libraries;
  std::string error;
  if (!LibraryDirectory(&libraries, &error)) return Fail(error);
  ProgramEnvironment environment;
  const EnvironmentWish wish = {libraries, "", !arguments.no_paths, arguments.system_librdmacm,
                                ::getenv("FI_PROVIDER_PATH")};
  if (!MakeEnvironment(wish, ::getenv("LD_LIBRARY_PATH"), ::getenv("LD_PRELOAD"), &environment,
                       &error)) {
    return Fail(error);
  }
  std::printf("export LD_LIBRARY_PATH=%s\n", Quote(environment.library_path).c_str());
  if (!environment.fi_providers.empty()) {
    std::printf("export FI_PROVIDER_PATH=%s\n", Quote(environment.fi_providers).c_str());
  }
  if (!environment.preload.empty()) {
    std::printf("export LD_PRELOAD=%s\n", Quote(environment.preload).c_str());
    const std::string asan_options = AllowPreload(::getenv("ASAN_OPTIONS"));
    std::printf("export ASAN_OPTIONS=%s\n", Quote(asan_options).c_str());
  }
  if (const char* instance = ::getenv("VERBENA_INSTANCE")) {
    std::printf("export VERBENA_INSTANCE=%s\n", Quote(instance).c_str());
  }
  if (!arguments.dma.empty()) std::printf("export VERBENA_DMA=%s\n", Quote(arguments.dma).c_str());
  return kExitOk;
}

}  // namespace verbena::cli

#include "tools/cli/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

#include "tools/cli/json.h"
#include "tools/cli/paths.h"

namespace verbena::cli {
namespace {

// An instance may end by itself between our connecting and our hold; then a new one is started.
constexpr int kJoinAttempts = 3;
constexpr int kEndTimeoutMs = 10'000;

// Flags by name; of several the last one counts, but each --nic is a NIC.
std::map<std::string, std::string> ByName(const std::vector<std::string>& flags) {
  std::map<std::string, std::string> out;
  for (const std::string& flag : flags) {
    const std::string name = flag.substr(0, flag.find('='));
    out[name == "--nic" ? flag : name] = flag;
  }
  return out;
}

// Which of the flags for a new instance the running one was not started with.
std::string MissingFlags(const std::string& directory, const std::vector<std::string>& wanted) {
  json::object reply;
  std::string error;
  if (wanted.empty() ||
      AskInstance(directory, {{"op", "flags"}}, &reply, &error) != AskResult::kOk) {
    return "";
  }
  std::vector<std::string> words;
  if (const json::value* flags = reply.if_contains("flags"); flags && flags->is_array()) {
    for (const json::value& flag : flags->get_array()) words.push_back(CellText(flag));
  }
  const std::map<std::string, std::string> has = ByName(words);
  std::string missing;
  for (const auto& [name, flag] : ByName(wanted)) {
    const auto found = has.find(name);
    if (found != has.end() && found->second == flag) continue;
    missing += (missing.empty() ? "" : " ") + flag;
  }
  return missing;
}

}  // namespace

client::StartOptions OptionsFor(const Arguments& arguments, const std::string& directory,
                                int idle_exit_s) {
  client::StartOptions options;
  options.directory = directory;
  options.nics = arguments.nics.value_or(1);
  options.idle_exit_s = idle_exit_s;
  if (!arguments.name_prefix.empty()) {
    options.extra_args.push_back("--name-prefix=" + arguments.name_prefix);
  }
  options.extra_args.insert(options.extra_args.end(), arguments.set.begin(), arguments.set.end());
  return options;
}

bool JoinOrStart(const client::StartOptions& options, AdminConnection* hold, std::string* error) {
  for (int attempt = 0; attempt < kJoinAttempts; ++attempt) {
    error->clear();
    AdminConnection connection(client::ConnectOrStart(options, error));
    if (!connection.IsOpen()) {
      if (error->empty()) *error = std::string("cannot start verbenad: ") + strerror(errno) + ".";
      return false;
    }
    const AskResult result = connection.Hold(error);
    if (result == AskResult::kOk) {
      const std::string missing = MissingFlags(options.directory, options.extra_args);
      if (!missing.empty()) {
        *error = "the running instance was not started with " + missing +
                 "; end it with `verbena down` first, or have one of your own by `run --private`.";
        return false;
      }
      *hold = std::move(connection);
      return true;
    }
    // Only an instance that ended while we came is worth another try.
    if (result == AskResult::kFailed) return false;
  }
  return false;
}

bool EnsureNics(const std::string& directory, int total, std::string* error) {
  json::object reply;
  const json::object request = {{"op", "add-nics"}, {"total", total}};
  const AskResult result = AskInstance(directory, request, &reply, error);
  if (result == AskResult::kNotRunning) *error = "the instance ended.";
  return result == AskResult::kOk;
}

int DaemonPidfd(const std::string& directory) {
  json::object reply;
  std::string error;
  if (AskInstance(directory, {{"op", "status"}}, &reply, &error) != AskResult::kOk) return -1;
  const pid_t pid = static_cast<pid_t>(FieldNumber(reply, "pid"));
  return pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
}

bool WaitForEnd(int pidfd, int timeout_ms) {
  pollfd waited = {.fd = pidfd, .events = POLLIN, .revents = 0};
  int ready;
  do {
    ready = ::poll(&waited, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

AskResult EndInstance(const std::string& directory, bool kill_if_stuck, std::string* error) {
  const int pidfd = DaemonPidfd(directory);
  json::object reply;
  AskResult result = AskInstance(directory, {{"op", "down"}}, &reply, error);
  if (pidfd < 0) return result;
  if (result == AskResult::kOk && !WaitForEnd(pidfd, kEndTimeoutMs)) {
    result = AskResult::kFailed;
    *error = "verbenad was asked to end but is still there after 10 s; see its log in " +
             directory + "/log.";
  }
  if (result == AskResult::kFailed && kill_if_stuck) {
    ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
    WaitForEnd(pidfd, kEndTimeoutMs);
  }
  ::close(pidfd);
  return result;
}

}  // namespace verbena::cli

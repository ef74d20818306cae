// verbenad: puts the device, its copy engine, its shard and its control plane together.
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/networks.h"
#include "softnic/control/server.h"
#include "softnic/daemon/options.h"
#include "softnic/device/device.h"
#include "softnic/dma/crew.h"
#include "softnic/dma/process_dma.h"
#include "softnic/engine/shard.h"

namespace {

using verbena::ReadMonotonicClock;
using verbena::softnic::ControlServer;
using verbena::softnic::CopyCrew;
using verbena::softnic::DaemonOptions;
using verbena::softnic::Device;
using verbena::softnic::DeviceConfig;
using verbena::softnic::Log;
using verbena::softnic::Networks;
using verbena::softnic::ProcessDma;
using verbena::softnic::Shard;

constexpr char kVersion[] = "0.1.0";
// Threads that hang in a client's memory are left behind at exit; the others are gone long before.
constexpr int kStopWaitMs = 500;

// Tells whoever started us, on the fd they gave, and in the log.
int Fail(const DaemonOptions& options, const std::string& text) {
  std::fprintf(stderr, "verbenad: %s\n", text.c_str());
  if (options.ready_fd >= 0) {
    std::string line = "E" + text + "\n";
    (void)!write(options.ready_fd, line.data(), line.size());
    close(options.ready_fd);
  }
  return 1;
}

void TellReady(const DaemonOptions& options) {
  if (options.ready_fd < 0) return;
  (void)!write(options.ready_fd, "R", 1);
  close(options.ready_fd);
}

rlim_t RaiseLimit(__rlimit_resource resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return RLIM_INFINITY;
  if (limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
  }
  return limit.rlim_max;
}

// Each client costs half a dozen fds, and the soft limit is often 1024; queues are in files of
// memory. Empty, or why no client could be served.
std::string RaiseLimits() {
  RaiseLimit(RLIMIT_NOFILE);
  const rlim_t bytes_max = RaiseLimit(RLIMIT_FSIZE);
  const uint64_t needed_bytes = verbena::softnic::ArenaLimits{}.arena_bytes;
  if (bytes_max == RLIM_INFINITY || bytes_max >= needed_bytes) return "";
  return "`ulimit -f` allows files of " + std::to_string(bytes_max / 1024) +
         " KB, and shared memory for queues takes " + std::to_string(needed_bytes / 1024) +
         ": raise it";
}

void IgnoreSignals() {
  signal(SIGPIPE, SIG_IGN);  // a client that is gone is an errno
  signal(SIGXFSZ, SIG_IGN);  // `ulimit -f` is an errno
}

int Serve(const DaemonOptions& options) {
  DeviceConfig config;
  config.limits = options.limits;
  config.completion_clock = ReadMonotonicClock;
  Networks networks(options.network);
  if (networks.IsUsed()) {
    std::string error = networks.Open(options.nics, options.control.name_prefix,
                                      options.control.mtu_bytes, &config.nics);
    if (!error.empty()) return Fail(options, error);
  }
  for (uint32_t i = 0; i < options.nics && !networks.IsUsed(); ++i) {
    config.nics.push_back(
        verbena::softnic::MakeNicConfig(options.control.name_prefix, i, options.control.mtu_bytes));
  }
  CopyCrew crew;
  ProcessDma dma(&crew);
  Device device(config, &dma);
  Shard shard(&device, &dma, &crew);
  if (!shard.Open()) {
    return Fail(options, std::string("can't make the event loop: ") + strerror(errno));
  }
  Log log(options.log_level);
  ControlServer server(options.control, &device, &dma, &shard, log, &networks.namespaces());
  std::string error = server.Open();
  if (error.empty()) error = networks.Attach(&device, &shard);
  if (!error.empty()) return Fail(options, error);
  networks.Watch(server.io(), log, [&server] { server.RefreshPaths(); });
  server.SetTaps(networks.taps());
  server.ShowPaths(device.ListNicStatuses());
  shard.Start();
  TellReady(options);
  server.Run();
  // If not, the end of their sockets tells the clients: with the last thread, which the exit kills.
  if (shard.Stop(kStopWaitMs)) server.TellStopped();
  // No destructors: a thread may still hang in a client's memory, and the kernel frees everything.
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  IgnoreSignals();
  DaemonOptions options;
  options.control.version = kVersion;
  std::string error = ParseOptions(argc, argv, &options);
  if (!error.empty()) return Fail(options, error);
  if (options.wants_help) {
    std::fputs(verbena::softnic::HelpText().c_str(), stdout);
    return 0;
  }
  error = RaiseLimits();
  if (!error.empty()) return Fail(options, error);
  try {
    return Serve(options);
  } catch (const std::exception& e) {
    return Fail(options, std::string("can't start: ") + e.what());
  }
}

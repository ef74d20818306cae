// Finding, joining and starting an instance: which daemon serves this process.
//
// An instance is one daemon: one per user and network namespace by default, or a private one. Its
// directory holds `sock` (the attach socket), `lock` (held while starting) and `log`.
//   default: /run/user/UID/verbena/net-INODE, or /tmp/verbena-UID/net-INODE where that is missing.
//   VERBENA_INSTANCE=DIR names another directory (what `verbena run --private` sets).
// Used by the shims (autostart) and by the CLI. No exceptions, no logging, no threads.
#pragma once

#include <string>
#include <vector>

#include "core/shm/attach.h"

namespace verbena::client {

// Directory of the instance this process belongs to. Created (0700) when `create`; its owner is
// checked. Empty on failure, errno set.
std::string InstanceDirectory(bool create);

struct StartOptions {
  std::string directory;  // from InstanceDirectory, or a private one
  int nics = 1;
  int idle_exit_s = 5;                  // ends when no client for this long; 0: never
  std::vector<std::string> extra_args;  // further verbenad flags, e.g. "--dma=process"
};

// Path of the verbenad to start: VERBENA_DAEMON, else beside this library or program
// (../bin/verbenad, ./verbenad). Empty if there is none, errno = ENOENT.
std::string DaemonPath();

// Connects to the instance's socket. The fd, or -1 with errno (ENOENT/ECONNREFUSED: none runs).
int ConnectInstance(const std::string& directory);

// Connects, starting the daemon under the directory's lock when none runs: setsid, all inherited
// fds closed, stdio to the log, default signal mask and dispositions, no LD_PRELOAD; returns when
// the daemon says it is ready (or died: errno, and `error` names the log).
int ConnectOrStart(const StartOptions& options, std::string* error);

// Whether VERBENA_AUTOSTART allows starting (default yes; "0" turns it off).
bool AutostartAllowed();

// Lists the NICs over a fresh connection. 0 or errno.
int ListNics(int fd, std::vector<shm::NicInfo>* out);

}  // namespace verbena::client

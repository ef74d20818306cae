// Finding, joining and starting an instance: which daemon serves this process.
//
// An instance is one daemon: one per user and network namespace by default, or a private one. Its
// directory holds `sock` (the attach socket), `lock` (held while starting) and `log`.
//   default: /run/user/UID/verbena/net-INODE, or /tmp/verbena-UID/net-INODE where that is missing.
//   VERBENA_INSTANCE=DIR names another directory (what `verbena run --private` sets).
// Used by the shims (autostart) and by the CLI. No logging, no threads; no exceptions but
// bad_alloc, which the shims turn into ENOMEM (no_memory.h).
#pragma once

#include <string>
#include <vector>

#include "core/client/session.h"
#include "core/shm/attach.h"

namespace verbena::client {

// The inode of this thread's network namespace; 0: not known, as without /proc.
uint64_t NetworkNamespaceInode();

// Directory of the instance this process belongs to. Created (0700) when `create`; its owner is
// checked. Empty on failure, errno set.
// Of the default places the first that holds an instance counts, else the first that can be used: a
// place that another user took, that is read-only or a symbolic link is passed over.
// Errors: ENOENT (not `create`); EPERM: not ours, a link, or writable by others; those of mkdir(2).
std::string InstanceDirectory(bool create);

struct StartOptions {
  std::string directory;  // from InstanceDirectory, or a private one
  int nics = 1;
  int idle_exit_s = 5;                  // ends when no client for this long; 0: never
  std::vector<std::string> extra_args;  // further verbenad flags, e.g. "--dma=process"
};

// Path of the verbenad to start: VERBENA_DAEMON, else beside this library or program
// (../bin/verbenad, ./verbenad, ../../bin/verbenad). Empty if there is none, errno = ENOENT.
std::string DaemonPath();

// Connects to the instance's socket. The fd, or -1 with errno (ENOENT/ECONNREFUSED: none runs).
int ConnectInstance(const std::string& directory);

// Connects, starting the daemon under the directory's lock when none runs: setsid, all inherited
// fds closed, stdio to the log, default signal mask and dispositions, no LD_PRELOAD; returns when
// the daemon says it is ready (or died: errno, and `error` names the log). The daemon is no child
// of the caller: its end raises no SIGCHLD and leaves nothing to wait for.
int ConnectOrStart(const StartOptions& options, std::string* error);

// Whether VERBENA_AUTOSTART allows starting (default yes; "0" turns it off).
bool AutostartAllowed();

// Lists the NICs over a fresh connection, and closes it. 0 or errno (ECONNRESET: the daemon ended
// before it answered; the two functions below try again then).
int ListNics(int fd, std::vector<shm::NicInfo>* out);

// The steps above in one, repeated when an idle daemon ends between them. Without `may_start`,
// ENOENT or ECONNREFUSED: none runs. 0 or errno; `error` (may be null) then says why in plain
// words.
int ListInstanceNics(const StartOptions& options, bool may_start, std::vector<shm::NicInfo>* out,
                     std::string* error);
int OpenSession(const StartOptions& options, bool may_start, uint32_t nic, Session** out,
                std::string* error);

}  // namespace verbena::client

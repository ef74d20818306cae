// Joining, starting and ending an instance: what `run`, `up` and `down` have in common.
#pragma once

#include <string>

#include "core/client/instance.h"
#include "tools/cli/admin.h"
#include "tools/cli/args.h"

namespace verbena::cli {

// Daemon flags and NIC count that the arguments ask for.
client::StartOptions OptionsFor(const Arguments& arguments, const std::string& directory,
                                int idle_exit_s);

// Connects to the instance, starts it when none runs, and holds it, so that it cannot end before
// the caller is done. False with `error`.
bool JoinOrStart(const client::StartOptions& options, AdminConnection* hold, std::string* error);

// Adds NICs to a running instance until it has `total`. False with `error`.
bool EnsureNics(const std::string& directory, int total, std::string* error);

// A pidfd of the instance's daemon, or -1 when none runs or it cannot be had.
int DaemonPidfd(const std::string& directory);

// Waits until the process behind `pidfd` has ended. False after the timeout.
bool WaitForEnd(int pidfd, int timeout_ms);

// Asks the daemon to end and waits; a private instance's daemon that does not is killed.
// kNotRunning when there was none.
AskResult EndInstance(const std::string& directory, bool kill_if_stuck, std::string* error);

}  // namespace verbena::cli

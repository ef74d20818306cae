// Starting verbenad from inside any process, however many threads, fds and signal handlers it has.
#pragma once

#include <string>

#include "core/client/instance.h"

namespace verbena::client {

// Starts the daemon and waits until it says it is ready. 0 or errno and `error` (may be null).
// Precondition: the caller holds the directory's lock.
int StartDaemon(const StartOptions& options, std::string* error);

// strerror without its shared buffer.
std::string ErrorText(int code);

}  // namespace verbena::client

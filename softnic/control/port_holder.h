// Who holds a UDP port that a NIC needs, for an error that says what to do.
#pragma once

#include <string>

#include "core/base/types.h"

namespace verbena::softnic {

// Who holds UDP `port` on `address` (all zero: on any): "verbenad (pid 812)", "the kernel's
// rdma_rxe", "another user's process", or empty if it can't be told.
std::string HolderOfUdpPort(const Gid& address, uint16_t port);

}  // namespace verbena::softnic

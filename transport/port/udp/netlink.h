// A socket to the kernel's routing tables; nothing here needs a privilege.
#pragma once

#include <cstdint>

namespace verbena::transport {

// Told of the changes that `groups` (RTMGRP_*) are about. -1: errno.
int OpenNetlink(uint32_t groups, int flags);

}  // namespace verbena::transport

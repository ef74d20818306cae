// What fi_info says of the NIC itself (fi_nic(3)). Nothing here talks to a NIC.
#pragma once

#include <rdma/fabric.h>

#include "core/shm/command.h"

namespace verbena::fi {

// nullptr: no memory.
fid_nic* MakeNic(const char* name, const shm::QueryDeviceReply& device,
                 const shm::QueryPortReply& port);
// nullptr: no memory, or nothing to copy.
fid_nic* CopyNic(const fid_nic* nic);
// Also of copies that libfabric made: their parts are malloc's, as ours are.
void FreeNic(fid_nic* nic);

}  // namespace verbena::fi

// The NICs of this process's instance, and sessions with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/client/session.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"

namespace verbena::fi {

// All NICs, of an instance that is started if there is none and VERBENA_AUTOSTART allows it.
// 0 or a positive errno; `text` then says why.
int ListNics(std::vector<shm::NicInfo>* out, std::string* text);
// What getinfo has to know of a NIC.
struct NicFacts {
  shm::QueryDeviceReply device = {};
  shm::QueryPortReply port = {};
  std::vector<shm::GidEntry> gids;
};
// 0 or a positive errno.
int QueryNumbers(client::Session* session, shm::QueryDeviceReply* device,
                 shm::QueryPortReply* port);
// The same errors as ListNics.
int QueryNic(uint32_t nic, NicFacts* out, std::string* text);
// The one of that index. The same errors; -FI_ errnos are the caller's.
int OpenSession(uint32_t nic, client::Session** out, std::string* text);

}  // namespace verbena::fi

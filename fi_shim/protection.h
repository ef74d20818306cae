// The PDs of a domain, each a key space of its own: the domain's, one for each authorization key
// that is not the domain's, and with FI_MR_ENDPOINT one for each endpoint. Regions of one are out
// of reach through endpoints of another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fi_shim/objects.h"

namespace verbena::fi {

struct Endpoint;

// protection.cc. A PD, and a key for all memory of this process in it.
// Errors: -FI_ENOMEM; -FI_EIO: the daemon is gone; -FI_EOPNOTSUPP: VERBENA_DMA asks for what can't
// be had here.
int MakeProtection(Domain* domain, shm::Handle* pd, shm::Handle* whole_process_mr,
                   uint32_t* whole_process_lkey);
void UnmakeProtection(Domain* domain, shm::Handle pd, shm::Handle whole_process_mr);

// Gives an endpoint that is opened its PD (by its info's ep_attr and the domain's mr_mode), and
// takes it back. Errors: as above; -FI_EINVAL: a longer key than auth_key_bytes.
int Protect(Endpoint* ep);
void Unprotect(Endpoint* ep);

// The PD of endpoints with that key, made if there is none yet; each found is to be let go.
struct Protection {
  Protection* next = nullptr;
  shm::Handle pd = 0, whole_process_mr = 0;
  uint32_t whole_process_lkey = 0;
  uint32_t users = 0;
  uint8_t auth_key[32] = {};
  size_t auth_key_bytes = 0;
};
// nullptr: it is the domain's key.
int ProtectionOf(Domain* domain, const uint8_t* auth_key, size_t bytes, Protection** out);
void LetGo(Domain* domain, Protection* protection);

}  // namespace verbena::fi

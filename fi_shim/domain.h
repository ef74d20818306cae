// Domains: opening them, and which ones are open.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

// fi_domain, fi_domain2. Errors: -FI_EINVAL: attributes that getinfo would not grant, a peer's
// context without a domain; -FI_EBADFLAGS; -FI_ENODATA: no NIC of that name; -FI_ENODEV: no
// instance; -FI_ENOMEM.
int OpenDomain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context);
int OpenDomain2(fid_fabric* fabric, fi_info* info, fid_domain** domain, uint64_t flags,
                void* context);

// The first open domain of that name; nullptr.
fid_domain* FirstOpen(const char* name);
// Copies the name of an open domain. False: it is none of ours.
bool NameOfOpen(const fid_domain* domain, char (*name)[64]);

}  // namespace verbena::fi

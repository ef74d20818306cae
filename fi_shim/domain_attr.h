// What a domain can be asked to be.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

inline constexpr uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
inline constexpr uint64_t kDomainModes = FI_RESTRICTED_COMP;
inline constexpr int kMrModes = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                                FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT |
                                FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_COLLECTIVE;

// The bits that a mr_mode stands for, as a program of that version of the interface means it.
// False: no such mode, or bits that exclude each other.
bool ResolveMrMode(uint32_t version, int mode, bool has_local_mr, uint64_t* bits);

// Sets the domain's fields. nullptr, or the attribute that can't be had.
const char* TakeOver(const fi_info& info, Domain* domain);

}  // namespace verbena::fi

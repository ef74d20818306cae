// What the provider offers libfabric itself.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

namespace verbena::fi {

inline constexpr char kProviderName[] = "verbena";

// info.cc. Errors: -FI_ENODATA: nothing fits; -FI_EBADFLAGS; -FI_ENOMEM.
int GetInfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info);
// fabric.cc. -FI_EINVAL; -FI_ENOMEM.
int OpenFabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context);
void CleanUp();

}  // namespace verbena::fi

#include <rdma/fi_errno.h>

#include "fi_shim/host.h"
#include "fi_shim/nics.h"
#include "fi_shim/provider.h"

namespace verbena::fi {

int GetInfo(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info** info) {
  *info = nullptr;
  std::vector<shm::NicInfo> nics;
  std::string text;
  if (ListNics(&nics, &text) != 0 || nics.empty()) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "there is no NIC: %s", text.c_str());
    return -FI_ENODATA;
  }
  VERBENA_FI_INFO(FI_LOG_FABRIC, "no endpoints of any type yet");
  return -FI_ENODATA;
}

}  // namespace verbena::fi

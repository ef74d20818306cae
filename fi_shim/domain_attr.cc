// What a domain takes over of its attributes.
#include "fi_shim/domain_attr.h"

#include <string.h>

#include "fi_shim/enums.h"
#include "fi_shim/host.h"
#include "fi_shim/info.h"
#include "fi_shim/mr.h"

namespace verbena::fi {
namespace {

constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

const char* CheckModels(const fi_domain_attr& attr) {
  if (!IsUpTo(attr.threading, FI_THREAD_ENDPOINT)) return "threading";
  if (!IsUpTo(attr.control_progress, FI_PROGRESS_MANUAL)) return "control_progress";
  if (!IsUpTo(attr.data_progress, FI_PROGRESS_MANUAL)) return "data_progress";
  if (!IsUpTo(attr.resource_mgmt, FI_RM_ENABLED)) return "resource_mgmt";
  if (!IsUpTo(attr.av_type, FI_AV_TABLE)) return "av_type";
  if ((attr.caps & ~kDomainCaps) != 0) return "caps";
  if ((attr.mode & ~kDomainModes) != 0) return "mode";
  return nullptr;
}

}  // namespace

bool ResolveMrMode(uint32_t version, int mode, bool has_local_mr, uint64_t* bits) {
  const int old = mode & (FI_MR_BASIC | FI_MR_SCALABLE);
  if (old != 0 && mode != old) return false;  // beside no other bits
  if (old == (FI_MR_BASIC | FI_MR_SCALABLE)) return false;
  const bool knows_bits = FI_VERSION_GE(version, FI_VERSION(1, 5));
  if (!knows_bits && (mode & ~old) != 0) return false;
  if ((mode & ~kMrModes & ~old) != 0) return false;
  *bits = old == FI_MR_BASIC ? kBasicBits : static_cast<uint64_t>(mode & ~old);
  // FI_LOCAL_MR says the same for those who know no bits.
  if (has_local_mr && (old != 0 || !knows_bits)) *bits |= FI_MR_LOCAL;
  return true;
}

const char* TakeOver(const fi_info& info, Domain* domain) {
  const fi_domain_attr& attr = *info.domain_attr;
  if (const char* wrong = CheckModels(attr); wrong != nullptr) return wrong;
  if (!ResolveMrMode(domain->api_version, attr.mr_mode, (info.mode & FI_LOCAL_MR) != 0,
                     &domain->mr_mode)) {
    return "mr_mode";
  }
  // Before 1.5 there were no keys: the fields of such a program's structure are not there.
  if (FI_VERSION_GE(domain->api_version, FI_VERSION(1, 5))) {
    if (attr.auth_key_size > kAuthKeyBytesMax) return "auth_key_size";
    if (attr.auth_key_size != 0 && attr.auth_key == nullptr) return "auth_key";
    if (attr.auth_key_size != 0) memcpy(domain->auth_key, attr.auth_key, attr.auth_key_size);
    domain->auth_key_size = attr.auth_key_size;
  }
  if (attr.mr_key_size > kMrKeyBytes) return "mr_key_size";
  if (attr.cq_data_size > kCqDataBytes) return "cq_data_size";
  if (attr.threading != FI_THREAD_UNSPEC) domain->threading = attr.threading;
  if (attr.control_progress != FI_PROGRESS_UNSPEC) domain->control_progress = attr.control_progress;
  if (attr.data_progress != FI_PROGRESS_UNSPEC) domain->data_progress = attr.data_progress;
  if (attr.resource_mgmt != FI_RM_UNSPEC) domain->resource_mgmt = attr.resource_mgmt;
  domain->av_type = attr.av_type;
  domain->caps = attr.caps | info.caps;
  domain->mode = attr.mode;
  domain->addr_format = info.addr_format;
  if (FI_VERSION_GE(domain->api_version, FI_VERSION(1, 9))) domain->tclass = attr.tclass;
  return nullptr;
}

}  // namespace verbena::fi

// fi_fabric.
#include <string.h>

#include <new>

#include "fi_shim/domain.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/enums.h"
#include "fi_shim/eq.h"
#include "fi_shim/fids.h"
#include "fi_shim/host.h"
#include "fi_shim/info.h"
#include "fi_shim/open_list.h"
#include "fi_shim/provider.h"
#include "fi_shim/wait.h"

namespace verbena::fi {
namespace {

OpenList<Fabric> g_open;

int Close(fid* base) {
  auto* fabric = reinterpret_cast<Fabric*>(base);
  if (fabric->users.load() != 0) return -FI_EBUSY;
  g_open.Remove(fabric);
  delete fabric;
  return 0;
}

int OpenPassive(fid_fabric* base, fi_info* info, fid_pep** pep, void* context) {
  if (info == nullptr || pep == nullptr || info->ep_attr == nullptr) return -FI_EINVAL;
  if (NumberOf(info->ep_attr->type) != FI_EP_MSG) return -FI_EINVAL;
  return OpenPassiveEndpoint(reinterpret_cast<Fabric*>(base), info, pep, context);
}

fi_ops g_fid_ops = FidOps(Close);
fi_ops_fabric g_ops = {sizeof(fi_ops_fabric), OpenDomain, OpenPassive, OpenEq,
                       OpenWaitSet,           TryWaitAll, OpenDomain2};

}  // namespace

int OpenFabric(fi_fabric_attr* attr, fid_fabric** out, void* context) {
  if (attr == nullptr || out == nullptr) return -FI_EINVAL;
  if (attr->name != nullptr && strcmp(attr->name, kFabricName) != 0) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "there is no fabric %s, only %s", attr->name, kFabricName);
    return -FI_EINVAL;
  }
  auto* fabric = new (std::nothrow) Fabric();
  if (fabric == nullptr) return -FI_ENOMEM;
  fabric->fid.fid = {FI_CLASS_FABRIC, context, &g_fid_ops};
  fabric->fid.ops = &g_ops;
  // libfabric knows what fi_getinfo was asked for; programs that fill the attributes themselves may
  // leave it out.
  fabric->api_version =
      attr->api_version != 0 ? attr->api_version : FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
  fabric->fid.api_version = fabric->api_version;
  g_open.Add(fabric);
  *out = &fabric->fid;
  return 0;
}

fid_fabric* FirstOpenFabric() {
  fid_fabric* first = nullptr;
  g_open.With([](const Fabric&) { return true; }, [&](Fabric& fabric) { first = &fabric.fid; });
  return first;
}

bool IsOpen(const fid_fabric* base) {
  return g_open.With([base](const Fabric& fabric) { return &fabric.fid == base; },
                     [](const Fabric&) {});
}

}  // namespace verbena::fi

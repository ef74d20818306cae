// The entry point: what libfabric learns when it has loaded the library.
#include "fi_shim/provider.h"

#include "fi_shim/host.h"

namespace verbena::fi {

// fi_version: of the interface this was written for. libfabric hides providers of an older one than
// the program asks for, and programs of 1.x ask for at most 1.99.
fi_provider g_provider = {
    .version = FI_VERSION(1, 0),
    .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
    .context = {},
    .name = kProviderName,
    .getinfo = GetInfo,
    .fabric = OpenFabric,
    .cleanup = CleanUp,
};

// Sessions belong to domains that the program has not closed: they end with the process.
void CleanUp() {}

}  // namespace verbena::fi

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini(void) {
  verbena::fi::FindHost(__builtin_return_address(0));
  return &verbena::fi::g_provider;
}

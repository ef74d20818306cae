// fi_cntr's inside.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

int OpenCntr(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context);
// Makes progress; whether it has changed since the last call, fi_cntr_set or fi_cntr_add (fi_poll).
bool HasChanged(Cntr* cntr);
// Whether who waits for it has to be woken by an fd: a HwCq made for it alone needs a channel.
bool WantsChannel(const Cntr* cntr);

}  // namespace verbena::fi

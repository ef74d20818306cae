// fi_eq_open.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

int OpenEq(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context);

}  // namespace verbena::fi

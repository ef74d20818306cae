// fi_av_open.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

int OpenAv(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context);

}  // namespace verbena::fi

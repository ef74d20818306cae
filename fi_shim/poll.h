// fi_poll_open.
#pragma once

#include "fi_shim/objects.h"

namespace verbena::fi {

int OpenPollSet(fid_domain* domain, fi_poll_attr* attr, fid_poll** set);

}  // namespace verbena::fi

// What registering and re-registering have in common.
#pragma once

#include "core/client/payload.h"
#include "verbs_shim/objects.h"

namespace verbena::verbs {

// Makes the range of the request present and says in it what of it the NIC can map. 0 or errno, as
// ibv_reg_mr gives it. `registration` stands for the range from then on.
int PrepareRegion(Context* context, client::Registration* registration, shm::RegMrRequest* request);

}  // namespace verbena::verbs

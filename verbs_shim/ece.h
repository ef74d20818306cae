// What a QP may do by its ECE options.
#pragma once

#include "verbs_shim/objects.h"
#include "verbs_shim/verbena/verbenadv.h"

namespace verbena::verbs {

// All that a QP of this service can do.
uint32_t EceOptionsOf(ibv_qp_type type);

// False: the options agreed upon do not have this opcode.
inline bool EceAllows(const Qp& qp, uint32_t opcode) {
  uint32_t option = 0;
  if (opcode == IBV_WR_ATOMIC_WRITE) option = VERBENADV_ECE_ATOMIC_WRITE;
  if (opcode == kWrFlushV64) option = VERBENADV_ECE_FLUSH;
  return option == 0 || (qp.ece_options.load(std::memory_order_relaxed) & option) != 0;
}

}  // namespace verbena::verbs

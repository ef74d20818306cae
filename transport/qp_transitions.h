// The QP state transitions and the attributes each requires and allows, as data.
//
// Spec: IBTA 10.3.1 (states), 11.2.5.2 (Modify QP, table of state transition properties).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace verbena::transport {

// One legal transition of one service. Attribute sets are shm::qp_mask bits; kState itself is
// always allowed. A pair (from, to) without a row is no transition (IBV: EINVAL).
struct QpTransition {
  QpState from;
  QpState to;
  Service service;
  uint32_t required;
  uint32_t optional;
  const char* clause;
};

extern const QpTransition kQpTransitions[];
extern const size_t kQpTransitionCount;

// nullptr: no such transition.
const QpTransition* FindQpTransition(QpState from, QpState to, Service service);

const char* QpStateName(QpState state);
const char* ServiceName(Service service);

}  // namespace verbena::transport

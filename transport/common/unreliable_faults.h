// What the responder of an unreliable service does about each fault, as data.
//
// Nothing is ever answered: a fault loses its message, or it is the receive WQE's own and that
// WQE's completion tells it.  Spec: IBTA 9.9.3 (responder fault classes).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "core/shm/attach.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

// Named after what is wrong.
enum class UnreliableFault : uint8_t {
  kNone,
  kPsnGap,
  kOpcodeSequence,
  kBadLength,
  kQKeyViolation,
  kNoReceiveWqe,
  kAccessDisabled,
  kRkeyViolation,
  kSourceFault,
  kWriteTargetFault,
  kReceiveTooShort,
  kMalformedWqe,
  kReceiveMemoryFault,
  kCorruptQueue,
};

enum class FaultEffect : uint8_t {
  kNone,
  kDropMessage,  // what is left of it too; a receive WQE taken for it waits for the next message
  kFailReceive,  // the receive WQE completes with the row's status, the QP goes to the error state
  kFatal,        // no completion can tell: the QP goes to the error state with IBV_EVENT_QP_FATAL
};

struct UnreliableFaultRow {
  UnreliableFault fault;
  const char* name;
  uint8_t services;  // bits 1 << Service that can meet it
  char error_class;  // 'A', 'D', 'E' of IBTA 9.9.3; '-' where the fault is no error
  FaultEffect effect;
  WcStatus status;            // with kFailReceive
  shm::VendorErr vendor_err;  // likewise; kNone: comes with the fault
  uint64_t QpCounters::*counter;
  const char* clause;
};

extern const UnreliableFaultRow kUnreliableFaults[];
extern const size_t kUnreliableFaultCount;

inline const UnreliableFaultRow& LookUpUnreliableFault(UnreliableFault fault) {
  return kUnreliableFaults[static_cast<size_t>(fault)];
}
const char* FaultEffectName(FaultEffect effect);

}  // namespace verbena::transport

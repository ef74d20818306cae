// What happens to a send WQE on each event, as data: state × event → action, next state, status.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "core/shm/attach.h"
#include "transport/qp_transport.h"

namespace verbena::transport::rc {

enum class WqeState : uint8_t {
  kPosted,    // fetched, no PSN yet
  kSending,   // has PSNs; some PDU of it is to be sent (again)
  kAwaiting,  // all sent; acknowledgement, response or placement outstanding
  kDone,      // completes when it is the oldest
  kError,     // completes with its status when it is the oldest, and fails the QP
};

enum class RequesterEvent : uint8_t {
  kNone,
  kStart,
  kLocalDone,
  kLocalFault,
  kPduSent,
  kLastPduSent,
  kAcked,
  kResponseTaken,
  kResponsePlaced,
  kResponseLost,
  kBadResponse,
  kResultFault,
  kSequenceNak,
  kImpliedNak,
  kTimeout,
  kRnrNak,
  kNakInvalidRequest,
  kNakRemoteAccess,
  kNakRemoteOperational,
  kRetryExceeded,
  kRnrRetryExceeded,
  kSourceFault,
};

enum class RequesterAction : uint8_t {
  kNone,
  kAssignPsns,
  kRetire,    // counts as progress: the oldest finished WQEs may complete
  kReopen,    // waits for its response again
  kRetry,     // go back to the PSN named, if the retry counter allows
  kRnrRetry,  // likewise, after the RNR delay
  kFail,      // keeps the row's status for the completion
};

struct RequesterEventRow {
  RequesterEvent event;
  const char* name;
  uint8_t states;  // bits 1 << WqeState in which the row applies; elsewhere the event is ignored
  RequesterAction action;
  WqeState next;
  WcStatus status;            // with kFail; kSuccess: the status comes with the event
  shm::VendorErr vendor_err;  // likewise
  uint64_t QpCounters::*counter;
  const char* clause;

  bool AppliesIn(WqeState state) const { return (states >> static_cast<int>(state) & 1) != 0; }
};

extern const RequesterEventRow kRequesterEvents[];
extern const size_t kRequesterEventCount;

const char* WqeStateName(WqeState state);
const char* RequesterActionName(RequesterAction action);

inline const RequesterEventRow& LookUpRequesterEvent(RequesterEvent event) {
  return kRequesterEvents[static_cast<size_t>(event)];
}

}  // namespace verbena::transport::rc

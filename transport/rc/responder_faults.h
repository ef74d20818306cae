// What a responder does about each fault, as data: the code acts on the row and decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "transport/pdu.h"
#include "transport/qp_transport.h"

namespace verbena::transport::rc {

// Named after what is wrong.
enum class ResponderFault : uint8_t {
  kNone,
  kPsnGap,
  kPsnGapAgain,
  kDuplicate,
  kOpcodeSequence,
  kUnsupportedOpcode,
  kAccessDisabled,
  kTooManyRdAtomic,
  kNoReceiveWqe,
  kBadLength,
  kReceiveTooShort,
  kMisalignedAtomic,
  kRkeyViolation,
  kMalformedWqe,
  kMemoryFault,
  kInvalidateRefused,
  kCorruptQueue,
};

enum class Reply : uint8_t {
  kSilence,
  kReplay,  // SEND and WRITE are acknowledged again, READ is read again, atomics replayed
  kNak,
  kRnrNak,
};

struct ResponderFaultRow {
  ResponderFault fault;
  const char* name;
  char error_class;  // 'A'…'J' of IBTA 9.9.3, '-' where the fault is no error
  Reply reply;
  NakCode nak_code;     // with Reply::kNak
  WcStatus cqe_status;  // of the receive WQE, if one was taken; kSuccess: none is completed
  bool fails_qp;        // to the error state
  bool has_event;
  EventType event;                // only where no CQE tells the story
  uint64_t QpCounters::*counter;  // nullptr: none
  const char* clause;
};

extern const ResponderFaultRow kResponderFaults[];
extern const size_t kResponderFaultCount;

const ResponderFaultRow& LookUpResponderFault(ResponderFault fault);

}  // namespace verbena::transport::rc

#include "transport/rc/responder_faults.h"

namespace verbena::transport::rc {
namespace {

using enum ResponderFault;
using C = QpCounters;

// Rows without an event carry kQpFatal as a filler; has_event says that it is none.
constexpr EventType kNoEvent = EventType::kQpFatal;
constexpr NakCode kNoNak = NakCode::kPsnSequenceError;
constexpr WcStatus kNoCqe = WcStatus::kSuccess;

}  // namespace

// clang-format off
constexpr ResponderFaultRow kResponderFaults[] = {
    {kNone, "kNone", '-', Reply::kSilence, kNoNak, kNoCqe, false, false, kNoEvent, nullptr, "-"},
    {kPsnGap, "kPsnGap", 'B', Reply::kNak, NakCode::kPsnSequenceError, kNoCqe, false,
     false, kNoEvent, &C::out_of_seq_request, "IBTA 9.7.5.2.6"},
    {kPsnGapAgain, "kPsnGapAgain", 'B', Reply::kSilence, kNoNak, kNoCqe, false,
     false, kNoEvent, &C::out_of_seq_request, "IBTA 9.7.5.2.6 (one NAK until recovered)"},
    {kDuplicate, "kDuplicate", '-', Reply::kReplay, kNoNak, kNoCqe, false,
     false, kNoEvent, &C::duplicate_request, "IBTA C9-105"},
    {kOpcodeSequence, "kOpcodeSequence", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, nullptr, "IBTA 9.7.4.1.3"},
    {kUnsupportedOpcode, "kUnsupportedOpcode", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, nullptr, "IBTA 9.7.4.1.4"},
    {kAccessDisabled, "kAccessDisabled", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, &C::access_disabled,
     "IBTA 9.7.4.1.4"},
    {kTooManyRdAtomic, "kTooManyRdAtomic", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, nullptr, "IBTA 9.7.4.1.5"},
    {kNoReceiveWqe, "kNoReceiveWqe", 'B', Reply::kRnrNak, kNoNak, kNoCqe, false,
     false, kNoEvent, &C::send_rnr_err, "IBTA 9.7.5.2.8"},
    {kBadLength, "kBadLength", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, nullptr, "IBTA C9-92, C9-94"},
    {kReceiveTooShort, "kReceiveTooShort", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kLocLenErr, true, true, EventType::kQpReqErr, nullptr, "IBTA 9.7.4.1.6"},
    {kMisalignedAtomic, "kMisalignedAtomic", 'C', Reply::kNak, NakCode::kInvalidRequest,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpReqErr, nullptr, "IBTA 9.4.5"},
    {kRkeyViolation, "kRkeyViolation", 'C', Reply::kNak, NakCode::kRemoteAccessError,
     WcStatus::kRemAccessErr, true, true, EventType::kQpAccessErr, nullptr, "IBTA 9.7.4.1.7"},
    {kMalformedWqe, "kMalformedWqe", 'A', Reply::kNak, NakCode::kRemoteOperationalError,
     WcStatus::kLocProtErr, true, true, EventType::kQpFatal, nullptr, "IBTA 9.9.3.1"},
    {kMemoryFault, "kMemoryFault", 'A', Reply::kNak, NakCode::kRemoteOperationalError,
     WcStatus::kLocProtErr, true, true, EventType::kQpAccessErr, nullptr, "IBTA 9.9.3.1"},
    {kInvalidateRefused, "kInvalidateRefused", 'J', Reply::kNak, NakCode::kRemoteAccessError,
     WcStatus::kRemInvReqErr, true, true, EventType::kQpAccessErr, nullptr, "IBTA 9.9.3.1.10"},
    {kCorruptQueue, "kCorruptQueue", 'A', Reply::kNak, NakCode::kRemoteOperationalError,
     WcStatus::kLocQpOpErr, true, true, EventType::kQpFatal, nullptr, "IBTA 9.9.3.1"},
};
// clang-format on
constexpr size_t kResponderFaultCount = sizeof(kResponderFaults) / sizeof(kResponderFaults[0]);

namespace {

constexpr bool RowsStandAtTheirIndex() {
  for (size_t i = 0; i < kResponderFaultCount; ++i) {
    if (static_cast<size_t>(kResponderFaults[i].fault) != i) return false;
  }
  return true;
}
static_assert(RowsStandAtTheirIndex());
static_assert(kResponderFaultCount == static_cast<size_t>(kCorruptQueue) + 1);

}  // namespace

const ResponderFaultRow& LookUpResponderFault(ResponderFault fault) {
  return kResponderFaults[static_cast<size_t>(fault)];
}

}  // namespace verbena::transport::rc

#include "transport/rc/requester_events.h"

namespace verbena::transport::rc {
namespace {

using A = RequesterAction;
using C = QpCounters;
using E = RequesterEvent;
using S = WqeState;
using V = shm::VendorErr;

constexpr uint8_t Bit(WqeState state) {
  return static_cast<uint8_t>(1u << static_cast<int>(state));
}
constexpr uint8_t kPosted = Bit(S::kPosted);
constexpr uint8_t kSending = Bit(S::kSending);
constexpr uint8_t kAwaiting = Bit(S::kAwaiting);
constexpr uint8_t kInFlight = kSending | kAwaiting;
constexpr WcStatus kOk = WcStatus::kSuccess;

}  // namespace

// clang-format off
constexpr RequesterEventRow kRequesterEvents[] = {
    {E::kNone, "kNone", 0, A::kNone, S::kPosted, kOk, V::kNone, nullptr, "-"},
    {E::kStart, "kStart", kPosted, A::kAssignPsns, S::kSending, kOk, V::kNone, nullptr,
     "IBTA 9.7.2"},
    {E::kLocalDone, "kLocalDone", kPosted, A::kRetire, S::kDone, kOk, V::kNone, nullptr,
     "IBTA 10.6.5"},
    {E::kLocalFault, "kLocalFault", kPosted | kSending, A::kFail, S::kError, kOk, V::kNone, nullptr,
     "IBTA 9.9.2.1"},
    {E::kPduSent, "kPduSent", kSending, A::kNone, S::kSending, kOk, V::kNone, nullptr,
     "IBTA 9.7.2"},
    {E::kLastPduSent, "kLastPduSent", kSending, A::kNone, S::kAwaiting, kOk, V::kNone, nullptr,
     "IBTA 9.7.2"},
    {E::kAcked, "kAcked", kInFlight, A::kRetire, S::kDone, kOk, V::kNone, nullptr,
     "IBTA 9.7.5.1.2"},
    {E::kResponseTaken, "kResponseTaken", kInFlight, A::kNone, S::kAwaiting, kOk, V::kNone, nullptr,
     "IBTA 9.7.5.1.9"},
    {E::kResponsePlaced, "kResponsePlaced", kAwaiting, A::kRetire, S::kDone, kOk, V::kNone, nullptr,
     "IBTA 9.7.5.1.9"},
    {E::kResponseLost, "kResponseLost", kInFlight, A::kReopen, S::kAwaiting, kOk, V::kNone, nullptr,
     "IBTA 9.7.5.1.1"},
    {E::kBadResponse, "kBadResponse", kInFlight, A::kFail, S::kError, WcStatus::kBadRespErr,
     V::kBadOpcode, nullptr, "IBTA 9.9.2.4.2"},
    {E::kResultFault, "kResultFault", kInFlight, A::kFail, S::kError, WcStatus::kLocProtErr,
     V::kNone, nullptr, "IBTA 9.9.2.1"},
    {E::kSequenceNak, "kSequenceNak", kInFlight, A::kRetry, S::kSending, kOk, V::kNone,
     &C::rcvd_seq_err, "IBTA 9.9.2.1.1"},
    {E::kImpliedNak, "kImpliedNak", kInFlight, A::kRetry, S::kSending, kOk, V::kNone,
     &C::rcvd_seq_err, "IBTA 9.7.5.1.1"},
    {E::kTimeout, "kTimeout", kInFlight, A::kRetry, S::kSending, kOk, V::kNone,
     &C::local_ack_timeout_err, "IBTA 9.7.6.1.3"},
    {E::kRnrNak, "kRnrNak", kInFlight, A::kRnrRetry, S::kSending, kOk, V::kNone, &C::rcvd_rnr_err,
     "IBTA 9.7.5.2.8"},
    {E::kNakInvalidRequest, "kNakInvalidRequest", kInFlight, A::kFail, S::kError,
     WcStatus::kRemInvReqErr, V::kPeerNak, nullptr, "IBTA 9.7.5.2.5"},
    {E::kNakRemoteAccess, "kNakRemoteAccess", kInFlight, A::kFail, S::kError,
     WcStatus::kRemAccessErr, V::kPeerNak, nullptr, "IBTA 9.7.5.2.3"},
    {E::kNakRemoteOperational, "kNakRemoteOperational", kInFlight, A::kFail, S::kError,
     WcStatus::kRemOpErr, V::kPeerNak, nullptr, "IBTA 9.7.5.2.4"},
    {E::kRetryExceeded, "kRetryExceeded", kInFlight, A::kFail, S::kError, WcStatus::kRetryExcErr,
     V::kRetryExceeded, &C::retry_exceeded_err, "IBTA 9.9.2.4.1"},
    {E::kRnrRetryExceeded, "kRnrRetryExceeded", kInFlight, A::kFail, S::kError,
     WcStatus::kRnrRetryExcErr, V::kRnrRetryExceeded, &C::retry_rnr_exceeded_err,
     "IBTA 9.9.2.4.1"},
    {E::kSourceFault, "kSourceFault", kInFlight, A::kFail, S::kError, WcStatus::kLocProtErr,
     V::kMemoryFault, nullptr, "IBTA 9.9.2.1"},
};
// clang-format on
constexpr size_t kRequesterEventCount = sizeof(kRequesterEvents) / sizeof(kRequesterEvents[0]);

namespace {

constexpr bool RowsStandAtTheirIndex() {
  for (size_t i = 0; i < kRequesterEventCount; ++i) {
    if (static_cast<size_t>(kRequesterEvents[i].event) != i) return false;
  }
  return true;
}
static_assert(RowsStandAtTheirIndex());
static_assert(kRequesterEventCount == static_cast<size_t>(E::kSourceFault) + 1);

}  // namespace

const char* WqeStateName(WqeState state) {
  constexpr const char* kNames[] = {"posted", "sending", "awaiting", "done", "error"};
  return kNames[static_cast<size_t>(state)];
}

const char* RequesterActionName(RequesterAction action) {
  constexpr const char* kNames[] = {"none",  "assign PSNs", "retire", "reopen",
                                    "retry", "RNR retry",   "fail"};
  return kNames[static_cast<size_t>(action)];
}

}  // namespace verbena::transport::rc

#include "transport/common/unreliable_faults.h"

namespace verbena::transport {
namespace {

using C = QpCounters;
using E = FaultEffect;
using F = UnreliableFault;
using V = shm::VendorErr;

constexpr uint8_t kUc = 1u << static_cast<int>(Service::kUc);
constexpr uint8_t kUd = 1u << static_cast<int>(Service::kUd);
constexpr WcStatus kNoCqe = WcStatus::kSuccess;

}  // namespace

// clang-format off
constexpr UnreliableFaultRow kUnreliableFaults[] = {
    {F::kNone, "kNone", kUc | kUd, '-', E::kNone, kNoCqe, V::kNone, nullptr, "-"},
    {F::kPsnGap, "kPsnGap", kUc, 'D', E::kDropMessage, kNoCqe, V::kNone,
     &C::out_of_seq_request, "IBTA 9.8.2.2.1"},
    {F::kOpcodeSequence, "kOpcodeSequence", kUc, 'D', E::kDropMessage, kNoCqe, V::kNone, nullptr,
     "IBTA 9.8.2.2.2"},
    {F::kBadLength, "kBadLength", kUc | kUd, 'D', E::kDropMessage, kNoCqe, V::kNone, nullptr,
     "IBTA 9.8.2.2.4, 9.8.3.2"},
    {F::kQKeyViolation, "kQKeyViolation", kUd, 'D', E::kDropMessage, kNoCqe, V::kNone,
     &C::qkey_violation, "IBTA 10.2.5"},
    {F::kNoReceiveWqe, "kNoReceiveWqe", kUc | kUd, 'D', E::kDropMessage, kNoCqe, V::kNone,
     &C::out_of_buffer, "IBTA 9.8.2.2.3, 9.8.3.2"},
    {F::kAccessDisabled, "kAccessDisabled", kUc, 'D', E::kDropMessage, kNoCqe, V::kNone,
     &C::access_disabled, "IBTA 9.8.2.2.3"},
    {F::kRkeyViolation, "kRkeyViolation", kUc, 'D', E::kDropMessage, kNoCqe, V::kNone, nullptr,
     "IBTA 9.8.2.2.5"},
    {F::kSourceFault, "kSourceFault", kUc | kUd, '-', E::kDropMessage, kNoCqe, V::kNone, nullptr,
     "as a lost packet"},
    {F::kWriteTargetFault, "kWriteTargetFault", kUc, 'D', E::kDropMessage, kNoCqe, V::kNone,
     nullptr, "IBTA 9.8.2.2.5"},
    {F::kReceiveTooShort, "kReceiveTooShort", kUc | kUd, 'A', E::kFailReceive,
     WcStatus::kLocLenErr, V::kReceiveTooShort, nullptr, "IBTA 9.9.3, 10.3.1.7"},
    {F::kMalformedWqe, "kMalformedWqe", kUc | kUd, 'A', E::kFailReceive,
     WcStatus::kLocProtErr, V::kNone, nullptr, "IBTA 9.9.3, 10.6.3"},
    {F::kReceiveMemoryFault, "kReceiveMemoryFault", kUc | kUd, 'A', E::kFailReceive,
     WcStatus::kLocProtErr, V::kMemoryFault, nullptr, "IBTA 9.9.3, 10.6.3"},
    {F::kCorruptQueue, "kCorruptQueue", kUc | kUd, 'A', E::kFatal, kNoCqe, V::kNone, nullptr,
     "IBTA 9.9.3, 11.6.3.2"},
};
// clang-format on
constexpr size_t kUnreliableFaultCount = sizeof(kUnreliableFaults) / sizeof(kUnreliableFaults[0]);

namespace {

constexpr bool RowsStandAtTheirIndex() {
  for (size_t i = 0; i < kUnreliableFaultCount; ++i) {
    if (static_cast<size_t>(kUnreliableFaults[i].fault) != i) return false;
  }
  return true;
}
static_assert(RowsStandAtTheirIndex());
static_assert(kUnreliableFaultCount == static_cast<size_t>(F::kCorruptQueue) + 1);

}  // namespace

const char* FaultEffectName(FaultEffect effect) {
  constexpr const char* kNames[] = {"none", "drop message", "fail receive", "fatal"};
  return kNames[static_cast<size_t>(effect)];
}

}  // namespace verbena::transport

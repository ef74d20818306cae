// What a completion that failed means to a libfabric program.
#include "core/shm/attach.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

using shm::VendorErr;

// What no NIC can say; else nullptr.
const char* TextOf(VendorErr vendor) {
  switch (vendor) {
    case VendorErr::kBadLKey:
      return "the descriptor of a local buffer is of no region";
    case VendorErr::kLKeyOtherPd:
      return "the descriptor of a local buffer is of another domain";
    case VendorErr::kLKeyBounds:
      return "a local buffer reaches beyond its region";
    case VendorErr::kLKeyAccess:
      return "the region of a local buffer was not registered for this operation";
    case VendorErr::kBadRKey:
      return "no region of the target has this key";
    case VendorErr::kRKeyOtherPd:
      return "the key is of another domain of the target";
    case VendorErr::kRKeyBounds:
      return "the target range reaches beyond the region";
    case VendorErr::kRKeyAccess:
      return "the target's region was not registered for this operation";
    case VendorErr::kQpAccess:
      return "the target endpoint does not allow this operation";
    case VendorErr::kRKeyBadState:
      return "the target's region is not enabled";
    case VendorErr::kMemoryFault:
      return "memory of a registered region is not there any more";
    case VendorErr::kMessageTooLong:
      return "the message is longer than the endpoint can send";
    case VendorErr::kReceiveTooShort:
    case VendorErr::kTruncated:
      return "the message was longer than the receive buffer";
    case VendorErr::kRetryExceeded:
      return "the peer does not answer";
    case VendorErr::kRnrRetryExceeded:
      return "the peer has no receive buffer";
    case VendorErr::kTooManyRdAtomic:
      return "more reads at once than were agreed upon";
    case VendorErr::kPeerNak:
      return "the target refused the operation";
    case VendorErr::kFlushedSent:
      return "one before it failed, or the endpoint was disabled; the peer may have carried it out";
    case VendorErr::kFlushed:
    case VendorErr::kFlushedDone:
      return "the endpoint was disabled before this operation was done";
    case VendorErr::kDeviceGone:
      return "the NIC (verbenad) is gone";
    default:
      return nullptr;
  }
}

int ErrnoOf(WcStatus status, VendorErr vendor, const char** text) {
  switch (status) {
    case WcStatus::kSuccess:
      return FI_SUCCESS;
    case WcStatus::kLocLenErr:
      *text = "the message was longer than the receive buffer";
      return vendor == VendorErr::kMessageTooLong ? FI_EMSGSIZE : FI_ETRUNC;
    case WcStatus::kLocQpOpErr:
      *text = "the request is not one that the endpoint can carry out";
      return FI_EINVAL;
    case WcStatus::kLocProtErr:
      *text = "a local buffer is not registered, or not for this";
      return vendor == VendorErr::kMemoryFault ? FI_EFAULT : FI_EACCES;
    case WcStatus::kLocAccessErr:
      *text = "a peer may not do that to local memory";
      return FI_EACCES;
    case WcStatus::kWrFlushErr:
      *text = "the endpoint was disabled before this operation was done";
      return vendor == VendorErr::kDeviceGone ? FI_ENODEV : FI_ECANCELED;
    case WcStatus::kRemAccessErr:
      *text = "the target has no such region, or it is not for this";
      return FI_EACCES;
    case WcStatus::kRemInvReqErr:
      *text = "the target could not accept the request";
      return FI_EREMOTEIO;
    case WcStatus::kRemOpErr:
      *text = "the target failed to carry out the request";
      return FI_EREMOTEIO;
    case WcStatus::kRetryExcErr:
      *text = "the peer does not answer";
      return FI_ETIMEDOUT;
    case WcStatus::kRnrRetryExcErr:
      *text = "the peer has no receive buffer";
      return FI_ENORX;
    default:
      *text = "the NIC could not carry out the operation";
      return FI_EIO;
  }
}

}  // namespace

Failure FailureOf(const Operation& operation, const shm::Cqe& cqe) {
  Failure failure;
  failure.context = operation.context;
  failure.flags = operation.flags;
  failure.buf = operation.buf;
  const auto vendor = static_cast<VendorErr>(cqe.vendor_err);
  failure.error = ErrnoOf(static_cast<WcStatus>(cqe.status), vendor, &failure.text);
  constexpr int kVendorBase = 1000;
  failure.provider =
      vendor == VendorErr::kNone ? cqe.status : kVendorBase + static_cast<int>(cqe.vendor_err);
  if (const char* text = TextOf(vendor); text != nullptr) failure.text = text;
  return failure;
}

}  // namespace verbena::fi

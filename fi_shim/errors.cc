#include "fi_shim/errors.h"

#include <stdio.h>
#include <string.h>

#include "core/base/types.h"
#include "core/shm/attach.h"

namespace verbena::fi {
namespace {

const char* StatusName(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess:
      return "success";
    case WcStatus::kLocLenErr:
      return "local length error";
    case WcStatus::kLocQpOpErr:
      return "local QP operation error";
    case WcStatus::kLocProtErr:
      return "local protection error";
    case WcStatus::kWrFlushErr:
      return "flushed: the endpoint failed or was closed before";
    case WcStatus::kMwBindErr:
      return "memory window bind error";
    case WcStatus::kBadRespErr:
      return "bad response";
    case WcStatus::kLocAccessErr:
      return "local access error";
    case WcStatus::kRemInvReqErr:
      return "the peer found the request invalid";
    case WcStatus::kRemAccessErr:
      return "the peer denied access to its memory";
    case WcStatus::kRemOpErr:
      return "the peer could not carry out the operation";
    case WcStatus::kRetryExcErr:
      return "the peer does not answer";
    case WcStatus::kRnrRetryExcErr:
      return "the peer has posted no receive";
    case WcStatus::kFatalErr:
      return "the NIC is gone";
    default:
      return "error";
  }
}

const char* VendorName(shm::VendorErr error) {
  using shm::VendorErr;
  switch (error) {
    case VendorErr::kNone:
      return "success";
    case VendorErr::kBadLKey:
      return "local buffer: no region has this key";
    case VendorErr::kLKeyOtherPd:
      return "local buffer: its region is of another domain or endpoint";
    case VendorErr::kLKeyBounds:
      return "local buffer: it leaves its region";
    case VendorErr::kLKeyAccess:
      return "local buffer: its region does not allow this access";
    case VendorErr::kBadRKey:
      return "peer: no region has this key";
    case VendorErr::kRKeyOtherPd:
      return "peer: the region of this key is of another domain or endpoint";
    case VendorErr::kRKeyBounds:
      return "peer: the access leaves the region of this key";
    case VendorErr::kRKeyAccess:
      return "peer: the region does not allow this access";
    case VendorErr::kQpAccess:
      return "peer: the endpoint does not allow this access";
    case VendorErr::kMisalignedAtomic:
      return "peer: the address of the atomic is not aligned";
    case VendorErr::kRKeyOtherQp:
      return "peer: the window is bound to another endpoint";
    case VendorErr::kRKeyBadState:
      return "peer: the region of this key is not enabled";
    case VendorErr::kMemoryFault:
      return "the memory of the region is not there";
    case VendorErr::kMessageTooLong:
      return "the message is longer than allowed";
    case VendorErr::kReceiveTooShort:
      return "the message is longer than the receive";
    case VendorErr::kTruncated:
      return "the message was longer than the receive and is cut off";
    case VendorErr::kBadOpcode:
      return "no such operation for this endpoint";
    case VendorErr::kBadAh:
      return "the address is of another domain";
    case VendorErr::kRetryExceeded:
      return "the peer does not answer";
    case VendorErr::kRnrRetryExceeded:
      return "the peer has posted no receive";
    case VendorErr::kTooManyRdAtomic:
      return "too many reads at once";
    case VendorErr::kBadWqe:
      return "malformed work request";
    case VendorErr::kPeerNak:
      return "the peer refused the operation";
    case VendorErr::kFlushedDone:
      return "flushed: one before it failed; the peer has carried it out";
    case VendorErr::kFlushedSent:
      return "flushed: one before it failed; the peer may have carried it out";
    case VendorErr::kFlushed:
      return "flushed: the endpoint failed or was closed before";
    case VendorErr::kDeviceGone:
      return "the NIC is gone";
  }
  return "error";
}

const char* RejectName(int reason) {
  switch (reason) {
    case 1:
      return "refused: the peer has no queue pair left";
    case 3:
      return "refused: the peer has no resources left";
    case 4:
      return "refused: the peer's program did not answer in time";
    case 5:
      return "refused: the peer does not support such a connection";
    case 8:
      return "refused: nobody listens at this address";
    case 10:
      return "refused: the peer still has an older connection of this queue pair";
    case 26:
      return "refused: the path's MTU";
    case 27:
      return "refused: too few responder resources";
    case 28:
      return "refused by the peer's program";
    default:
      return "refused by the peer's host";
  }
}

}  // namespace

const char* ProviderErrorName(int provider) {
  if (provider >= kRejectErrnoBase) return RejectName(provider - kRejectErrnoBase);
  if (provider >= kVendorErrnoBase) {
    return VendorName(static_cast<shm::VendorErr>(provider - kVendorErrnoBase));
  }
  if (provider < 0 || provider > 255) return "error";
  return StatusName(static_cast<WcStatus>(provider));
}

const char* ErrorText(int provider, const void* err_data, char* buf, size_t len) {
  // Error data beside a number is text; without one it is something else (an address).
  const char* text = provider != 0 && err_data != nullptr ? static_cast<const char*>(err_data)
                                                          : ProviderErrorName(provider);
  if (buf != nullptr && len != 0) snprintf(buf, len, "%s", text);
  return buf != nullptr && len != 0 ? buf : text;
}

}  // namespace verbena::fi

#include <gtest/gtest.h>

#include <cstring>

#include "core/shm/attach.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

Failure Of(WcStatus status, shm::VendorErr vendor = shm::VendorErr::kNone) {
  Operation operation;
  operation.context = &operation;
  operation.flags = FI_SEND | FI_MSG;
  shm::Cqe cqe = {};
  cqe.status = static_cast<uint8_t>(status);
  cqe.vendor_err = static_cast<uint32_t>(vendor);
  return FailureOf(operation, cqe);
}

TEST(Failure, HasTheErrnoThatLibfabricNamesForIt) {
  EXPECT_EQ(Of(WcStatus::kRnrRetryExcErr).error, FI_ENORX);
  EXPECT_EQ(Of(WcStatus::kLocLenErr).error, FI_ETRUNC);
  EXPECT_EQ(Of(WcStatus::kLocLenErr, shm::VendorErr::kMessageTooLong).error, FI_EMSGSIZE);
  EXPECT_EQ(Of(WcStatus::kWrFlushErr).error, FI_ECANCELED);
  EXPECT_EQ(Of(WcStatus::kWrFlushErr, shm::VendorErr::kDeviceGone).error, FI_ENODEV);
  EXPECT_EQ(Of(WcStatus::kRemAccessErr, shm::VendorErr::kBadRKey).error, FI_EACCES);
  EXPECT_EQ(Of(WcStatus::kRetryExcErr).error, FI_ETIMEDOUT);
}

// Whatever the NIC may say: an error, and words.
TEST(Failure, AlwaysHasAnErrorAndWords) {
  for (int status = 1; status < 256; ++status) {
    for (uint32_t vendor = 0; vendor < 0x200; ++vendor) {
      const Failure failure =
          Of(static_cast<WcStatus>(status), static_cast<shm::VendorErr>(vendor));
      ASSERT_GT(failure.error, 0) << status << " " << vendor;
      ASSERT_NE(failure.text, nullptr) << status << " " << vendor;
      ASSERT_GT(strlen(failure.text), 10u);
    }
  }
}

TEST(Failure, SaysWhichRuleRefusedIt) {
  EXPECT_STREQ(Of(WcStatus::kRemAccessErr, shm::VendorErr::kRKeyBounds).text,
               "the target range reaches beyond the region");
  EXPECT_EQ(Of(WcStatus::kRemAccessErr, shm::VendorErr::kRKeyBounds).provider, 1000 + 0x113);
  EXPECT_EQ(Of(WcStatus::kRemAccessErr).provider, 10);
}

}  // namespace
}  // namespace verbena::fi

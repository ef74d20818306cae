// Errors of the NIC in libfabric's words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::fi {

// prov_errno of a completion: a WcStatus (core/base/types.h), or kVendorErrnoBase + a VendorErr
// where the NIC says more.
inline constexpr int kVendorErrnoBase = 1000;
// prov_errno of a connection that was refused: this and the reason of the REJ.  Spec:
// IBTA 12.6.7.2.
inline constexpr int kRejectErrnoBase = 2000;

// What such a number means. Never nullptr.
const char* ProviderErrorName(int provider);

// fi_cq_strerror and fi_eq_strerror: the number's meaning, or the text that came as err_data with
// it (nullptr: none did); also written to `buf` if there is one.
const char* ErrorText(int provider, const void* err_data, char* buf, size_t len);

}  // namespace verbena::fi

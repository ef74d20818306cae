// What librdmacm of rdma-core v64 has and Debian's headers lack. The functions are found in the
// library that the program runs with.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>

#include "tests/conformance/v64.h"

namespace verbena::conformance::v64 {

inline constexpr auto kEventAddrinfoResolved = static_cast<rdma_cm_event_type>(16);
inline constexpr auto kEventUser = static_cast<rdma_cm_event_type>(18);
inline constexpr int kRaiSa = 0x10, kRaiDns = 0x20;

// False with Debian's library, which lacks these, and follows some pointers that ours looks at.
inline bool IsOurs() { return Find<int()>("rdma_write_cm_event") != nullptr; }
inline int WriteCmEvent(rdma_cm_id* id, rdma_cm_event_type event, int status, uint64_t arg) {
  return Find<int(rdma_cm_id*, rdma_cm_event_type, int, uint64_t)>("rdma_write_cm_event")(
      id, event, status, arg);
}
inline int ResolveAddrinfo(rdma_cm_id* id, const char* node, const char* service,
                           const rdma_addrinfo* hints) {
  return Find<int(rdma_cm_id*, const char*, const char*, const rdma_addrinfo*)>(
      "rdma_resolve_addrinfo")(id, node, service, hints);
}
inline int QueryAddrinfo(rdma_cm_id* id, rdma_addrinfo** info) {
  return Find<int(rdma_cm_id*, rdma_addrinfo**)>("rdma_query_addrinfo")(id, info);
}

}  // namespace verbena::conformance::v64

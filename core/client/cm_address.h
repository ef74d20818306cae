// Addresses of connection management, between the daemon's form and that of sockets.
#pragma once

#include <netinet/in.h>

#include <cstring>

#include "core/shm/cm.h"

namespace verbena::client {

// From a sockaddr_in or sockaddr_in6 at `address`, aligned or not. False, and *out has no family:
// it is of another family.
inline bool ToCmAddress(const void* address, shm::CmAddress* out) {
  *out = {};
  uint16_t family;
  std::memcpy(&family, address, sizeof(family));
  if (family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof(in));
    out->port = in.sin_port;
    std::memcpy(out->addr, &in.sin_addr, sizeof(in.sin_addr));
  } else if (family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, address, sizeof(in6));
    out->port = in6.sin6_port;
    out->scope_id = in6.sin6_scope_id;
    out->flow_info = in6.sin6_flowinfo;
    std::memcpy(out->addr, &in6.sin6_addr, sizeof(in6.sin6_addr));
  } else {
    return false;
  }
  out->family = family;
  return true;
}

// To a sockaddr_in or sockaddr_in6 at `out`, aligned or not. Nothing of an address without family.
inline void FromCmAddress(const shm::CmAddress& address, void* out) {
  if (address.family == AF_INET) {
    sockaddr_in in = {};
    in.sin_family = AF_INET;
    in.sin_port = address.port;
    std::memcpy(&in.sin_addr, address.addr, sizeof(in.sin_addr));
    std::memcpy(out, &in, sizeof(in));
  } else if (address.family == AF_INET6) {
    sockaddr_in6 in6 = {};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = address.port;
    in6.sin6_scope_id = address.scope_id;
    in6.sin6_flowinfo = address.flow_info;
    std::memcpy(&in6.sin6_addr, address.addr, sizeof(in6.sin6_addr));
    std::memcpy(out, &in6, sizeof(in6));
  }
}

}  // namespace verbena::client

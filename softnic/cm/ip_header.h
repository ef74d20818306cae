// The header that RDMA IP CM puts in front of the private data of a REQ or SIDR_REQ, and the
// service IDs that go with it.   Spec: IBTA A11.3 (service IDs), A11.4 (private data)
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shm/cm.h"
#include "transport/cm/message.h"

namespace verbena::softnic {

inline constexpr uint32_t kIpHeaderBytes = 36;

// Whence and whereto a connection is.
struct IpHeader {
  shm::CmAddress source{};
  shm::CmAddress destination{};  // its port is in the service ID alone
};

// Both addresses of one family.
void EncodeIpHeader(const IpHeader& header, std::byte* out);
// False: another version, or neither IPv4 nor IPv6.
bool DecodeIpHeader(const std::byte* bytes, IpHeader* out);

// `port` is big-endian, as in a CmAddress.
transport::cm::ServiceId ServiceIdOf(uint16_t port_space, uint16_t port);
uint16_t PortOf(transport::cm::ServiceId service);

}  // namespace verbena::softnic

// Addresses of DGRAM endpoints: the NIC's IP address and the number of the QP, where sockaddr_in
// has bytes to spare (sin_zero) and sockaddr_in6 its flow information.
#pragma once

#include <cstdint>

#include "fi_shim/objects.h"

namespace verbena::fi {

// 0: it names none (an address that did not come from fi_getname).
uint32_t QpnOf(const SockAddress& address);
void SetQpn(uint32_t qpn, SockAddress* address);
// Of IPv4 the mapped form, as RoCEv2 has it. False: neither IPv4 nor IPv6.
bool GidOf(const SockAddress& address, uint8_t (*gid)[16]);
void SetGid(const uint8_t* gid, SockAddress* address);

}  // namespace verbena::fi

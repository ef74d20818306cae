// Addresses of endpoints as programs write them: sockaddr_in and sockaddr_in6, names, strings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fi_shim/objects.h"

namespace verbena::fi {

// Bytes of an address (a sockaddr) of this family; 0: none that endpoints have.
size_t AddressBytes(const void* address);
// Whether addresses of that format may have this family.
bool HasFormat(uint32_t addr_format, const sockaddr* address);
// FI_SOCKADDR_IN or _IN6.
uint32_t FormatOf(const SockAddress& address);

// The same endpoint: family, address and port; where there is no port (DGRAM) what stands for it.
bool IsSame(const SockAddress& a, const SockAddress& b);
uint32_t HashOf(const SockAddress& address);
uint16_t PortOf(const SockAddress& address);
void SetPort(SockAddress* address, uint16_t port);
bool IsAny(const SockAddress& address);
// The next address of the network, `steps` on. False: it has none.
bool Advance(SockAddress* address, uint64_t steps);

// fi_getinfo's and fi_av_insertsvc's node and service, or node alone as FI_ADDR_STR. A node of
// nullptr is no address (0.0.0.0), a service of nullptr port 0.
// Errors: -FI_ENODATA: no such node; -FI_EINVAL: no service of that name.
int Resolve(const char* node, const char* service, bool is_numeric, uint32_t addr_format,
            SockAddress* out);

// "fi_sockaddr_in://10.0.0.1:7471", as much as fits; the bytes it needs, with the terminator.
size_t Write(const SockAddress& address, char* buf, size_t len);

}  // namespace verbena::fi

// Socket options of UDP and IPv6 that glibc's headers of Debian 12 lack, or hide. Values: Linux
// UAPI.
#pragma once

#include <netinet/in.h>
#include <netinet/udp.h>

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif
#ifndef IPV6_FLOWINFO_SEND
#define IPV6_FLOWINFO_SEND 33
#endif
#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

namespace verbena::transport {

inline constexpr int kIpv6MulticastAll = 29;  // IPV6_MULTICAST_ALL

}  // namespace verbena::transport

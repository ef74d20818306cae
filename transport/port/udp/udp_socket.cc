#include "transport/port/udp/udp_socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transport/port/udp/interfaces.h"
#include "transport/port/udp/udp_options.h"

namespace verbena::transport {
namespace {

bool Set(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

uint32_t SetBuffers(int fd, uint32_t wanted_bytes) {
  const auto wanted = static_cast<int>(wanted_bytes);
  // FORCE passes the limit, for those who may (CAP_NET_ADMIN).
  if (!Set(fd, SOL_SOCKET, SO_RCVBUFFORCE, wanted)) {
    Set(fd, SOL_SOCKET, SO_RCVBUF, wanted);
  }
  if (!Set(fd, SOL_SOCKET, SO_SNDBUFFORCE, wanted)) {
    Set(fd, SOL_SOCKET, SO_SNDBUF, wanted);
  }
  int bytes = 0;
  socklen_t length = sizeof bytes;
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
  return static_cast<uint32_t>(bytes);
}

bool SetGrh(int fd, bool ipv4, bool is_wanted) {
  const int value = is_wanted ? 1 : 0;
  if (ipv4) {
    return Set(fd, IPPROTO_IP, IP_RECVTOS, value) && Set(fd, IPPROTO_IP, IP_RECVTTL, value);
  }
  Set(fd, IPPROTO_IPV6, IPV6_FLOWINFO, value);  // 0 without it
  return Set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, value) &&
         Set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, value);
}

// So many batches in a row make their hop limit the socket's.
constexpr uint8_t kBatchesToFollow = 16;

// What the kernel sends with; 0: unknown.
uint8_t HopLimitOf(const Endpoint& endpoint) {
  int value = 0;
  socklen_t length = sizeof value;
  const int error = endpoint.ipv4
                        ? getsockopt(endpoint.fd, IPPROTO_IP, IP_TTL, &value, &length)
                        : getsockopt(endpoint.fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &value, &length);
  return error == 0 && value > 0 && value < 256 ? static_cast<uint8_t>(value) : 0;
}

bool SetHopLimit(const Endpoint& endpoint, uint8_t value) {
  return endpoint.ipv4 ? Set(endpoint.fd, IPPROTO_IP, IP_TTL, value)
                       : Set(endpoint.fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, value);
}

// What every socket of ours sets. False: errno says which kernel can't.
bool SetCommon(int fd, bool ipv4) {
  // Not every kernel has these two; without them batches arrive, and drops pass, one by one unseen.
  Set(fd, SOL_UDP, UDP_GRO, 1);
  Set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
  if (ipv4) {
    return Set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO) && SetGrh(fd, ipv4, true) &&
           Set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1) && Set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  }
  // Labels as the address vector says, 0 included; the kernel would make one up.
  Set(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);
  Set(fd, IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1);
  Set(fd, IPPROTO_IPV6, kIpv6MulticastAll, 0);  // since Linux 4.20
  // Kernel rxe sends UDP checksum 0, which IPv6 sockets drop unless told.
  return Set(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1) && Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
         Set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
         Set(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1) && SetGrh(fd, ipv4, true) &&
         Set(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
}

UdpPortErrorKind KindOf(int error) {
  switch (error) {
    case EADDRINUSE:
      return UdpPortErrorKind::kPortBusy;
    case EADDRNOTAVAIL:
    case ENODEV:  // no interface of that index
      return UdpPortErrorKind::kNoSuchAddress;
    case EACCES:
    case EPERM:
      return UdpPortErrorKind::kNotPermitted;
    case EINVAL:        // a link-local address without its interface
    case EAFNOSUPPORT:  // no IPv6 in this kernel
      return UdpPortErrorKind::kBadConfig;
    default:
      return UdpPortErrorKind::kSystem;
  }
}

std::string SentenceFor(UdpPortErrorKind kind, int error, const UdpAddress& address,
                        uint16_t port) {
  std::string at = TextOf(address);
  std::string where = address.gid.IsIpv4Mapped() ? at + ":" : "[" + at + "]:";
  where += std::to_string(port);
  switch (kind) {
    case UdpPortErrorKind::kPortBusy:
      return "UDP " + where +
             " is in use: another NIC or program holds it (ss -aunp shows which), or the kernel's "
             "rdma_rxe is loaded (rmmod rdma_rxe); end it, or choose another address";
    case UdpPortErrorKind::kNoSuchAddress:
      return "no interface of this host has the address " + at +
             "; `ip address` lists those there are";
    case UdpPortErrorKind::kNotPermitted:
      return "the system does not permit a UDP socket at " + where + " (" + strerror(error) + ")";
    case UdpPortErrorKind::kBadConfig:
      return "no UDP socket can be had at " + where + " (" + strerror(error) +
             "); a link-local address needs its interface, an IPv6 one a kernel with IPv6";
    default:
      return "no UDP socket could be opened at " + where + ": " + strerror(error);
  }
}

bool Fail(int error, const UdpAddress& address, uint16_t port, Endpoint* endpoint,
          UdpPortError* out) {
  if (endpoint->fd >= 0) close(endpoint->fd);
  endpoint->fd = -1;
  const UdpPortErrorKind kind = KindOf(error);
  *out = {.kind = kind,
          .error = error,
          .address = address,
          .port = port,
          .text = SentenceFor(kind, error, address, port)};
  return false;
}

int NewSocket(bool ipv4) {
  return socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
}

int JoinOn(int fd, const UdpAddress& via, const Gid& group) {
  if (via.gid.IsIpv4Mapped()) {
    ip_mreqn request{};
    memcpy(&request.imr_multiaddr, &group.raw[12], 4);
    memcpy(&request.imr_address, &via.gid.raw[12], 4);
    request.imr_ifindex = static_cast<int>(via.interface_index);
    return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) == 0 ? 0 : errno;
  }
  ipv6_mreq request{};
  memcpy(&request.ipv6mr_multiaddr, group.raw.data(), 16);
  request.ipv6mr_interface = via.interface_index;
  return setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &request, sizeof request) == 0 ? 0
                                                                                          : errno;
}

}  // namespace

std::string TextOf(const UdpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.gid.IsIpv4Mapped()) {
    inet_ntop(AF_INET, &address.gid.raw[12], text, sizeof text);
    return text;
  }
  inet_ntop(AF_INET6, address.gid.raw.data(), text, sizeof text);
  std::string full = text;
  if (IsLinkLocal(address.gid) && address.interface_index != 0) {
    char name[IF_NAMESIZE];
    const char* known = if_indextoname(address.interface_index, name);
    full += "%" + (known != nullptr ? known : std::to_string(address.interface_index));
  }
  return full;
}

SocketAddress MakeSocketAddress(const Gid& gid, uint16_t port, uint32_t interface_index,
                                uint32_t flow_label) {
  SocketAddress out;
  if (gid.IsIpv4Mapped()) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    memcpy(&v4->sin_addr, &gid.raw[12], 4);
    out.length = sizeof *v4;
    return out;
  }
  sockaddr_in6* v6 = &out.storage;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  v6->sin6_flowinfo = htonl(flow_label & 0xf'ffff);
  memcpy(&v6->sin6_addr, gid.raw.data(), 16);
  if (IsLinkLocal(gid) || gid.IsMulticast()) v6->sin6_scope_id = interface_index;
  out.length = sizeof *v6;
  return out;
}

bool ReadSocketAddress(const sockaddr* address, Gid* gid, uint16_t* port) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    *gid = Gid::FromIpv4(ntohl(v4->sin_addr.s_addr));
    *port = ntohs(v4->sin_port);
    return true;
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    memcpy(gid->raw.data(), &v6->sin6_addr, 16);
    *port = ntohs(v6->sin6_port);
    return true;
  }
  return false;
}

bool IsLinkLocal(const Gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

bool IsGroup(const Gid& gid) {
  return gid.IsMulticast() || (gid.IsIpv4Mapped() && (gid.raw[12] & 0xf0) == 0xe0);
}

void AskForGrh(const Endpoint& endpoint, bool is_wanted) {
  SetGrh(endpoint.fd, endpoint.ipv4, is_wanted);
}

uint8_t HopLimitToTell(const Endpoint& from, const wire::PacketAddress& to) {
  // 0 stands for what the kernel does unasked: a packet with none left goes nowhere. Groups have an
  // option of their own.
  if (from.hop_limit == 0 || IsGroup(to.destination)) return to.hop_limit;
  const uint8_t wanted = to.hop_limit != 0 ? to.hop_limit : from.default_hop_limit;
  return wanted == from.hop_limit ? 0 : wanted;
}

uint8_t FollowHopLimit(const wire::PacketAddress& to, Endpoint* from) {
  const uint8_t told = HopLimitToTell(*from, to);
  if (told == 0 || told != from->other_hop_limit || IsGroup(to.destination)) {
    from->other_hop_limit = told;
    from->others = 0;
    return told;
  }
  if (++from->others < kBatchesToFollow) return told;
  from->others = 0;
  if (from->hop_limit == 0) from->default_hop_limit = HopLimitOf(*from);
  if (from->default_hop_limit == 0 || !SetHopLimit(*from, told)) return told;
  from->hop_limit = told;
  return 0;
}

void SetMulticastInterface(const Endpoint& endpoint) {
  if (endpoint.ipv4) {
    ip_mreqn request{};
    memcpy(&request.imr_address, &endpoint.address.gid.raw[12], 4);
    request.imr_ifindex = static_cast<int>(endpoint.address.interface_index);
    setsockopt(endpoint.fd, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request);
  } else {
    Set(endpoint.fd, IPPROTO_IPV6, IPV6_MULTICAST_IF,
        static_cast<int>(endpoint.address.interface_index));
  }
}

bool OpenEndpoint(const UdpAddress& address, const UdpPortConfig& config, Endpoint* out,
                  UdpPortError* error) {
  const uint16_t port = config.port;
  *out = {.address = address, .bound = address.gid, .ipv4 = address.gid.IsIpv4Mapped()};
  if (address.gid.IsZero() || IsGroup(address.gid)) return Fail(EINVAL, address, port, out, error);
  const NamespaceVisit visit(config.netns);
  if (out->address.interface_index == 0) {
    // A host without netlink still has its sockets; multicast then goes where the routes say.
    InterfaceList list;
    if (ReadInterfaces(&list)) out->address.interface_index = list.IndexOf(address.gid);
  }
  out->fd = NewSocket(out->ipv4);
  if (out->fd < 0 || !SetCommon(out->fd, out->ipv4)) return Fail(errno, address, port, out, error);
  out->receive_buffer_bytes = SetBuffers(out->fd, config.socket_buffer_bytes);
  const SocketAddress name = MakeSocketAddress(address.gid, port, out->address.interface_index);
  if (bind(out->fd, name.get(), name.length) != 0) return Fail(errno, address, port, out, error);
  SetMulticastInterface(*out);
  return true;
}

int OpenGroupEndpoint(const UdpAddress& via, const Gid& group, const UdpPortConfig& config,
                      Endpoint* out) {
  const bool ipv4 = via.gid.IsIpv4Mapped();
  *out = {.address = via, .bound = group, .ipv4 = ipv4};
  if (!IsGroup(group) || group.IsIpv4Mapped() != ipv4) return EINVAL;
  const NamespaceVisit visit(config.netns);
  out->fd = NewSocket(ipv4);
  if (out->fd < 0) return errno;
  int error = 0;
  // Every NIC of this host that joins has a socket at the group's address, and each gets a copy.
  const SocketAddress name = MakeSocketAddress(group, config.port, via.interface_index);
  if (!SetCommon(out->fd, ipv4) || !Set(out->fd, SOL_SOCKET, SO_REUSEADDR, 1) ||
      bind(out->fd, name.get(), name.length) != 0) {
    error = errno;
  } else {
    error = JoinOn(out->fd, via, group);
  }
  if (error != 0) {
    close(out->fd);
    out->fd = -1;
    return error;
  }
  out->receive_buffer_bytes = SetBuffers(out->fd, config.socket_buffer_bytes);
  return 0;
}

}  // namespace verbena::transport

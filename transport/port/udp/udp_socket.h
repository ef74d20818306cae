// Sockets of a NIC on a real network: opening them as RoCEv2 needs them, and naming what went
// wrong.
//
// They stay unconnected: on a connected IPv4 socket the kernel numbers packets (IP identification),
// and an ICRC covers a number that nobody told us.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "transport/port/udp/netns.h"
#include "transport/wire/address.h"

namespace verbena::transport {

struct UdpAddress {
  Gid gid;  // IPv4 in its mapped form
  // Interface that holds it. 0: looked up; a link-local IPv6 address needs it if several interfaces
  // have one.
  uint32_t interface_index = 0;
};

// A full window of several peers should fit: a packet that finds no room is a retransmission.
inline constexpr uint32_t kSocketBufferBytes = 16 << 20;

struct UdpPortConfig {
  std::vector<UdpAddress> addresses;  // of one NIC: an IPv4, a link-local and a global IPv6 address
  uint16_t port = wire::kRoceUdpPort;
  // Asked for each socket, to receive and to send; the kernel gives what net.core.[rw]mem_max
  // allows, or all of it to those with CAP_NET_ADMIN.
  uint32_t socket_buffer_bytes = kSocketBufferBytes;
  const NetworkNamespace* netns = nullptr;  // of its sockets; nullptr: the process's own
  // Entries of io_uring's submission queue, at least 2.
  uint32_t submission_entries = 128;
  // For tests, the kernel on a bad day. What sendmsg says: errno or 0.
  std::function<int(int fd, const msghdr* message)> send_message{};
  // What io_uring_submit says instead of doing it: a negative errno. 0: it does it.
  std::function<int()> refuse_submission{};
};

enum class UdpPortErrorKind : uint8_t {
  kNone,
  kBadConfig,      // no address, or one that no socket can have
  kPortBusy,       // another socket holds address:port (or kernel rxe is loaded)
  kNoSuchAddress,  // no interface has this address
  kNotPermitted,   // the system refuses such a socket
  kNoUring,        // io_uring is missing, refused or too old
  kSystem,         // out of descriptors, memory...
};

struct UdpPortError {
  UdpPortErrorKind kind = UdpPortErrorKind::kNone;
  int error = 0;  // errno
  UdpAddress address{};
  uint16_t port = 0;
  std::string text{};  // a sentence for the user, with what to do
};

// "192.0.2.1", "fe80::1%2".
std::string TextOf(const UdpAddress& address);

struct SocketAddress {
  sockaddr_in6 storage{};  // or a sockaddr_in
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
// `interface_index` counts for link-local addresses and groups of IPv6 only.
SocketAddress MakeSocketAddress(const Gid& gid, uint16_t port, uint32_t interface_index,
                                uint32_t flow_label = 0);
// False: neither IPv4 nor IPv6.
bool ReadSocketAddress(const sockaddr* address, Gid* gid, uint16_t* port);

bool IsLinkLocal(const Gid& gid);  // fe80::/10
bool IsGroup(const Gid& gid);      // ff00::/8, or 224.0.0.0/4 in its mapped form

// One socket of a port.
struct Endpoint {
  int fd = -1;
  UdpAddress address;  // of the NIC; what it sends from
  Gid bound;           // the same, or the multicast group it listens to
  bool ipv4 = false;
  uint32_t kernel_drops = 0;          // SO_RXQ_OVFL's last value
  uint32_t receive_buffer_bytes = 0;  // as the kernel granted it
  uint8_t hop_limit = 0;              // of what it sends to no group, unasked; 0: the kernel's
  uint8_t default_hop_limit = 0;      // the kernel's, known once `hop_limit` is set
  uint8_t other_hop_limit = 0;        // that of the last `others` batches
  uint8_t others = 0;

  bool IsForGroup() const { return bound != address.gid; }
};

// The socket of one address: non-blocking, unfragmented both ways, batching if the kernel can.
bool OpenEndpoint(const UdpAddress& address, const UdpPortConfig& config, Endpoint* out,
                  UdpPortError* error);
// So that what is sent to a group leaves by the endpoint's own interface. One without multicast
// refuses it; unicast works there all the same.
void SetMulticastInterface(const Endpoint& endpoint);
// A socket that receives what is sent to `group` on the interface of `via`. 0 or errno.
int OpenGroupEndpoint(const UdpAddress& via, const Gid& group, const UdpPortConfig& config,
                      Endpoint* out);
// Whether the kernel shall tell what a GRH has of a datagram's IP header. Sockets are opened so.
void AskForGrh(const Endpoint& endpoint, bool is_wanted);
// The hop limit of which a batch to `to` has to tell the kernel; 0: it is the socket's.
uint8_t HopLimitToTell(const Endpoint& from, const wire::PacketAddress& to);
// The same before a batch is sent at once: a limit that is asked for again and again becomes the
// socket's, as telling it costs the kernel an allocation. Not while other batches are prepared.
uint8_t FollowHopLimit(const wire::PacketAddress& to, Endpoint* from);

}  // namespace verbena::transport

#include "transport/port/udp/neighbours.h"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "transport/port/udp/netlink.h"
#include "transport/port/udp/udp_socket.h"

namespace verbena::transport {
namespace {

// <net/neighbour.h> of the kernel: states in which packets go out.
constexpr uint16_t kValidStates =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
constexpr uint16_t kRocePort = 4791;
constexpr int kRequestBytes = 256, kReplyBytes = 8 << 10;

uint8_t FamilyOf(const Gid& gid) { return gid.IsIpv4Mapped() ? AF_INET : AF_INET6; }
uint8_t BitsOf(const Gid& gid) { return gid.IsIpv4Mapped() ? 32 : 128; }

// One request with its attributes, and the answer to it.
template <typename Body>
class Question {
 public:
  explicit Question(uint16_t type) {
    header()->nlmsg_len = NLMSG_LENGTH(sizeof(Body));
    header()->nlmsg_type = type;
    header()->nlmsg_flags = NLM_F_REQUEST;
  }
  Body* body() { return static_cast<Body*>(NLMSG_DATA(header())); }
  void Add(uint16_t type, const void* value, size_t bytes) {
    auto* attribute = reinterpret_cast<rtattr*>(request_ + NLMSG_ALIGN(header()->nlmsg_len));
    attribute->rta_type = type;
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
    memcpy(RTA_DATA(attribute), value, bytes);
    header()->nlmsg_len =
        static_cast<uint32_t>(NLMSG_ALIGN(header()->nlmsg_len) + RTA_ALIGN(attribute->rta_len));
  }
  void Add(uint16_t type, const Gid& gid) {
    const size_t bytes = BitsOf(gid) / 8;
    Add(type, gid.raw.data() + gid.raw.size() - bytes, bytes);
  }
  // The kernel's errno, or 0 and its answer in `reply`. ENOTSUP: nobody answers here.
  int Ask(const nlmsghdr** reply) {
    const int fd = OpenNetlink(0, 0);
    if (fd < 0) return ENOTSUP;
    ssize_t got = -1;
    if (send(fd, request_, header()->nlmsg_len, 0) >= 0) {
      do {
        got = recv(fd, reply_, sizeof reply_, 0);
      } while (got < 0 && errno == EINTR);
    }
    close(fd);
    const auto* message = reinterpret_cast<const nlmsghdr*>(reply_);
    if (got < 0 || !NLMSG_OK(message, static_cast<unsigned>(got))) return ENOTSUP;
    *reply = message;
    if (message->nlmsg_type != NLMSG_ERROR) return 0;
    return -static_cast<const nlmsgerr*>(NLMSG_DATA(message))->error;
  }

 private:
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(request_); }

  alignas(nlmsghdr) std::byte request_[kRequestBytes] = {};
  alignas(nlmsghdr) std::byte reply_[kReplyBytes];
};

void ReadRoute(const nlmsghdr* message, NextHop* out) {
  const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(message));
  out->is_here = route->rtm_type != RTN_UNICAST;
  auto left = static_cast<int>(RTM_PAYLOAD(message));
  for (const rtattr* attribute = RTM_RTA(route); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    const size_t bytes = RTA_PAYLOAD(attribute);
    if (attribute->rta_type == RTA_OIF && bytes == sizeof out->interface_index) {
      memcpy(&out->interface_index, RTA_DATA(attribute), bytes);
    } else if (attribute->rta_type == RTA_GATEWAY && bytes == BitsOf(out->gid) / 8u) {
      memcpy(out->gid.raw.data() + out->gid.raw.size() - bytes, RTA_DATA(attribute), bytes);
    } else if (attribute->rta_type == RTA_VIA) {
      out->is_here = true;  // a gateway of another family: not asked about
    }
  }
}

}  // namespace

int FindNextHop(const Gid& source, const Gid& destination, uint32_t interface_index, NextHop* out) {
  *out = {};
  out->gid = destination;
  Question<rtmsg> question(RTM_GETROUTE);
  question.body()->rtm_family = FamilyOf(destination);
  question.body()->rtm_dst_len = question.body()->rtm_src_len = BitsOf(destination);
  question.Add(RTA_DST, destination);
  question.Add(RTA_SRC, source);
  if (interface_index != 0) question.Add(RTA_OIF, &interface_index, sizeof interface_index);
  const nlmsghdr* reply = nullptr;
  const int error = question.Ask(&reply);
  if (error == 0 && reply->nlmsg_type == RTM_NEWROUTE) {
    ReadRoute(reply, out);
    return 0;
  }
  out->is_here = true;
  const bool has_no_way = error == ENETUNREACH || error == EHOSTUNREACH || error == EACCES;
  return has_no_way ? error : 0;
}

bool IsKnown(const NextHop& hop) {
  if (hop.is_here) return true;
  Question<ndmsg> question(RTM_GETNEIGH);
  question.body()->ndm_family = FamilyOf(hop.gid);
  question.body()->ndm_ifindex = static_cast<int>(hop.interface_index);
  question.Add(NDA_DST, hop.gid);
  const nlmsghdr* reply = nullptr;
  const int error = question.Ask(&reply);
  if (error == ENOENT) return false;
  if (error != 0 || reply->nlmsg_type != RTM_NEWNEIGH) return true;
  return (static_cast<const ndmsg*>(NLMSG_DATA(reply))->ndm_state & kValidStates) != 0;
}

void Solicit(const Gid& source, const Gid& destination, uint32_t interface_index) {
  const int fd = socket(FamilyOf(destination), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const SocketAddress from = MakeSocketAddress(source, 0, interface_index);
  const SocketAddress to = MakeSocketAddress(destination, kRocePort, interface_index);
  if (bind(fd, from.get(), from.length) == 0) {
    (void)!sendto(fd, nullptr, 0, MSG_DONTWAIT, to.get(), to.length);
  }
  close(fd);
}

int OpenNeighbourEvents() { return OpenNetlink(RTMGRP_NEIGH, SOCK_NONBLOCK); }

// Lost ones (ENOBUFS) are changes, too: who reads looks at what is.
void DrainNeighbourEvents(int fd) {
  char message[kReplyBytes];
  while (recv(fd, message, sizeof message, MSG_TRUNC) >= 0 || errno == ENOBUFS || errno == EINTR) {
  }
}

}  // namespace verbena::transport

#include "transport/port/udp/interfaces.h"

#include <linux/if.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/port/udp/netlink.h"

namespace verbena::transport {
namespace {

constexpr size_t kReplyBytes = 64 << 10;
constexpr int kIpv4Bits = 32;

void ReadLink(const nlmsghdr* message, InterfaceList* out) {
  const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  Interface found;
  found.index = static_cast<uint32_t>(info->ifi_index);
  found.up = (info->ifi_flags & IFF_UP) != 0;
  found.running = (info->ifi_flags & IFF_RUNNING) != 0;
  found.loopback = (info->ifi_flags & IFF_LOOPBACK) != 0;
  found.multicast = (info->ifi_flags & IFF_MULTICAST) != 0;
  auto left = static_cast<int>(IFLA_PAYLOAD(message));
  for (const rtattr* attribute = IFLA_RTA(info); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    const size_t length = RTA_PAYLOAD(attribute);
    if (attribute->rta_type == IFLA_IFNAME && length > 0) {
      found.name.assign(static_cast<const char*>(RTA_DATA(attribute)), length - 1);
    } else if (attribute->rta_type == IFLA_MTU && length == sizeof found.mtu) {
      memcpy(&found.mtu, RTA_DATA(attribute), length);
    } else if (attribute->rta_type == IFLA_ADDRESS && length == found.mac.size()) {
      memcpy(found.mac.data(), RTA_DATA(attribute), length);
    }
  }
  out->interfaces.push_back(std::move(found));
}

Gid GidOf(const rtattr* attribute, uint8_t family) {
  Gid gid;
  if (family == AF_INET && RTA_PAYLOAD(attribute) == 4) {
    gid.raw[10] = gid.raw[11] = 0xff;
    memcpy(&gid.raw[12], RTA_DATA(attribute), 4);
  } else if (family == AF_INET6 && RTA_PAYLOAD(attribute) == 16) {
    memcpy(gid.raw.data(), RTA_DATA(attribute), 16);
  }
  return gid;
}

void ReadAddress(const nlmsghdr* message, InterfaceList* out) {
  const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(message));
  if (info->ifa_family != AF_INET && info->ifa_family != AF_INET6) return;
  InterfaceAddress found;
  found.interface_index = info->ifa_index;
  found.prefix_bits = info->ifa_prefixlen;
  found.link_local = info->ifa_family == AF_INET6 && info->ifa_scope == RT_SCOPE_LINK;
  uint32_t flags = info->ifa_flags;
  Gid local;
  auto left = static_cast<int>(IFA_PAYLOAD(message));
  for (const rtattr* attribute = IFA_RTA(info); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type == IFA_ADDRESS) found.gid = GidOf(attribute, info->ifa_family);
    if (attribute->rta_type == IFA_LOCAL) local = GidOf(attribute, info->ifa_family);
    if (attribute->rta_type == IFA_FLAGS && RTA_PAYLOAD(attribute) == sizeof flags) {
      memcpy(&flags, RTA_DATA(attribute), sizeof flags);
    }
  }
  // On a point-to-point interface IFA_ADDRESS is the peer's, IFA_LOCAL ours.
  if (!local.IsZero()) found.gid = local;
  const bool optimistic = (flags & IFA_F_OPTIMISTIC) != 0;
  found.usable = (flags & IFA_F_DADFAILED) == 0 && ((flags & IFA_F_TENTATIVE) == 0 || optimistic);
  if (!found.gid.IsZero()) out->addresses.push_back(found);
}

// Sends one dump request and reads its answer into `out`.
bool Dump(int fd, uint16_t type, InterfaceList* out) {
  struct {
    nlmsghdr header;
    rtgenmsg body;
  } request{};
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.body);
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.rtgen_family = AF_UNSPEC;
  if (send(fd, &request, request.header.nlmsg_len, 0) < 0) return false;

  std::vector<char> reply(kReplyBytes);
  for (;;) {
    const ssize_t got = recv(fd, reply.data(), reply.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    auto left = static_cast<unsigned>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(reply.data());
         NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE) return true;
      if (message->nlmsg_type == NLMSG_ERROR) {
        errno = -static_cast<const nlmsgerr*>(NLMSG_DATA(message))->error;
        return false;
      }
      if (message->nlmsg_type == RTM_NEWLINK) ReadLink(message, out);
      if (message->nlmsg_type == RTM_NEWADDR) ReadAddress(message, out);
    }
  }
}

bool Covers(const InterfaceAddress& address, const Gid& gid) {
  if (address.gid.IsIpv4Mapped() != gid.IsIpv4Mapped()) return false;
  const int bits = address.prefix_bits + (gid.IsIpv4Mapped() ? 128 - kIpv4Bits : 0);
  for (int bit = 0; bit < bits; ++bit) {
    if (((address.gid.raw[bit / 8] ^ gid.raw[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

bool Active(const Interface* interface) {
  return interface != nullptr && interface->up && interface->running;
}

bool Has(const InterfaceList& list, const InterfaceAddress& address) {
  return std::any_of(list.addresses.begin(), list.addresses.end(), [&](const auto& other) {
    return other.usable && other.gid == address.gid &&
           other.interface_index == address.interface_index;
  });
}

}  // namespace

const Interface* InterfaceList::Find(uint32_t index) const {
  for (const Interface& interface : interfaces) {
    if (interface.index == index) return &interface;
  }
  return nullptr;
}

uint32_t InterfaceList::IndexOf(const Gid& gid) const {
  for (const InterfaceAddress& address : addresses) {
    if (address.gid == gid) return address.interface_index;
  }
  for (const InterfaceAddress& address : addresses) {
    const Interface* interface = Find(address.interface_index);
    if (interface != nullptr && interface->loopback && Covers(address, gid)) {
      return address.interface_index;
    }
  }
  return 0;
}

const InterfaceAddress* InterfaceList::LinkLocalOf(uint32_t index) const {
  for (const InterfaceAddress& address : addresses) {
    if (address.interface_index == index && address.link_local && address.usable) return &address;
  }
  return nullptr;
}

bool ReadInterfaces(InterfaceList* out) {
  *out = {};
  const int fd = OpenNetlink(0, 0);
  if (fd < 0) return false;
  const bool read = Dump(fd, RTM_GETLINK, out) && Dump(fd, RTM_GETADDR, out);
  const int error = errno;
  close(fd);
  errno = error;
  return read;
}

uint32_t PathMtuFor(uint32_t mtu) {
  for (uint32_t path_mtu = 4096; path_mtu >= kPathMtuMin; path_mtu /= 2) {
    if (mtu >= path_mtu + kLongestHeadersBytes) return path_mtu;
  }
  return 0;
}

InterfaceWatcher::~InterfaceWatcher() {
  if (fd_ >= 0) close(fd_);
}

bool InterfaceWatcher::Open() {
  if (fd_ < 0) {
    fd_ = OpenNetlink(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR, SOCK_NONBLOCK);
  }
  // Listening first: a change between the two is then seen twice rather than never.
  return fd_ >= 0 && ReadInterfaces(&list_);
}

void InterfaceWatcher::Poll(std::vector<InterfaceChange>* out) {
  // What the messages say in detail does not matter: they tell that something changed, and the two
  // lists tell what. So a lost message (ENOBUFS) or a flood of them ends in the truth all the same.
  char message[8 << 10];
  bool changed = false;
  for (;;) {
    const ssize_t got = recv(fd_, message, sizeof message, MSG_TRUNC);
    if (got >= 0 || errno == ENOBUFS) {
      changed = true;
    } else if (errno != EINTR) {
      break;  // EAGAIN
    }
  }
  if (!changed) return;
  InterfaceList now;
  if (!ReadInterfaces(&now)) {
    out->push_back({.kind = InterfaceChange::Kind::kResync});
    return;
  }
  Compare(now, out);
  list_ = std::move(now);
}

void InterfaceWatcher::Compare(const InterfaceList& now, std::vector<InterfaceChange>* out) {
  using Kind = InterfaceChange::Kind;
  auto tell = [&](Kind kind, uint32_t index, uint32_t mtu, const Gid& gid) {
    const Interface* interface = now.Find(index);
    if (interface == nullptr) interface = list_.Find(index);
    out->push_back({kind, index, interface != nullptr ? interface->name : "", mtu, gid});
  };
  // What goes first, then what comes: an address that moves is never reported twice at once.
  for (const Interface& before : list_.interfaces) {
    if (Active(&before) && !Active(now.Find(before.index)))
      tell(Kind::kLinkDown, before.index, 0, {});
  }
  for (const InterfaceAddress& before : list_.addresses) {
    if (before.usable && !Has(now, before)) {
      tell(Kind::kAddressRemoved, before.interface_index, 0, before.gid);
    }
  }
  for (const Interface& after : now.interfaces) {
    const Interface* before = list_.Find(after.index);
    if (before != nullptr && before->mtu != after.mtu) {
      tell(Kind::kMtuChanged, after.index, after.mtu, {});
    }
    if (before != nullptr && before->mac != after.mac) tell(Kind::kMacChanged, after.index, 0, {});
  }
  for (const InterfaceAddress& after : now.addresses) {
    if (after.usable && !Has(list_, after)) {
      tell(Kind::kAddressAdded, after.interface_index, 0, after.gid);
    }
  }
  for (const Interface& after : now.interfaces) {
    if (Active(&after) && !Active(list_.Find(after.index))) tell(Kind::kLinkUp, after.index, 0, {});
  }
}

}  // namespace verbena::transport

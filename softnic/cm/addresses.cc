#include "softnic/cm/addresses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace verbena::softnic {
namespace {

using shm::CmAddress;

bool IsLinkLocalGid(const Gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

bool IsLoopbackNet(const CmAddress& address) {
  return address.family == AF_INET && address.addr[0] == 127;
}

bool IsLoopbackGid(const Gid& gid) { return gid.IsIpv4Mapped() && gid.raw[12] == 127; }

// A GID of the NIC that goes with `like`: of its family, and link-local or not as it is.
const Gid* GidLike(const CmNic& nic, const Gid& like) {
  for (const Gid& gid : nic.gids) {
    if (gid.IsZero() || gid.IsIpv4Mapped() != like.IsIpv4Mapped()) continue;
    if (!like.IsMulticast() && IsLinkLocalGid(gid) != IsLinkLocalGid(like)) continue;
    return &gid;
  }
  return nullptr;
}

// Any of the NIC, of the address's family rather than not.
const Gid* AnyGid(const CmNic& nic, bool is_ipv4) {
  const Gid* any = nullptr;
  for (const Gid& gid : nic.gids) {
    if (gid.IsZero()) continue;
    if (gid.IsIpv4Mapped() == is_ipv4) return &gid;
    if (any == nullptr) any = &gid;
  }
  return any;
}

// In the form that the destination has: an IPv4-mapped one stays one.
CmAddress AddressOf(const Gid& gid, uint16_t family, uint32_t scope_id) {
  CmAddress address{};
  address.family = family;
  if (family == AF_INET) {
    std::memcpy(address.addr, gid.raw.data() + 12, 4);
  } else {
    std::memcpy(address.addr, gid.raw.data(), 16);
    if (IsLinkLocalGid(gid)) address.scope_id = scope_id;
  }
  return address;
}

bool IsInScope(const CmNic& nic, const CmAddress& address) {
  return !IsLinkLocal(address) || nic.scope_id == 0 || nic.scope_id == address.scope_id;
}

}  // namespace

bool IsInet(const CmAddress& address) {
  return address.family == AF_INET || address.family == AF_INET6;
}

bool IsWildcard(const CmAddress& address) {
  const size_t bytes = address.family == AF_INET ? 4 : 16;
  return std::all_of(address.addr, address.addr + bytes, [](uint8_t byte) { return byte == 0; });
}

bool IsMulticast(const CmAddress& address) { return GidOf(address).IsMulticast(); }

bool IsLinkLocal(const CmAddress& address) {
  return address.family == AF_INET6 && IsLinkLocalGid(GidOf(address));
}

bool IsSameHost(const CmAddress& a, const CmAddress& b) {
  return a.family == b.family && std::memcmp(a.addr, b.addr, a.family == AF_INET ? 4 : 16) == 0;
}

Gid GidOf(const CmAddress& address) {
  Gid gid;
  if (address.family == AF_INET) {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw.data() + 12, address.addr, 4);
  } else {
    std::memcpy(gid.raw.data(), address.addr, 16);
  }
  return gid;
}

CmAddress WildcardOf(uint16_t family) {
  CmAddress address{};
  address.family = family;
  return address;
}

CmAddress LoopbackOf(uint16_t family) {
  CmAddress address = WildcardOf(family);
  if (family == AF_INET) address.addr[0] = 127;
  address.addr[family == AF_INET ? 3 : 15] = 1;
  return address;
}

std::string TextOf(const CmAddress& address) {
  if (!IsInet(address)) return "-";
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.family, address.addr, text, sizeof text);
  const std::string port = ":" + std::to_string(ntohs(address.port));
  return address.family == AF_INET ? text + port : "[" + std::string(text) + "]" + port;
}

const CmNic* CmAddressBook::Find(uint32_t index) const {
  for (const CmNic& nic : nics_) {
    if (nic.index == index) return &nic;
  }
  return nullptr;
}

CmHardwareAddress CmAddressBook::HardwareOf(uint32_t index, const Gid& gid) const {
  const CmNic* nic = Find(index);
  if (nic == nullptr) return {};
  const auto found =
      static_cast<size_t>(std::find(nic->gids.begin(), nic->gids.end(), gid) - nic->gids.begin());
  return found < nic->hardware.size() ? nic->hardware[found] : CmHardwareAddress{};
}

uint8_t CmAddressBook::GidIndexOf(const CmPlace& place) const {
  const CmNic* nic = Find(place.nic);
  if (nic == nullptr) return 0;
  auto found = std::find(nic->gids.begin(), nic->gids.end(), place.gid);
  return found == nic->gids.end() ? 0 : static_cast<uint8_t>(found - nic->gids.begin());
}

const CmNic* CmAddressBook::FirstLocalOnly() const {
  for (const CmNic& nic : nics_) {
    if (nic.is_local_only) return &nic;
  }
  return nullptr;
}

const CmNic* CmAddressBook::FirstUp() const {
  for (const CmNic& nic : nics_) {
    if (nic.is_up) return &nic;
  }
  return nics_.empty() ? nullptr : &nics_.front();
}

// All NICs have networks, and none has this address. Others of 127/8 may be NICs of other
// instances.
bool CmAddressBook::IsOpenLoopback(const CmAddress& address) const {
  const Gid gid = GidOf(address);
  return IsSameHost(address, LoopbackOf(address.family)) &&
         std::none_of(nics_.begin(), nics_.end(), [&gid](const CmNic& nic) {
           return nic.is_local_only ||
                  std::find(nic.gids.begin(), nic.gids.end(), gid) != nic.gids.end();
         });
}

bool CmAddressBook::IsAny(const CmAddress& address) const {
  return IsWildcard(address) || IsOpenLoopback(address);
}

int CmAddressBook::FindLocal(const CmAddress& address, CmPlace* out) const {
  if (IsLinkLocal(address) && address.scope_id == 0) return EINVAL;
  const Gid gid = GidOf(address);
  for (const CmNic& nic : nics_) {
    if (!IsInScope(nic, address)) continue;
    if (std::find(nic.gids.begin(), nic.gids.end(), gid) == nic.gids.end()) continue;
    *out = {nic.index, gid};
    return 0;
  }
  const bool is_open = IsOpenLoopback(address);
  const bool is_hosts = IsSameHost(address, LoopbackOf(address.family)) ||
                        std::any_of(host_addresses_.begin(), host_addresses_.end(),
                                    [&](const CmAddress& own) { return IsSameHost(own, address); });
  if (!is_hosts) return EADDRNOTAVAIL;
  const CmNic* nic = is_open ? FirstUp() : FirstLocalOnly();
  const Gid* own = nic == nullptr ? nullptr : AnyGid(*nic, gid.IsIpv4Mapped());
  if (own == nullptr) return ENODEV;
  *out = {nic->index, *own};
  return 0;
}

int CmAddressBook::Resolve(const CmAddress& source, const CmAddress& destination,
                           CmReach* out) const {
  if (IsLinkLocal(destination) && destination.scope_id == 0) return EINVAL;
  out->destination = destination;
  if (IsWildcard(destination)) {
    // As connect(2): this host.
    CmAddress self = LoopbackOf(destination.family);
    if (CmPlace place; FindLocal(self, &place) != 0) {
      const Gid* gid =
          nics_.empty() ? nullptr : AnyGid(nics_.front(), destination.family == AF_INET);
      if (gid == nullptr || gid->IsIpv4Mapped() != (destination.family == AF_INET)) return ENODEV;
      self = AddressOf(*gid, destination.family, nics_.front().scope_id);
    }
    self.port = destination.port;
    out->destination = self;
  }
  if (IsWildcard(source)) return ChooseSource(out->destination, out);
  if (IsOpenLoopback(source)) {
    // From loopback no route leads but to this host.
    CmPlace there;
    const int error = FindLocal(out->destination, &there);
    return error == EADDRNOTAVAIL ? EINVAL : ChooseSource(out->destination, out);
  }
  if (int error = FindLocal(source, &out->local); error != 0) return error;
  out->source = source;
  return ResolveFrom(out->destination, out);
}

// From `out->local`.
int CmAddressBook::ResolveFrom(const CmAddress& destination, CmReach* out) const {
  out->remote = GidOf(destination);
  if (IsMulticast(destination)) return 0;
  CmPlace there;
  switch (FindLocal(destination, &there)) {
    case 0:
      out->remote = there.gid;
      return 0;
    case ENODEV:
      return ENODEV;
    default:
      break;
  }
  // Nothing leads from a NIC without a network to another host, nor to loopback but from loopback.
  const bool stays = Find(out->local.nic)->is_local_only ||
                     (IsLoopbackNet(destination) && !IsLoopbackGid(out->local.gid));
  return stays ? EHOSTUNREACH : 0;
}

int CmAddressBook::ChooseSource(const CmAddress& destination, CmReach* out) const {
  CmPlace there;
  const Gid gid = GidOf(destination);
  const int error = IsMulticast(destination) ? EADDRNOTAVAIL : FindLocal(destination, &there);
  if (error == ENODEV) return ENODEV;
  if (error == 0) {
    // To itself a host talks from the same address, but within 127/8 from 127.0.0.1.
    out->local = there;
    out->source = destination;
    if (CmPlace first; IsLoopbackNet(destination) && FindLocal(LoopbackOf(AF_INET), &first) == 0) {
      out->local = first;
      out->source = LoopbackOf(AF_INET);
    }
    out->source.port = 0;
    return ResolveFrom(destination, out);
  }
  if (nics_.empty()) return ENODEV;
  bool has_network = false;
  for (const CmNic& nic : nics_) {
    if (nic.is_local_only) continue;
    has_network = true;
    const Gid* own = GidLike(nic, gid);
    if (own == nullptr || !nic.is_up || !IsInScope(nic, destination)) continue;
    out->local = {nic.index, *own};
    out->source = AddressOf(*own, destination.family, nic.scope_id);
    return ResolveFrom(destination, out);
  }
  if (IsMulticast(destination)) {
    // A group of the NICs of this instance.
    const CmNic* nic = FirstLocalOnly();
    const Gid* own = nic == nullptr ? nullptr : GidLike(*nic, gid);
    if (own != nullptr) {
      out->local = {nic->index, *own};
      out->source = AddressOf(*own, destination.family, nic->scope_id);
      return ResolveFrom(destination, out);
    }
  }
  return has_network ? ENETUNREACH : EHOSTUNREACH;
}

}  // namespace verbena::softnic

// Whether this host's network leads to an address: its route, and whether who is next on it has a
// hardware address.
//
// Asked of the kernel by netlink; nothing here needs a privilege. Where netlink can't be had, all
// is taken for reachable: then it is packets that tell.
#pragma once

#include <cstdint>

#include "core/base/types.h"

namespace verbena::transport {

struct NextHop {
  bool is_here = false;  // an address of this host, or no question
  uint32_t interface_index = 0;
  Gid gid{};  // the destination's, or a gateway's
};

// From `source` to `destination`, by the interface if it is not 0. 0, or what connect(2) would say:
// ENETUNREACH, EHOSTUNREACH, EACCES (a route that prohibits it).
[[nodiscard]] int FindNextHop(const Gid& source, const Gid& destination, uint32_t interface_index,
                              NextHop* out);

// Its hardware address is known, or it needs none.
[[nodiscard]] bool IsKnown(const NextHop& hop);

// Has the kernel look for the next hop's hardware address, as any packet on that way does: an empty
// datagram, which NICs drop as too short.
void Solicit(const Gid& source, const Gid& destination, uint32_t interface_index);

// Becomes readable when something about neighbours has changed. -1: errno.
[[nodiscard]] int OpenNeighbourEvents();
void DrainNeighbourEvents(int fd);

}  // namespace verbena::transport

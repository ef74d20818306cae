// What `--nic` says: which addresses of this host a NIC answers to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/types.h"

namespace verbena::softnic {

struct NicAddress {
  Gid gid;                // IPv4 in its mapped form
  std::string interface;  // "fe80::1%eth0": eth0; else empty
  std::string text;       // as given
};

struct NicSpec {
  std::vector<NicAddress> addresses;
  std::string name;   // empty: the instance's prefix and the NIC's number
  std::string netns;  // the network namespace it is in; empty: the daemon's
};

// "ip=10.0.0.1", "ip=10.0.0.1,ip=fd00::1,name=rxe0", "ip=fe80::1%eth0", "ip=10.0.0.1,netns=a".
// Returns an empty string, or what is wrong.
std::string ParseNicSpec(std::string_view text, NicSpec* out);

}  // namespace verbena::softnic

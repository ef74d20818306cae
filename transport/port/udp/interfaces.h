// Interfaces and addresses of this host, and what changes about them.
//
// Read by netlink; nothing here needs a privilege.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace verbena::transport {

struct Interface {
  uint32_t index = 0;
  std::string name;
  uint32_t mtu = 0;
  bool up = false;       // set up by the administrator
  bool running = false;  // and has a carrier
  bool loopback = false;
  bool multicast = false;
  std::array<uint8_t, 6> mac{};

  friend bool operator==(const Interface&, const Interface&) = default;
};

struct InterfaceAddress {
  Gid gid;  // IPv4 in its mapped form
  uint32_t interface_index = 0;
  uint8_t prefix_bits = 0;  // of 32 for IPv4, of 128 for IPv6
  bool link_local = false;
  bool usable = true;  // false: duplicate address detection still runs, or found one

  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

struct InterfaceList {
  std::vector<Interface> interfaces;
  std::vector<InterfaceAddress> addresses;

  const Interface* Find(uint32_t index) const;  // nullptr: none
  // Interface that holds `gid`; every 127.a.b.c is the loopback's. 0: none.
  uint32_t IndexOf(const Gid& gid) const;
  // Link-local IPv6 address of an interface; nullptr: it has none, or none yet.
  const InterfaceAddress* LinkLocalOf(uint32_t index) const;
};

// False: errno says why netlink did not answer.
[[nodiscard]] bool ReadInterfaces(InterfaceList* out);

// BTH 12, RETH 16, ImmDt 4, ICRC 4; UDP 8; IPv6 40. Counted with IPv6 for both families, as a NIC
// has one active MTU.
inline constexpr uint32_t kLongestHeadersBytes = 12 + 16 + 4 + 4 + 8 + 40;
inline constexpr uint32_t kPathMtuMin = 256;
inline constexpr uint32_t kInterfaceMtuMin = kPathMtuMin + kLongestHeadersBytes;
// The largest path MTU whose packets fit into `mtu` bytes of IP over either family, with the
// longest headers (BTH, RETH, ImmDt) and the ICRC. 0: not even 256.
uint32_t PathMtuFor(uint32_t mtu);

struct InterfaceChange {
  enum class Kind : uint8_t {
    kLinkUp,    // up and running from now on
    kLinkDown,  // or gone
    kMtuChanged,
    kMacChanged,    // its hardware address, as that of a bond that fails over
    kAddressAdded,  // and usable
    kAddressRemoved,
    kResync,  // changes were lost: look at list() anew
  };
  Kind kind = Kind::kResync;
  uint32_t interface_index = 0;
  std::string interface_name{};
  uint32_t mtu = 0;  // kMtuChanged: the new one
  Gid gid{};         // kAddressAdded, kAddressRemoved
};

// Tells what changes about the interfaces, to whoever polls its descriptor. No thread of its own.
class InterfaceWatcher {
 public:
  InterfaceWatcher() = default;
  ~InterfaceWatcher();
  InterfaceWatcher(const InterfaceWatcher&) = delete;
  InterfaceWatcher& operator=(const InterfaceWatcher&) = delete;

  // Begins with a list of what there is; changes count from there. False: errno.
  [[nodiscard]] bool Open();
  int fd() const { return fd_; }  // readable when Poll has something to look at
  // Appends what changed since; never waits.
  void Poll(std::vector<InterfaceChange>* out);
  const InterfaceList& list() const { return list_; }

 private:
  void Compare(const InterfaceList& now, std::vector<InterfaceChange>* out);

  int fd_ = -1;
  InterfaceList list_;
};

}  // namespace verbena::transport

// Socket addresses, and which NIC each of them belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/shm/cm.h"
#include "softnic/cm/cm_service.h"

namespace verbena::softnic {

bool IsInet(const shm::CmAddress& address);  // of a family we know
bool IsWildcard(const shm::CmAddress& address);
bool IsMulticast(const shm::CmAddress& address);
bool IsLinkLocal(const shm::CmAddress& address);  // of IPv6
// Ports, scopes and flow labels do not count.
bool IsSameHost(const shm::CmAddress& a, const shm::CmAddress& b);
// How RoCE v2 names the address.   Spec: IBTA A17.4.5.2
Gid GidOf(const shm::CmAddress& address);
shm::CmAddress WildcardOf(uint16_t family);
shm::CmAddress LoopbackOf(uint16_t family);  // 127.0.0.1, ::1
std::string TextOf(const shm::CmAddress& address);

// Of a NIC: where an address of this host is.
struct CmPlace {
  uint32_t nic = 0;
  Gid gid{};
};

// How to reach a destination.
struct CmReach {
  CmPlace local{};
  Gid remote{};
  shm::CmAddress source{};       // without port
  shm::CmAddress destination{};  // as asked, but for a wildcard
};

class CmAddressBook {
 public:
  void SetNics(std::vector<CmNic> nics) { nics_ = std::move(nics); }
  void SetHostAddresses(std::vector<shm::CmAddress> addresses) {
    host_addresses_ = std::move(addresses);
  }
  const std::vector<CmNic>& nics() const { return nics_; }
  const CmNic* Find(uint32_t index) const;
  // Not known: all zero.
  CmHardwareAddress HardwareOf(uint32_t nic, const Gid& gid) const;
  // 0 if the NIC has it no more.
  uint8_t GidIndexOf(const CmPlace& place) const;

  // Whether who binds to it is bound to no NIC: a wildcard, and as with Linux (cma_any_addr)
  // 127.0.0.1 or ::1 where no NIC stands for loopback.
  bool IsAny(const shm::CmAddress& address) const;
  // Whose address it is. EADDRNOTAVAIL: not one of this host; ENODEV: no NIC's; EINVAL: link-local
  // without a scope.
  int FindLocal(const shm::CmAddress& address, CmPlace* out) const;
  // `source`: a local address, or a wildcard: chosen as Linux's routes would.
  // EHOSTUNREACH, ENETUNREACH, ENODEV, EADDRNOTAVAIL, EINVAL.
  int Resolve(const shm::CmAddress& source, const shm::CmAddress& destination, CmReach* out) const;

 private:
  int ResolveFrom(const shm::CmAddress& destination, CmReach* out) const;
  int ChooseSource(const shm::CmAddress& destination, CmReach* out) const;
  const CmNic* FirstLocalOnly() const;
  const CmNic* FirstUp() const;  // or the first, if none is
  bool IsOpenLoopback(const shm::CmAddress& address) const;

  std::vector<CmNic> nics_;
  std::vector<shm::CmAddress> host_addresses_;
};

}  // namespace verbena::softnic

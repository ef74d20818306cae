// Port spaces: who holds which port, and whether two may hold the same one. RDMA's port spaces have
// nothing to do with those of sockets.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/shm/cm.h"

namespace verbena::softnic {

// An identifier of a session.
struct CmIdRef {
  uint32_t session = 0;
  shm::CmHandle handle = 0;
  friend auto operator<=>(const CmIdRef&, const CmIdRef&) = default;
};

struct CmPortHolder {
  CmIdRef owner{};
  shm::CmAddress address{};
  bool may_share = false;      // RDMA_OPTION_ID_REUSEADDR
  bool is_family_only = true;  // RDMA_OPTION_ID_AFONLY; an IPv6 wildcard is IPv4's, too, unless so
  bool shares_in_session = false;  // with identifiers of its own session
};

// As Linux's rdma_cm has it (cma_get_port and below), which says EADDRNOTAVAIL where bind(2) says
// EADDRINUSE if one of two addresses is a wildcard.
class CmPortTable {
 public:
  explicit CmPortTable(uint64_t seed) : random_(seed) {}

  // Port 0: one that nobody holds is chosen; the port is stored in `holder->address`.
  // EADDRINUSE, EADDRNOTAVAIL: somebody else's, or none is left.
  int Bind(uint16_t port_space, CmPortHolder* holder);
  // Who listens shares with nobody.
  int CheckListen(uint16_t port_space, const CmPortHolder& holder) const;
  // Address or options have changed.
  void Update(uint16_t port_space, const CmPortHolder& holder);
  void Release(uint16_t port_space, const CmPortHolder& holder);
  size_t size() const { return ports_.size(); }  // ports in use

 private:
  using Key = std::pair<uint16_t, uint16_t>;  // port space, port

  static int Check(const std::vector<CmPortHolder>& others, const CmPortHolder& holder,
                   bool may_share);
  int ChoosePort(uint16_t port_space, CmPortHolder* holder);

  std::map<Key, std::vector<CmPortHolder>> ports_;
  std::mt19937_64 random_;
  uint16_t last_chosen_ = 0;
};

}  // namespace verbena::softnic

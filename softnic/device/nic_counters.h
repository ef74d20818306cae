// What a NIC counts about its packets.
#pragma once

#include <cstdint>

namespace verbena::softnic {

// What a NIC's port to the network has seen, for `verbena status` and tests.
struct WireCounters {
  uint64_t tx_packets = 0, tx_bytes = 0;  // UDP payload
  uint64_t tx_dropped = 0;                // no packet memory, or the port is down
  uint64_t rx_packets = 0, rx_bytes = 0;
  uint64_t rx_malformed = 0;    // no packet Verbena knows
  uint64_t rx_icrc_errors = 0;  // broken on the way
  uint64_t rx_bad_pkey = 0;
  uint64_t rx_no_qp = 0;       // none of that number and service that listens
  uint64_t rx_wrong_peer = 0;  // for a connected QP, from another address than its peer's; for
                               // QP 1, from another QP or for another NIC's address
  uint64_t rx_dropped = 0;     // its QP could not take it, and too many waited
};

}  // namespace verbena::softnic

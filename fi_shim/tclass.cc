// Traffic classes on the wire: the DSCP of an endpoint's packets.
#include "fi_shim/rdm.h"

namespace verbena::fi {
namespace {

// What networks usually make of each.  Spec: RFC 4594, table 3; RFC 8622 for the least of all.
uint8_t DscpOfLabel(uint32_t tclass) {
  switch (tclass) {
    case FI_TC_LOW_LATENCY:
      return 46;  // EF
    case FI_TC_DEDICATED_ACCESS:
      return 32;  // CS4
    case FI_TC_BULK_DATA:
      return 10;  // AF11
    case FI_TC_SCAVENGER:
      return 1;  // LE
    case FI_TC_NETWORK_CTRL:
      return 48;  // CS6
    default:
      return 0;
  }
}

}  // namespace

uint8_t TypeOfService(const Endpoint* ep) {
  uint32_t tclass = FI_TC_UNSPEC;
  if (ep->info->tx_attr != nullptr) tclass = ep->info->tx_attr->tclass;
  if (tclass == FI_TC_UNSPEC) tclass = ep->domain->tclass;
  const uint8_t dscp = (tclass & FI_TC_DSCP) != 0 ? fi_tc_dscp_get(tclass) : DscpOfLabel(tclass);
  return static_cast<uint8_t>(dscp << 2);
}

}  // namespace verbena::fi

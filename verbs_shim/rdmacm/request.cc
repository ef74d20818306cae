// Requests to the daemon, and addresses between its form and that of sockets.
#include <netinet/in.h>
#include <string.h>

#include "core/client/cm_address.h"
#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {

shm::CmRequest NewRequest(shm::CmOp op, shm::CmHandle handle) {
  shm::CmRequest request;
  memset(&request, 0, sizeof(request));
  request.op = static_cast<uint32_t>(op);
  request.handle = handle;
  return request;
}

int Ask(Id* id, const shm::CmRequest& request, shm::CmReply* reply) {
  return id->session->Execute(request, reply);
}

int Ask(Id* id, shm::CmOp op, uint32_t number) {
  shm::CmRequest request = NewRequest(op, id->handle);
  request.number = number;
  shm::CmReply reply;
  return Ask(id, request, &reply);
}

socklen_t AddressBytes(const sockaddr* address) {
  if (address == nullptr) return 0;
  if (address->sa_family == AF_INET) return sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) return sizeof(sockaddr_in6);
  return 0;
}

int ToCmAddress(const sockaddr* address, shm::CmAddress* out) {
  *out = {};
  return address != nullptr && client::ToCmAddress(address, out) ? 0 : EINVAL;
}

void FromCmAddress(const shm::CmAddress& address, sockaddr_storage* out) {
  memset(out, 0, sizeof(*out));
  out->ss_family = address.family;
  client::FromCmAddress(address, out);
}

uint16_t PortOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) return reinterpret_cast<const sockaddr_in*>(address)->sin_port;
  if (address->sa_family == AF_INET6) {
    return reinterpret_cast<const sockaddr_in6*>(address)->sin6_port;
  }
  return 0;
}

void CopyAddressHandle(const shm::CmAddressHandle& from, ibv_ah_attr* to) {
  memset(to, 0, sizeof(*to));
  to->is_global = 1;
  memcpy(to->grh.dgid.raw, from.dgid, sizeof(from.dgid));
  to->grh.flow_label = from.flow_label;
  to->grh.sgid_index = from.sgid_index;
  to->grh.hop_limit = from.hop_limit;
  to->grh.traffic_class = from.traffic_class;
  to->dlid = from.dlid;
  to->sl = from.sl;
  to->static_rate = from.static_rate;
  to->port_num = from.port_num;
}

}  // namespace verbena::rdmacm

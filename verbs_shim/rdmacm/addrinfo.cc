// rdma_getaddrinfo: getaddrinfo(3) with what RDMA adds. No ibacm: RoCE has no path records to ask
// for.
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

int SocketType(int qp_type) {
  switch (qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return SOCK_STREAM;
    case IBV_QPT_UD:
      return SOCK_DGRAM;
    default:
      return 0;
  }
}

int Protocol(int port_space, int socket_type) {
  switch (port_space) {
    case RDMA_PS_TCP:
      return IPPROTO_TCP;
    case RDMA_PS_IPOIB:
    case RDMA_PS_UDP:
      return IPPROTO_UDP;
    case RDMA_PS_IB:
      if (socket_type == 0) return 0;
      return socket_type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
    default:
      return 0;
  }
}

addrinfo ToSocketHints(const rdma_addrinfo& hints) {
  addrinfo out = {};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) out.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) out.ai_flags |= AI_NUMERICHOST;
  out.ai_family = hints.ai_family;
  out.ai_socktype = SocketType(hints.ai_qp_type);
  out.ai_protocol = Protocol(hints.ai_port_space, out.ai_socktype);
  return out;
}

// 0 or ENOMEM.
int CopyAddress(const sockaddr* from, socklen_t bytes, sockaddr** to, socklen_t* to_bytes) {
  *to = static_cast<sockaddr*>(malloc(bytes));
  if (*to == nullptr) return ENOMEM;
  memcpy(*to, from, bytes);
  *to_bytes = bytes;
  return 0;
}

int CopyName(const char* from, char** to) {
  if (from == nullptr) return 0;
  *to = strdup(from);
  return *to != nullptr ? 0 : ENOMEM;
}

// What the hints leave open is as the socket's. 0 or ENOMEM.
int FromSocket(const addrinfo& from, const rdma_addrinfo* hints, rdma_addrinfo* to) {
  to->ai_qp_type = hints != nullptr ? hints->ai_qp_type : 0;
  to->ai_port_space = hints != nullptr ? hints->ai_port_space : 0;
  if (to->ai_qp_type == 0) {
    if (from.ai_socktype == SOCK_STREAM) to->ai_qp_type = IBV_QPT_RC;
    if (from.ai_socktype == SOCK_DGRAM) to->ai_qp_type = IBV_QPT_UD;
  }
  if (to->ai_port_space == 0) {
    if (from.ai_protocol == IPPROTO_TCP) to->ai_port_space = RDMA_PS_TCP;
    if (from.ai_protocol == IPPROTO_UDP) to->ai_port_space = RDMA_PS_UDP;
  }
  to->ai_family = from.ai_family;
  if ((from.ai_flags & AI_PASSIVE) != 0) {
    to->ai_flags = RAI_PASSIVE;
    const int error = CopyName(from.ai_canonname, &to->ai_src_canonname);
    if (error != 0) return error;
    return CopyAddress(from.ai_addr, from.ai_addrlen, &to->ai_src_addr, &to->ai_src_len);
  }
  if (int error = CopyName(from.ai_canonname, &to->ai_dst_canonname); error != 0) return error;
  return CopyAddress(from.ai_addr, from.ai_addrlen, &to->ai_dst_addr, &to->ai_dst_len);
}

// 0, -1 and errno, or an EAI_ code.
int LookUp(const char* node, const char* service, const rdma_addrinfo* hints, rdma_addrinfo* out) {
  addrinfo socket_hints = {};
  if (hints != nullptr) socket_hints = ToSocketHints(*hints);
  addrinfo* found = nullptr;
  const int code = getaddrinfo(node, service, hints != nullptr ? &socket_hints : nullptr, &found);
  if (code != 0) return code;
  const int error = FromSocket(*found, hints, out);
  freeaddrinfo(found);
  return Result(error);
}

// Without a name: the hints are all there is.
int TakeHints(const rdma_addrinfo& hints, rdma_addrinfo* out) {
  out->ai_flags = hints.ai_flags;
  out->ai_family = hints.ai_family;
  out->ai_qp_type = hints.ai_qp_type;
  out->ai_port_space = hints.ai_port_space;
  if (hints.ai_dst_len == 0) return 0;
  return Result(
      CopyAddress(hints.ai_dst_addr, hints.ai_dst_len, &out->ai_dst_addr, &out->ai_dst_len));
}

int Fill(const char* node, const char* service, const rdma_addrinfo* hints, rdma_addrinfo* out) {
  const bool has_name = node != nullptr || service != nullptr;
  const int code = has_name ? LookUp(node, service, hints, out) : TakeHints(*hints, out);
  if (code != 0 || hints == nullptr) return code;
  if (out->ai_src_len != 0 || hints->ai_src_len == 0) return 0;
  return Result(
      CopyAddress(hints->ai_src_addr, hints->ai_src_len, &out->ai_src_addr, &out->ai_src_len));
}

void FreeList(rdma_addrinfo* info) {
  while (info != nullptr) {
    rdma_addrinfo* next = info->ai_next;
    free(info->ai_connect);
    free(info->ai_route);
    free(info->ai_src_canonname);
    free(info->ai_dst_canonname);
    free(info->ai_src_addr);
    free(info->ai_dst_addr);
    free(info);
    info = next;
  }
}

}  // namespace

int GetAddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                rdma_addrinfo** out) {
  if (node == nullptr && service == nullptr && hints == nullptr) return Fail(EINVAL);
  client::CmSession* session;
  if (int error = client::CmSession::ForThisProcess(&session); error != 0) return Fail(error);
  if (hints != nullptr && (hints->ai_flags & kRaiSa) != 0) {
    if (node != nullptr || (hints->ai_flags & kRaiDns) != 0) return Fail(EOPNOTSUPP);
    return Fail(service == nullptr ? EINVAL : ENOENT);  // no InfiniBand port to ask
  }
  // AF_IB names no port of a RoCE NIC.
  if (hints != nullptr && hints->ai_family == AF_IB) return EAI_FAMILY;
  auto* info = static_cast<rdma_addrinfo*>(calloc(1, sizeof(rdma_addrinfo)));
  if (info == nullptr) return Fail(ENOMEM);
  if (int code = Fill(node, service, hints, info); code != 0) {
    FreeList(info);
    return code;
  }
  *out = info;
  return 0;
}

// One entry. Returns 0, -1 and errno, or, as rdma-core's does, getaddrinfo's code where that
// failed.
// Errors: EINVAL: nothing to go by; ENODEV: no instance; ENOMEM.  Source: rdma_getaddrinfo(3).
VERBENA_EXPORT int rdma_getaddrinfo(const char* node, const char* service,
                                    const rdma_addrinfo* hints, rdma_addrinfo** res) {
  if (res == nullptr) return Fail(EINVAL);
  return GetAddrinfo(node, service, hints, res);
}

VERBENA_EXPORT void rdma_freeaddrinfo(rdma_addrinfo* info) { FreeList(info); }

}  // namespace verbena::rdmacm

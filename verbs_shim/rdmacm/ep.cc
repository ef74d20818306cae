// Endpoints: synchronous identifiers made in one call from address information, and their requests.
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

constexpr int kResolveTimeoutMs = 2000;

// 0, or -1 and errno, as the following.
int BindPassive(Id* id, rdma_addrinfo* info, ibv_pd* pd, const ibv_qp_init_attr* attr) {
  if (rdma_bind_addr(&id->base, info->ai_src_addr) != 0) return -1;
  if (pd != nullptr) id->base.pd = pd;
  if (attr == nullptr) return 0;
  id->qp_init_attr = static_cast<ibv_qp_init_attr*>(malloc(sizeof(*attr)));
  if (id->qp_init_attr == nullptr) return Fail(ENOMEM);
  *id->qp_init_attr = *attr;
  id->qp_init_attr->qp_type = static_cast<ibv_qp_type>(info->ai_qp_type);
  return 0;
}

int KeepConnectData(Id* id, const rdma_addrinfo* info) {
  if (info->ai_connect_len == 0) return 0;
  id->connect_data = malloc(info->ai_connect_len);
  if (id->connect_data == nullptr) return Fail(ENOMEM);
  memcpy(id->connect_data, info->ai_connect, info->ai_connect_len);
  id->connect_data_bytes = info->ai_connect_len;
  return 0;
}

int ResolveActive(Id* id, rdma_addrinfo* info, ibv_pd* pd, ibv_qp_init_attr* attr) {
  rdma_cm_id* base = &id->base;
  if (rdma_resolve_addr(base, info->ai_src_addr, info->ai_dst_addr, kResolveTimeoutMs) != 0) {
    return -1;
  }
  if (info->ai_route_len != 0) {
    const int result = rdma_set_option(base, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, info->ai_route,
                                       info->ai_route_len);
    if (result != 0 || AwaitCompletion(id) != 0) return -1;
  } else if (rdma_resolve_route(base, kResolveTimeoutMs) != 0) {
    return -1;
  }
  if (attr != nullptr) {
    attr->qp_type = static_cast<ibv_qp_type>(info->ai_qp_type);
    if (rdma_create_qp(base, pd, attr) != 0) return -1;
  }
  return KeepConnectData(id, info);
}

// What of a listener's event is no request. 0 or errno.
int ErrorOfRequest(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_REJECTED) return ECONNREFUSED;
  if (event.status != 0) return event.status < 0 ? -event.status : event.status;
  return event.event == RDMA_CM_EVENT_CONNECT_REQUEST ? 0 : EINVAL;
}

}  // namespace

// Errors: those of rdma_bind_addr where RAI_PASSIVE, else of rdma_resolve_addr, rdma_resolve_route
// and rdma_create_qp.  Source: rdma_create_ep(3).
VERBENA_EXPORT int rdma_create_ep(rdma_cm_id** out, rdma_addrinfo* info, ibv_pd* pd,
                                  ibv_qp_init_attr* attr) {
  Id* id;
  const int error = CreateId(nullptr, nullptr, static_cast<rdma_port_space>(info->ai_port_space),
                             static_cast<ibv_qp_type>(info->ai_qp_type), &id);
  if (error != 0) return Fail(error);
  const bool is_passive = (info->ai_flags & RAI_PASSIVE) != 0;
  const int result =
      is_passive ? BindPassive(id, info, pd, attr) : ResolveActive(id, info, pd, attr);
  if (result != 0) {
    const int cause = errno;
    rdma_destroy_ep(&id->base);
    return Fail(cause);
  }
  *out = &id->base;
  return 0;
}

VERBENA_EXPORT void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  if (id->srq != nullptr) rdma_destroy_srq(id);
  DestroyId(ToId(id));
}

// Waits for a request to a synchronous listener, and makes its QP where rdma_create_ep was told of
// one. Errors: EINVAL: asynchronous, or another event came; those of rdma_get_cm_event and
// rdma_create_qp.  Source: rdma_get_request(3).
VERBENA_EXPORT int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** out) {
  Id* id = ToId(listener);
  if (!id->is_sync) return Fail(EINVAL);
  if (listener->event != nullptr) {
    rdma_ack_cm_event(listener->event);
    listener->event = nullptr;
  }
  rdma_cm_event* event;
  if (rdma_get_cm_event(listener->channel, &event) != 0) return -1;
  int error = ErrorOfRequest(*event);
  if (error == 0 && id->qp_init_attr != nullptr) {
    ibv_qp_init_attr attr = *id->qp_init_attr;
    if (rdma_create_qp(event->id, listener->pd, &attr) != 0) error = errno;
  }
  if (error != 0) {
    listener->event = event;
    return Fail(error);
  }
  *out = event->id;
  (*out)->event = event;
  return 0;
}

}  // namespace verbena::rdmacm

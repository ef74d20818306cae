// Events: taken from the daemon, acted upon as the API promises, given to the program.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

enum class Outcome { kTell, kSkip };

// Until the channel has something, or hangs up. 0 or errno: EAGAIN: the program asked not to block;
// EINTR. A cancellation point: nothing is held here.
//
// Looks at the token that makes the fd readable, and leaves it: unlike poll(2), recv(2) goes on
// after a signal whose handler restarts calls, as reading events of the kernel does.
int AwaitEvent(int fd) {
  char token;
  if (recv(fd, &token, sizeof(token), MSG_PEEK) >= 0) return 0;
  return errno == EAGAIN || errno == EINTR ? errno : 0;  // of others the daemon will say
}

[[noreturn]] void WaitForever() {
  for (;;) pause();
}

// 0 or errno: as above, and EIO: the daemon is gone.
int AwaitAndTakeEvent(const Channel* channel, shm::CmReply* reply) {
  // A thread may destroy the channel in which another waits, as many programs do at their end. That
  // other thread goes on waiting then, as it does in the kernel, and looks at the channel no more.
  const int fd = channel->base.fd;
  client::CmSession* session = channel->session;
  const shm::CmHandle handle = channel->handle;
  for (bool has_waited = false;; has_waited = true) {
    int error = TakeEvent(session, handle, reply);
    const bool is_destroyed = has_waited && error != 0 && error != EAGAIN && error != EIO;
    if (is_destroyed) WaitForever();
    if (error != EAGAIN) return error;
    error = AwaitEvent(fd);
    if (error != 0) return error;
  }
}

void CopyConnParam(const shm::CmEvent& from, Event* event) {
  rdma_conn_param& to = event->base.param.conn;
  to.private_data_len = from.param.private_data_len;
  if (to.private_data_len != 0) {
    memcpy(event->private_data, from.param.private_data, to.private_data_len);
    to.private_data = event->private_data;
  }
  to.responder_resources = from.param.responder_resources;
  to.initiator_depth = from.param.initiator_depth;
  to.flow_control = from.param.flow_control;
  to.retry_count = from.param.retry_count;
  to.rnr_retry_count = from.param.rnr_retry_count;
  to.srq = from.param.srq;
  to.qp_num = from.param.qp_num;
}

void CopyUdParam(const shm::CmEvent& from, Event* event) {
  rdma_ud_param& to = event->base.param.ud;
  to.private_data_len = from.param.private_data_len;
  if (to.private_data_len != 0) {
    memcpy(event->private_data, from.param.private_data, to.private_data_len);
    to.private_data = event->private_data;
  }
  CopyAddressHandle(from.ah, &to.ah_attr);
  to.qp_num = from.param.qp_num;
  to.qkey = from.param.qkey;
}

void CopyParam(const shm::CmEvent& from, Event* event) {
  if (IsUd(event->id)) {
    CopyUdParam(from, event);
  } else {
    CopyConnParam(from, event);
  }
}

void Ack(Id* id, Multicast* multicast) {
  client::ScopedLock lock(&id->mutex);
  if (multicast != nullptr) ++multicast->events_acked;
  ++id->events_acked;
  pthread_cond_broadcast(&id->acked);
}

// What was meant to succeed did not here.
void TurnInto(Event* event, rdma_cm_event_type type, int error) {
  event->base.event = type;
  event->base.status = -error;
}

void OnAddrResolved(Event* event) {
  int error = QueryId(event->id, /*with_path=*/false);
  if (error == 0 && event->id->base.verbs == nullptr) error = ENODEV;
  if (error != 0) TurnInto(event, RDMA_CM_EVENT_ADDR_ERROR, error);
}

void OnRouteResolved(Event* event) {
  const int error = QueryId(event->id, /*with_path=*/true);
  if (error != 0) TurnInto(event, RDMA_CM_EVENT_ROUTE_ERROR, error);
}

// Makes the identifier of a request. One that can't be made is refused by the daemon as it is
// destroyed, and the program is not told.
Outcome OnConnectRequest(const shm::CmEvent& from, Event* event) {
  CopyParam(from, event);
  const Id* listener = event->id;
  Id* id = nullptr;
  int error = NewId(listener->base.channel, listener->base.context, listener->base.ps,
                    listener->base.qp_type, &id);
  if (error != 0) {
    shm::CmReply reply;
    listener->session->Execute(NewRequest(shm::CmOp::kDestroyId, from.id), &reply);
    Ack(event->id, nullptr);
    return Outcome::kSkip;
  }
  id->handle = from.id;
  id->initiator_depth = from.param.initiator_depth;
  id->responder_resources = from.param.responder_resources;
  id->remote_ece.vendor_id = from.param.ece_vendor_id;
  id->remote_ece.options = from.param.ece_options;
  if (listener->is_sync) error = MigrateId(id, nullptr);
  if (error == 0) error = QueryId(id, /*with_path=*/true);
  if (error != 0) {
    DestroyId(id);
    Ack(event->id, nullptr);
    return Outcome::kSkip;
  }
  event->base.listen_id = &event->id->base;
  event->base.id = &id->base;
  return Outcome::kTell;
}

// With a QP the library goes on to connect it; without, the program does, by rdma_establish.
void OnConnectResponse(const shm::CmEvent& from, Event* event) {
  Id* id = event->id;
  CopyConnParam(from, event);
  if (id->base.qp == nullptr) {
    id->remote_ece.vendor_id = from.param.ece_vendor_id;
    id->remote_ece.options = from.param.ece_options;
    return;
  }
  if (FinishConnectingWithEce(id, from.param.ece_vendor_id, from.param.ece_options) == 0) {
    event->base.event = RDMA_CM_EVENT_ESTABLISHED;
    event->base.status = 0;
    return;
  }
  id->has_connect_error = true;
  TurnInto(event, RDMA_CM_EVENT_CONNECT_ERROR, 1);  // -1 whatever the reason, as of rdma-core
}

// Of a connection that failed here the program has been told already.
Outcome OnEnd(const shm::CmEvent& from, Event* event) {
  if (event->id->has_connect_error) {
    Ack(event->id, nullptr);
    return Outcome::kSkip;
  }
  CopyConnParam(from, event);
  if (from.event == RDMA_CM_EVENT_REJECTED) ModifyToErr(event->id);
  return Outcome::kTell;
}

void OnMulticast(const shm::CmEvent& from, Event* event) {
  Multicast* multicast = event->multicast;
  if (from.event == RDMA_CM_EVENT_MULTICAST_JOIN) {
    CopyUdParam(from, event);
    multicast->mgid = event->base.param.ud.ah_attr.grh.dgid;
    multicast->mlid = event->base.param.ud.ah_attr.dlid;
    ibv_qp* qp = event->id->base.qp;
    if (qp != nullptr && multicast->join_flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER) {
      const int error = ibv_attach_mcast(qp, &multicast->mgid, multicast->mlid);
      if (error != 0) TurnInto(event, RDMA_CM_EVENT_MULTICAST_ERROR, error);
    }
  }
  event->base.param.ud.private_data = multicast->context;
}

// The event that the library wrote to itself becomes what it stands for.
Outcome OnInternal(const shm::CmEvent& from, Event* event) {
  if (from.arg != static_cast<uint64_t>(kEventAddrinfoResolved)) {
    Ack(event->id, nullptr);
    return Outcome::kSkip;
  }
  event->base.event = kEventAddrinfoResolved;
  return Outcome::kTell;
}

Outcome Process(const shm::CmEvent& from, Event* event) {
  switch (static_cast<int>(from.event)) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      OnAddrResolved(event);
      return Outcome::kTell;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      OnRouteResolved(event);
      return Outcome::kTell;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      return OnConnectRequest(from, event);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      OnConnectResponse(from, event);
      return Outcome::kTell;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
      return OnEnd(from, event);
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
      OnMulticast(from, event);
      return Outcome::kTell;
    case kEventUser:
      memcpy(&event->base.param, &from.arg, sizeof(from.arg));
      return Outcome::kTell;
    case kEventInternal:
      return OnInternal(from, event);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      NoteRemoved(event->id);
      CopyParam(from, event);
      return Outcome::kTell;
    default:
      CopyParam(from, event);
      return Outcome::kTell;
  }
}

// Whose it is, from its cookie.
void Assign(const shm::CmEvent& from, Event* event) {
  memset(event, 0, sizeof(*event));
  event->base.event = static_cast<rdma_cm_event_type>(from.event);
  event->base.status = from.status;
  if (IsOfMulticast(from)) {
    event->multicast = reinterpret_cast<Multicast*>(from.cookie);
    event->id = event->multicast->id;
  } else {
    event->id = reinterpret_cast<Id*>(from.cookie);
  }
  event->base.id = &event->id->base;
}

int GetEvent(Channel* channel, Event** out) {
  auto* event = static_cast<Event*>(malloc(sizeof(Event)));
  if (event == nullptr) return ENOMEM;
  for (;;) {
    shm::CmReply reply;
    if (int error = AwaitAndTakeEvent(channel, &reply); error != 0) {
      Id* removed = error == EIO ? TakeRemoved(channel) : nullptr;
      if (removed != nullptr) {
        memset(event, 0, sizeof(*event));
        event->base.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
        event->base.id = &removed->base;
        event->id = removed;
        break;
      }
      free(event);
      return error;
    }
    // Of a request that was not accepted yet; rdma_accept will learn the same.
    if (reply.event.cookie == 0) continue;
    Assign(reply.event, event);
    if (Process(reply.event, event) == Outcome::kTell) break;
  }
  *out = event;
  return 0;
}

}  // namespace

int AwaitCompletion(Id* id) {
  if (!id->is_sync) return 0;
  if (id->base.event != nullptr) {
    rdma_ack_cm_event(id->base.event);
    id->base.event = nullptr;
  }
  if (rdma_get_cm_event(id->base.channel, &id->base.event) != 0) return -1;
  const rdma_cm_event& event = *id->base.event;
  if (event.status == 0) return 0;
  if (event.event == RDMA_CM_EVENT_REJECTED) return Fail(ECONNREFUSED);
  return Fail(event.status < 0 ? -event.status : event.status);
}

// Waits, unless the channel's fd is O_NONBLOCK. Errors: EAGAIN: nothing, and it may not wait;
// EINTR; EIO: the daemon is gone, and identifiers that had a NIC have been told of its removal;
// EINVAL; ENOMEM.
// Source: rdma_get_cm_event(3).
VERBENA_EXPORT int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  if (channel == nullptr || event == nullptr) return Fail(EINVAL);
  Event* taken;
  if (int error = GetEvent(ToChannel(channel), &taken); error != 0) return Fail(error);
  *event = &taken->base;
  return 0;
}

// Frees the event. Errors: EINVAL.  Source: rdma_ack_cm_event(3).
VERBENA_EXPORT int rdma_ack_cm_event(rdma_cm_event* base) {
  if (base == nullptr) return Fail(EINVAL);
  Event* event = ToEvent(base);
  Ack(event->id, event->multicast);
  free(event);
  return 0;
}

// Errors: EINVAL: another event than RDMA_CM_EVENT_USER; EIO.  Source: rdma_write_cm_event(3).
VERBENA_EXPORT int rdma_write_cm_event(rdma_cm_id* base, rdma_cm_event_type event, int status,
                                       uint64_t arg) {
  if (base == nullptr || event != kEventUser) return Fail(EINVAL);
  Id* id = ToId(base);
  shm::CmRequest request = NewRequest(shm::CmOp::kWriteEvent, id->handle);
  request.user.event = shm::kCmEventUser;
  request.user.status = status;
  request.user.arg = arg;
  shm::CmReply reply;
  return Result(Ask(id, request, &reply));
}

}  // namespace verbena::rdmacm

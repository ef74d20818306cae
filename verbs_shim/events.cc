// Completion channels and asynchronous events.
#include <sys/socket.h>
#include <unistd.h>

#include <new>

#include "core/client/no_cancel.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

// What an event of this type is about; kFree: nothing that can be destroyed.
ObjectKind KindOf(const shm::AsyncEventMessage& message) {
  switch (static_cast<EventType>(message.event)) {
    case EventType::kCqErr:
      return ObjectKind::kCq;
    case EventType::kQpFatal:
    case EventType::kQpReqErr:
    case EventType::kQpAccessErr:
    case EventType::kCommEst:
    case EventType::kSqDrained:
    case EventType::kPathMig:
    case EventType::kPathMigErr:
    case EventType::kQpLastWqeReached:
      return ObjectKind::kQp;
    case EventType::kSrqErr:
    case EventType::kSrqLimitReached:
      return ObjectKind::kSrq;
    default:
      return ObjectKind::kFree;
  }
}
ObjectKind KindOf(const shm::ChannelEvent&) { return ObjectKind::kCq; }

// Whether its object was destroyed, and the event with it.
template <typename Message>
bool IsStale(Context* context, const Message& message) {
  const ObjectKind kind = KindOf(message);
  if (kind == ObjectKind::kFree) return false;
  MutexGuard guard(context->table_mutex);
  return context->table.Lookup(kind, message.cookie) == nullptr;
}

// Takes stale messages off the head of a stream whose lock is held: its fd is readable only while
// there is something to get, so that a program may poll it and then get without fear to block.
template <typename Message>
void DropStale(Context* context, int fd, EventStream* stream) {
  const int saved_errno = errno;
  for (;;) {
    Message message;
    const ssize_t n = recv(fd, &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT);
    stream->may_hold_stale = n > 0;
    if (n != sizeof(message) || !IsStale(context, message)) break;
    (void)recv(fd, &message, sizeof(message), MSG_DONTWAIT);
  }
  errno = saved_errno;
}

// Takes one whole message. False with errno set; at the end of the stream the daemon is gone.
template <typename Message>
bool TakeMessage(Context* context, int fd, EventStream* stream, Message* message, bool* gone) {
  for (;;) {
    // A forked child shares the socket with its parent, whose messages these are.
    *gone = false;
    if (context->session->IsForkedCopy()) {
      errno = EIO;
      return false;
    }
    // Waits, or doesn't, as the program set its fd; who takes what is decided under the lock.
    ssize_t n = recv(fd, message, sizeof(*message), MSG_PEEK);
    if (n > 0) {
      client::NoCancel no_cancel;
      MutexGuard guard(stream->mutex);
      n = recv(fd, message, sizeof(*message), MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;  // another thread came before us
      if (n > 0 && stream->may_hold_stale) DropStale<Message>(context, fd, stream);
    }
    *gone = n == 0;
    if (n == sizeof(*message)) return true;
    if (n >= 0) errno = EIO;
    return false;
  }
}

// Counts the event as reported and says whom it is about; nullptr when the object is gone.
template <typename Object>
Object* Report(Context* context, ObjectKind kind, uint64_t cookie, uint32_t Object::*reported) {
  MutexGuard guard(context->table_mutex);
  auto* object = static_cast<Object*>(context->table.Lookup(kind, cookie));
  if (object != nullptr) ++(object->*reported);
  return object;
}

// False: the event's object was destroyed meanwhile, and the event with it.
bool Deliver(Context* context, const shm::AsyncEventMessage& message, ibv_async_event* event) {
  event->event_type = static_cast<ibv_event_type>(message.event);
  const ObjectKind kind = KindOf(message);
  if (kind == ObjectKind::kCq) {
    Cq* cq = Report(context, kind, message.cookie, &Cq::async_events_reported);
    event->element.cq = cq != nullptr ? &cq->base : nullptr;
    return cq != nullptr;
  }
  if (kind == ObjectKind::kQp) {
    Qp* qp = Report(context, kind, message.cookie, &Qp::events_reported);
    event->element.qp = qp != nullptr ? qp->base() : nullptr;
    return qp != nullptr;
  }
  if (kind == ObjectKind::kSrq) {
    Srq* srq = Report(context, kind, message.cookie, &Srq::events_reported);
    event->element.srq = srq != nullptr ? &srq->base : nullptr;
    return srq != nullptr;
  }
  event->element.port_num = static_cast<int>(message.object);
  return true;
}

void Ack(pthread_mutex_t* mutex, pthread_cond_t* cond, uint32_t* completed, uint32_t events) {
  MutexGuard guard(*mutex);
  *completed += events;
  pthread_cond_signal(cond);
}

}  // namespace

void DropStaleEvents(Context* context) {
  if (context->session->IsForkedCopy()) return;
  client::NoCancel no_cancel;
  MutexGuard guard(context->async_events.mutex);
  DropStale<shm::AsyncEventMessage>(context, context->vctx.context.async_fd,
                                    &context->async_events);
}

void DropStaleEvents(Context* context, Channel* channel) {
  if (context->session->IsForkedCopy()) return;
  client::NoCancel no_cancel;
  MutexGuard guard(channel->events.mutex);
  DropStale<shm::ChannelEvent>(context, channel->base.fd, &channel->events);
}

VERBENA_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* base) {
  Context* context = ToContext(base);
  auto* channel = new (std::nothrow) Channel();
  if (channel == nullptr) return Fail<ibv_comp_channel>(ENOMEM);
  shm::HandleReply reply = {};
  int error = ExecuteEmpty(context, shm::CommandOp::kCreateChannel, &reply);
  int fd = -1;
  if (error == 0) {
    fd = context->session->TakeChannelFd(reply.handle);
    if (fd < 0) {
      error = errno;
      ExecuteDestroy(context, shm::CommandOp::kDestroyChannel, reply.handle);
    }
  }
  if (error != 0) {
    delete channel;
    return Fail<ibv_comp_channel>(error);
  }
  channel->base.context = base;
  channel->base.fd = fd;
  channel->handle = reply.handle;
  return &channel->base;
}

// Errors: EBUSY while a CQ uses it.
VERBENA_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ibv_context* base = channel->context;
  client::NoCancel no_cancel;
  MutexGuard guard(base->mutex);
  if (channel->refcnt != 0) return EBUSY;
  int error =
      ExecuteDestroy(ToContext(base), shm::CommandOp::kDestroyChannel, ToChannel(channel)->handle);
  if (error != 0) return error;
  close(channel->fd);
  delete ToChannel(channel);
  return 0;
}

// Blocks unless the program made channel->fd non-blocking. -1 with errno: EAGAIN, EINTR, or EIO
// when the daemon is gone.
VERBENA_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Context* context = ToContext(channel->context);
  for (;;) {
    shm::ChannelEvent event;
    bool gone = false;
    if (!TakeMessage(context, channel->fd, &ToChannel(channel)->events, &event, &gone)) {
      if (gone) context->session->MarkDead();
      return -1;
    }
    Cq* found = Report(context, ObjectKind::kCq, event.cookie, &Cq::comp_events_reported);
    if (found == nullptr) continue;  // its CQ was destroyed with the event on its way
    *cq = &found->base;
    *cq_context = found->base.cq_context;
    return 0;
  }
}

VERBENA_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned int events) {
  Ack(&cq->mutex, &cq->cond, &cq->comp_events_completed, events);
}

// Blocks unless the program made async_fd non-blocking. When the daemon is gone: once
// IBV_EVENT_DEVICE_FATAL, from then on -1 with EIO.
VERBENA_EXPORT int ibv_get_async_event(ibv_context* base, ibv_async_event* event) {
  Context* context = ToContext(base);
  for (;;) {
    shm::AsyncEventMessage message;
    bool gone = false;
    if (TakeMessage(context, base->async_fd, &context->async_events, &message, &gone)) {
      if (Deliver(context, message, event)) return 0;
      continue;
    }
    if (!gone) return -1;
    context->session->MarkDead();
    if (context->fatal_reported.exchange(true)) return -1;
    event->event_type = IBV_EVENT_DEVICE_FATAL;
    event->element.port_num = 0;
    return 0;
  }
}

VERBENA_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event->element.cq;
      Ack(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
      return;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event->element.qp;
      Ack(&qp->mutex, &qp->cond, &qp->events_completed, 1);
      return;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event->element.srq;
      Ack(&srq->mutex, &srq->cond, &srq->events_completed, 1);
      return;
    }
    default:
      return;
  }
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_get_cq_event);
VERBENA_VERSION_1_1(ibv_ack_cq_events);
VERBENA_VERSION_1_1(ibv_get_async_event);
VERBENA_VERSION_1_1(ibv_ack_async_event);

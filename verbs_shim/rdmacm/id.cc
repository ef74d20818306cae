// Identifiers: made, moved between channels, asked for what they are, and destroyed.
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
Id* list = nullptr;
bool fork_handler_registered = false;

// The parent's other threads may have held it, amid a change of the list. The child's list is of
// its own identifiers; its copies of the parent's are in none.
void AfterForkInChild() {
  list_mutex = PTHREAD_MUTEX_INITIALIZER;
  list = nullptr;
}

void Link(Id* id) {
  client::ScopedLock lock(&list_mutex);
  if (!fork_handler_registered) {
    fork_handler_registered = pthread_atfork(nullptr, nullptr, AfterForkInChild) == 0;
  }
  id->next = list;
  id->place = &list;
  if (list != nullptr) list->place = &id->next;
  list = id;
}

// No event of it is taken any more. How many were.
uint64_t Unlink(Id* id) {
  client::ScopedLock lock(&list_mutex);
  if (id->place == nullptr || id->session->IsForkedCopy()) return id->events_taken;
  *id->place = id->next;
  if (id->next != nullptr) id->next->place = id->place;
  id->place = nullptr;
  return id->events_taken;
}

void CountTaken(const shm::CmEvent& event) {
  if (event.cookie == 0) return;
  if (!IsOfMulticast(event)) {
    ++reinterpret_cast<Id*>(event.cookie)->events_taken;
    return;
  }
  auto* multicast = reinterpret_cast<Multicast*>(event.cookie);
  ++multicast->events_taken;
  ++multicast->id->events_taken;
}

void AckOwnEvent(Id* id) {
  if (id->base.event == nullptr) return;
  rdma_ack_cm_event(id->base.event);
  id->base.event = nullptr;
}

int SetPath(Id* id, const shm::CmQuery& query) {
  rdma_route& route = id->base.route;
  if (route.path_rec == nullptr) {
    route.path_rec = static_cast<ibv_sa_path_rec*>(malloc(sizeof(ibv_sa_path_rec)));
    if (route.path_rec == nullptr) return ENOMEM;
  }
  constexpr uint8_t kExactly = 2;  // IBTA 15.2.5.16: the selector of a path record
  ibv_sa_path_rec& path = *route.path_rec;
  memset(&path, 0, sizeof(path));
  memcpy(path.dgid.raw, query.dgid, sizeof(query.dgid));
  memcpy(path.sgid.raw, query.sgid, sizeof(query.sgid));
  path.flow_label = htobe32(query.ah.flow_label);
  path.hop_limit = query.ah.hop_limit;
  path.traffic_class = query.ah.traffic_class;
  path.reversible = 1;
  path.numb_path = 1;
  path.pkey = query.pkey;
  path.sl = query.ah.sl;
  path.mtu_selector = kExactly;
  path.mtu = query.mtu;
  path.rate_selector = kExactly;
  path.rate = query.rate;
  path.packet_life_time_selector = kExactly;
  path.packet_life_time = query.packet_life_time;
  route.num_paths = 1;
  return 0;
}

}  // namespace

int NewId(rdma_event_channel* channel, void* context, rdma_port_space port_space,
          ibv_qp_type qp_type, Id** out) {
  auto* id = static_cast<Id*>(calloc(1, sizeof(Id)));
  if (id == nullptr) return ENOMEM;
  pthread_mutex_init(&id->mutex, nullptr);
  pthread_cond_init(&id->acked, nullptr);
  id->base.context = context;
  id->base.ps = port_space;
  id->base.qp_type = qp_type;
  id->base.channel = channel;
  if (channel == nullptr) {
    Channel* own;
    if (int error = NewChannel(&own); error != 0) {
      FreeId(id);
      return error;
    }
    id->base.channel = &own->base;
    id->is_sync = true;
  }
  id->session = ToChannel(id->base.channel)->session;
  Link(id);
  *out = id;
  return 0;
}

void FreeId(Id* id) {
  Unlink(id);
  if (id->device != nullptr) ReleaseDevice(id->device);
  while (id->multicasts != nullptr) {
    Multicast* next = id->multicasts->next;
    free(id->multicasts);
    id->multicasts = next;
  }
  if (id->is_sync) rdma_destroy_event_channel(id->base.channel);
  if (id->resolved_addrinfo != nullptr) rdma_freeaddrinfo(id->resolved_addrinfo);
  pthread_cond_destroy(&id->acked);
  pthread_mutex_destroy(&id->mutex);
  free(id->base.route.path_rec);
  free(id->connect_data);
  free(id->qp_init_attr);
  free(id);
}

int CreateId(rdma_event_channel* channel, void* context, rdma_port_space port_space,
             ibv_qp_type qp_type, Id** out) {
  Id* id;
  if (int error = NewId(channel, context, port_space, qp_type, &id); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kCreateId, 0);
  request.create.cookie = reinterpret_cast<uintptr_t>(id);
  request.create.channel = ToChannel(id->base.channel)->handle;
  request.create.port_space = static_cast<uint16_t>(port_space);
  request.create.qp_type = static_cast<uint8_t>(qp_type);
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) {
    FreeId(id);
    return error;
  }
  id->handle = reply.handle;
  *out = id;
  return 0;
}

int DestroyId(Id* id) {
  shm::CmReply reply;
  const int error = Ask(id, NewRequest(shm::CmOp::kDestroyId, id->handle), &reply);
  // With the daemon the identifier is gone, too, but not the events that it gave out.
  if (error != 0 && id->session->IsAlive()) return error;
  const uint64_t taken = Unlink(id);
  AckOwnEvent(id);
  // In a forked child who had them may not be there any more.
  if (!id->session->IsForkedCopy()) AwaitAcks(id, &id->events_acked, taken);
  FreeId(id);
  return 0;
}

// Under one lock: whoever asks how many were taken, of what the daemon does not know any more, must
// not come between the daemon's answer and the count.
int TakeEvent(client::CmSession* session, shm::CmHandle channel, shm::CmReply* reply) {
  client::ScopedLock lock(&list_mutex);
  const int error = session->Execute(NewRequest(shm::CmOp::kGetEvent, channel), reply);
  if (error == 0) CountTaken(reply->event);
  return error;
}

uint64_t EventsTaken(const Multicast* multicast) {
  client::ScopedLock lock(&list_mutex);
  return multicast->events_taken;
}

void AwaitAcks(Id* id, const uint64_t* acked, uint64_t events) {
  // No guard: a thread may be cancelled here, as with rdma-core, and then must not meet cleanups.
  pthread_mutex_lock(&id->mutex);
  while (*acked < events) pthread_cond_wait(&id->acked, &id->mutex);
  pthread_mutex_unlock(&id->mutex);
}

Id* TakeRemoved(const Channel* channel) {
  client::ScopedLock lock(&list_mutex);
  for (Id* id = list; id != nullptr; id = id->next) {
    // Of a synchronous one the call that waits fails.
    const bool is_due = id->base.channel == &channel->base && id->device != nullptr &&
                        !id->is_removed && !id->is_sync;
    if (!is_due) continue;
    id->is_removed = true;
    ++id->events_taken;
    return id;
  }
  return nullptr;
}

void NoteRemoved(Id* id) {
  client::ScopedLock lock(&list_mutex);
  id->is_removed = true;
}

int MigrateId(Id* id, rdma_event_channel* channel) {
  if (id->is_sync && channel == nullptr) return EINVAL;
  const bool becomes_sync = channel == nullptr;
  if (becomes_sync) {
    Channel* own;
    if (int error = NewChannel(&own); error != 0) return error;
    channel = &own->base;
  }
  shm::CmRequest request = NewRequest(shm::CmOp::kMigrateId, id->handle);
  request.migrate.channel = ToChannel(channel)->handle;
  shm::CmReply reply;
  const int error = ToChannel(channel)->session == id->session ? Ask(id, request, &reply) : EINVAL;
  if (error != 0) {
    if (becomes_sync) rdma_destroy_event_channel(channel);
    return error;
  }
  if (id->is_sync) {
    AckOwnEvent(id);
    rdma_destroy_event_channel(id->base.channel);
  }
  id->is_sync = becomes_sync;
  id->base.channel = channel;
  // Afterwards nobody works on an event of the old channel any more.
  AwaitAcks(id, &id->events_acked, reply.number);
  return 0;
}

int QueryId(Id* id, bool with_path) {
  shm::CmReply reply;
  if (int error = Ask(id, NewRequest(shm::CmOp::kQuery, id->handle), &reply); error != 0) {
    return error;
  }
  const shm::CmQuery& query = reply.query;
  rdma_addr& address = id->base.route.addr;
  if (query.source.family != 0) FromCmAddress(query.source, &address.src_storage);
  if (query.destination.family != 0) FromCmAddress(query.destination, &address.dst_storage);
  memcpy(address.addr.ibaddr.sgid.raw, query.sgid, sizeof(query.sgid));
  memcpy(address.addr.ibaddr.dgid.raw, query.dgid, sizeof(query.dgid));
  address.addr.ibaddr.pkey = query.pkey;
  if (id->device == nullptr && query.node_guid != 0) {
    if (int error = AcquireDevice(id->session, query.node_guid, &id->device); error != 0) {
      return error;
    }
    id->base.verbs = id->device->verbs;
    if (id->base.pd == nullptr) id->base.pd = id->device->pd;
    id->base.port_num = query.port_num;
  }
  return with_path && query.has_route != 0 ? SetPath(id, query) : 0;
}

// Of UDP and IPoIB the QP is unreliable datagram, of others a reliable connection.
// Errors: ENODEV: no instance; EINVAL; ENOMEM; EIO.  Source: rdma_create_id(3).
VERBENA_EXPORT int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                                  rdma_port_space port_space) {
  const bool is_datagram = port_space == RDMA_PS_IPOIB || port_space == RDMA_PS_UDP;
  Id* created;
  const int error =
      CreateId(channel, context, port_space, is_datagram ? IBV_QPT_UD : IBV_QPT_RC, &created);
  if (error != 0) return Fail(error);
  *id = &created->base;
  return 0;
}

// Waits until each event of it that was taken is acknowledged.  Source: rdma_destroy_id(3).
VERBENA_EXPORT int rdma_destroy_id(rdma_cm_id* id) { return Result(DestroyId(ToId(id))); }

// Errors: EINVAL: synchronous to synchronous, or a channel of another daemon.
// Source: rdma_migrate_id(3).
VERBENA_EXPORT int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
  return Result(MigrateId(ToId(id), channel));
}

VERBENA_EXPORT __be16 rdma_get_src_port(rdma_cm_id* id) { return PortOf(&id->route.addr.src_addr); }

VERBENA_EXPORT __be16 rdma_get_dst_port(rdma_cm_id* id) { return PortOf(&id->route.addr.dst_addr); }

}  // namespace verbena::rdmacm

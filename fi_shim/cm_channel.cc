#include "fi_shim/cm_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "core/client/sync.h"

// glibc 2.34 moved it to libc under a new version; the old one is there as before.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@GLIBC_2.2.5");
#endif

namespace verbena::fi {
namespace {

using client::MutexGuard;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the list and `users`
CmChannel* g_channels = nullptr;

int OpenChannel(CmChannel** out) {
  client::CmSession* session;
  if (int error = client::CmSession::ForThisProcess(&session); error != 0) return -error;
  auto* channel = new (std::nothrow) CmChannel;
  if (channel == nullptr) return -FI_ENOMEM;
  shm::CmReply reply;
  int fd = -1;
  int error = session->Execute(NewCmRequest(shm::CmOp::kCreateChannel, 0), &reply, &fd);
  if (error == 0 && fd < 0) {  // the kernel drops a fd that finds no place
    session->Execute(NewCmRequest(shm::CmOp::kDestroyChannel, reply.handle), &reply);
    error = EMFILE;
  }
  if (error != 0) {
    delete channel;
    return -error;
  }
  channel->session = session;
  channel->handle = reply.handle;
  channel->fd = fd;
  *out = channel;
  return 0;
}

void CloseChannel(CmChannel* channel) {
  shm::CmReply reply;
  channel->session->Execute(NewCmRequest(shm::CmOp::kDestroyChannel, channel->handle), &reply);
  close(channel->fd);
  pthread_mutex_destroy(&channel->mutex);
  delete channel;
}

void AskAsSource(void* channel) { AskChannel(static_cast<CmChannel*>(channel)); }

void Link(CmId* id) {
  id->next = id->channel->ids;
  id->place = &id->channel->ids;
  if (id->next != nullptr) id->next->place = &id->next;
  id->channel->ids = id;
}

void Unlink(CmId* id) {
  if (id->place == nullptr) return;
  *id->place = id->next;
  if (id->next != nullptr) id->next->place = id->place;
  id->next = nullptr;
  id->place = nullptr;
}

void TellDeath(CmChannel* channel) {
  if (channel->is_dead) return;
  channel->is_dead = true;
  // Who is told may not go away meanwhile: that takes the mutex.
  for (CmId* id = channel->ids; id != nullptr; id = id->next) {
    if (id->on_death != nullptr) id->on_death(id);
  }
}

bool IsReadable(int fd) {
  char token;
  const ssize_t got = recv(fd, &token, sizeof(token), MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EINTR);
}

}  // namespace

int TakeChannel(Eq* eq, CmChannel** out) {
  MutexGuard guard(g_mutex);
  if (eq != nullptr) {
    for (CmChannel* channel = g_channels; channel != nullptr; channel = channel->next) {
      if (channel->eq != eq || channel->is_dead) continue;
      ++channel->users;
      *out = channel;
      return 0;
    }
  }
  CmChannel* channel;
  int error = OpenChannel(&channel);
  if (error != 0) return error;
  channel->eq = eq;
  channel->users = 1;
  if (eq != nullptr) {
    error = AddSource(eq, channel->fd, AskAsSource, channel);
    if (error != 0) {
      CloseChannel(channel);
      return error;
    }
  }
  channel->next = g_channels;
  g_channels = channel;
  *out = channel;
  return 0;
}

void ShareChannel(CmChannel* channel) {
  MutexGuard guard(g_mutex);
  ++channel->users;
}

void GiveChannel(CmChannel* channel) {
  {
    MutexGuard guard(g_mutex);
    if (--channel->users != 0) return;
    CmChannel** link = &g_channels;
    while (*link != channel) link = &(*link)->next;
    *link = channel->next;
  }
  if (channel->eq != nullptr) RemoveSource(channel->eq, channel->fd);
  CloseChannel(channel);
}

namespace {

// The mutex is held.
void TellEvents(CmChannel* channel) {
  const shm::CmRequest request = NewCmRequest(shm::CmOp::kGetEvent, channel->handle);
  while (!channel->is_dead) {
    shm::CmReply reply;
    const int error = channel->session->Execute(request, &reply);
    if (error == EIO) TellDeath(channel);
    if (error != 0) return;
    auto* id = reinterpret_cast<CmId*>(reply.event.cookie);
    if (id != nullptr) id->on_event(id, reply.event);
  }
}

}  // namespace

void AskChannel(CmChannel* channel) {
  if (!IsReadable(channel->fd)) return;
  MutexGuard guard(channel->mutex);
  TellEvents(channel);
}

bool TryLock(pthread_mutex_t& mutex) { return pthread_mutex_trylock(&mutex) == 0; }

void TryAskChannel(CmChannel* channel) {
  if (!IsReadable(channel->fd) || !TryLock(channel->mutex)) return;
  TellEvents(channel);
  pthread_mutex_unlock(&channel->mutex);
}

int AskCm(CmChannel* channel, const shm::CmRequest& request, shm::CmReply* reply) {
  return -channel->session->Execute(request, reply);
}

int AskCm(CmId* id, shm::CmOp op, uint32_t number) {
  shm::CmRequest request = NewCmRequest(op, id->handle);
  request.number = number;
  shm::CmReply reply;
  return AskCm(id->channel, request, &reply);
}

int OpenCmId(CmId* id, CmChannel* channel, uint16_t port_space) {
  MutexGuard guard(channel->mutex);
  shm::CmRequest request = NewCmRequest(shm::CmOp::kCreateId, 0);
  request.create.cookie = reinterpret_cast<uintptr_t>(id);
  request.create.channel = channel->handle;
  request.create.port_space = port_space;
  request.create.qp_type = kQpTypeRc;
  shm::CmReply reply;
  if (int error = AskCm(channel, request, &reply); error != 0) return error;
  id->channel = channel;
  id->handle = reply.handle;
  Link(id);
  return 0;
}

int MoveCmId(shm::CmHandle handle, CmChannel* channel) {
  shm::CmRequest request = NewCmRequest(shm::CmOp::kMigrateId, handle);
  request.migrate.channel = channel->handle;
  shm::CmReply reply;
  return AskCm(channel, request, &reply);
}

int AdoptCmId(CmId* id, CmChannel* channel, shm::CmHandle handle) {
  MutexGuard guard(channel->mutex);
  if (int error = MoveCmId(handle, channel); error != 0) return error;
  id->channel = channel;
  id->handle = handle;
  Link(id);
  return 0;
}

void CloseCmId(CmId* id) {
  if (id->handle == 0) return;
  MutexGuard guard(id->channel->mutex);
  Unlink(id);
  shm::CmReply reply;
  AskCm(id->channel, NewCmRequest(shm::CmOp::kDestroyId, id->handle), &reply);
  id->handle = 0;
}

int QueryCmId(CmChannel* channel, shm::CmHandle handle, shm::CmQuery* out) {
  shm::CmReply reply;
  if (int error = AskCm(channel, NewCmRequest(shm::CmOp::kQuery, handle), &reply); error != 0) {
    return error;
  }
  *out = reply.query;
  return 0;
}

}  // namespace verbena::fi

// Channels of rdma_cm: where the events of identifiers wait, and how they come to who they are for.
//
// Thread: a channel's mutex is held while its events are told and while identifiers come and go, so
// that nobody is told of what is gone. What is told may post to an EQ; it must not close channels.
#pragma once

#include <pthread.h>

#include <atomic>

#include "core/client/cm_session.h"
#include "core/shm/cm.h"
#include "fi_shim/cm_calls.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// enum rdma_cm_event_type, as far as it matters here.
enum class CmEventType : uint32_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
};

struct CmChannel;

// Somebody of whom events tell; a member of an endpoint.
struct CmId {
  void* owner = nullptr;
  CmChannel* channel = nullptr;
  shm::CmHandle handle = 0;  // 0: none
  void (*on_event)(CmId*, const shm::CmEvent&) = nullptr;
  void (*on_death)(CmId*) = nullptr;  // the daemon is gone; at most once
  CmId* next = nullptr;               // of the channel's
  CmId** place = nullptr;
};

struct CmChannel {
  client::CmSession* session = nullptr;
  shm::CmHandle handle = 0;
  int fd = -1;  // readable while there are events; hangs up with the daemon
  Eq* eq = nullptr;
  uint32_t users = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  CmId* ids = nullptr;
  bool is_dead = false;
  CmChannel* next = nullptr;  // of all that EQs have
};

// The channel of an EQ, made for the first that asks; reading the EQ asks it for events. Given back
// as often as taken, and not from within an event. With eq == nullptr: one of the caller's own,
// which calls AskChannel itself. Errors: -FI_ENOMEM; -FI_EMFILE; -FI_ENODEV: no daemon; -FI_EIO.
int TakeChannel(Eq* eq, CmChannel** out);
void GiveChannel(CmChannel* channel);
// One that is taken already is to be given back once more.
void ShareChannel(CmChannel* channel);
// Whether the caller holds the mutex now; false: somebody does.
bool TryLock(pthread_mutex_t& mutex);
// Tells all events that wait.
void AskChannel(CmChannel* channel);
// The same, unless somebody is at it already: perhaps this thread.
void TryAskChannel(CmChannel* channel);

// Requests. 0 or a negative FI errno.
int AskCm(CmChannel* channel, const shm::CmRequest& request, shm::CmReply* reply);
int AskCm(CmId* id, shm::CmOp op, uint32_t number = 0);
// An identifier of RC; its callbacks are set already. -FI_ENOMEM and others.
int OpenCmId(CmId* id, CmChannel* channel, uint16_t port_space);
// To another channel, where its events come from then on.
int MoveCmId(shm::CmHandle handle, CmChannel* channel);
// One that came with a request, from its listener's channel to this one.
int AdoptCmId(CmId* id, CmChannel* channel, shm::CmHandle handle);
// Its events that wait are dropped, its connection ends. Afterwards nobody is in its callbacks.
void CloseCmId(CmId* id);
int QueryCmId(CmChannel* channel, shm::CmHandle handle, shm::CmQuery* out);

// For an address, and for a route: as librdmacm's examples wait for them.
inline constexpr uint32_t kResolveMs = 2'000;
inline constexpr uint8_t kQpTypeRc = 2;            // IBV_QPT_RC
inline constexpr uint16_t kPortSpaceTcp = 0x0106;  // RDMA_PS_TCP
inline constexpr uint16_t kPortSpaceUdp = 0x0111;  // RDMA_PS_UDP

}  // namespace verbena::fi

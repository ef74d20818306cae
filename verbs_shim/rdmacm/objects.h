// What stands behind the public structures of librdmacm, and what the files of this library share.
//
// Errors inside are positive errnos; a public function returns -1 and leaves its error in errno, as
// the man pages say. The daemon holds all state of connection management (core/shm/cm.h): what is
// here are the pointers that programs see, and the QP's way through its states.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#include "core/client/cm_session.h"
#include "core/client/scoped_lock.h"
#include "core/shm/cm.h"

#define VERBENA_EXPORT extern "C" __attribute__((visibility("default")))

namespace verbena::rdmacm {

// Since v60; the headers of Debian 12 don't have them.
inline constexpr auto kEventAddrinfoResolved = static_cast<rdma_cm_event_type>(16);
inline constexpr auto kEventAddrinfoError = static_cast<rdma_cm_event_type>(17);
inline constexpr auto kEventUser = static_cast<rdma_cm_event_type>(shm::kCmEventUser);
inline constexpr auto kEventInternal = static_cast<rdma_cm_event_type>(shm::kCmEventInternal);
inline constexpr int kRaiSa = 0x10;
inline constexpr int kRaiDns = 0x20;

inline constexpr uint8_t kDefaultRetryCount = 7;

// A NIC as this process has opened it: one ibv_context for all identifiers. Of a daemon that is
// gone it lives on, beside the one of the next daemon.
struct Device {
  Device* next;
  client::CmSession* session;
  uint64_t guid;  // big-endian
  ibv_context* verbs;
  ibv_pd* pd;      // while somebody uses the device
  ibv_xrcd* xrcd;  // the same
  uint32_t users;  // identifiers, and lists of rdma_get_devices
  uint8_t max_initiator_depth;
  uint8_t max_responder_resources;
};

struct Channel {
  rdma_event_channel base;  // first: programs hold a pointer to it
  client::CmSession* session;
  shm::CmHandle handle;
};

struct Id;

struct Multicast {
  Multicast* next;
  Id* id;
  void* context;
  uint64_t events_taken;  // guarded as its identifier's
  uint64_t events_acked;
  shm::CmHandle handle;
  uint16_t join_flags;
  uint16_t mlid;
  ibv_gid mgid;
  sockaddr_storage address;
};

struct Id {
  rdma_cm_id base;  // first: programs hold a pointer to it
  client::CmSession* session;
  shm::CmHandle handle;
  Device* device;
  bool is_sync;            // the channel is its own, and calls wait for their event
  bool has_connect_error;  // of which the program has been told
  uint8_t initiator_depth;
  uint8_t responder_resources;
  ibv_ece local_ece;
  ibv_ece remote_ece;
  ibv_qp_init_attr* qp_init_attr;  // of rdma_create_ep, for each request
  void* connect_data;              // of rdma_addrinfo: goes before the private data of connect
  size_t connect_data_bytes;

  // Of the list of all identifiers, whose lock guards them.
  Id* next;
  Id** place;             // what points here; nullptr: it is not in the list
  bool is_removed;        // has been told of its NIC's removal
  uint64_t events_taken;  // which the program has, or is about to be given

  pthread_mutex_t mutex;  // guards the rest
  pthread_cond_t acked;
  uint64_t events_acked;
  Multicast* multicasts;
  bool is_resolving_addrinfo;
  rdma_addrinfo* resolved_addrinfo;
};

struct Event {
  rdma_cm_event base;  // first: programs hold a pointer to it
  uint8_t private_data[shm::kCmPrivateDataMax];
  Id* id;  // whose event it is: of a connect request the listener
  Multicast* multicast;
};

inline Channel* ToChannel(rdma_event_channel* channel) {
  return reinterpret_cast<Channel*>(channel);
}
inline Id* ToId(rdma_cm_id* id) { return reinterpret_cast<Id*>(id); }
inline Event* ToEvent(rdma_cm_event* event) { return reinterpret_cast<Event*>(event); }

// The edge: 0, or -1 and errno.
inline int Fail(int error) {
  errno = error;
  return -1;
}
inline int Result(int error) { return error == 0 ? 0 : Fail(error); }

// Whose cookie is then the membership's.
inline bool IsOfMulticast(const shm::CmEvent& event) {
  return event.event == RDMA_CM_EVENT_MULTICAST_JOIN ||
         event.event == RDMA_CM_EVENT_MULTICAST_ERROR;
}
inline bool IsUd(const Id* id) { return id->base.qp_type == IBV_QPT_UD; }

// --- requests -----------------------------------------------------------------------------------

shm::CmRequest NewRequest(shm::CmOp op, shm::CmHandle handle);
// Asks for what needs no more than a number. 0 or errno.
int Ask(Id* id, shm::CmOp op, uint32_t number = 0);
int Ask(Id* id, const shm::CmRequest& request, shm::CmReply* reply);

// --- addresses ----------------------------------------------------------------------------------

// Bytes of an address of AF_INET or AF_INET6; 0: none, or another family (AF_IB is one).
socklen_t AddressBytes(const sockaddr* address);
// EINVAL: another family.
int ToCmAddress(const sockaddr* address, shm::CmAddress* out);
void FromCmAddress(const shm::CmAddress& address, sockaddr_storage* out);
void CopyAddressHandle(const shm::CmAddressHandle& from, ibv_ah_attr* to);
uint16_t PortOf(const sockaddr* address);  // big-endian

// --- devices ------------------------------------------------------------------------------------

// Names the NIC for an identifier, with its verbs and its PD. ENODEV, ENOMEM, what verbs give.
int AcquireDevice(client::CmSession* session, uint64_t guid, Device** out);
void ReleaseDevice(Device* device);
// The one XRC domain of the device. nullptr and errno.
ibv_xrcd* XrcdOf(Device* device);

// --- identifiers --------------------------------------------------------------------------------

// `channel` nullptr: one of its own. No handle yet. Errors: ENOMEM; those of a channel.
int NewId(rdma_event_channel* channel, void* context, rdma_port_space port_space,
          ibv_qp_type qp_type, Id** out);
int CreateId(rdma_event_channel* channel, void* context, rdma_port_space port_space,
             ibv_qp_type qp_type, Id** out);
void FreeId(Id* id);
int DestroyId(Id* id);
// Asks for the channel's next event, and counts it. 0 or errno.
int TakeEvent(client::CmSession* session, shm::CmHandle channel, shm::CmReply* reply);
uint64_t EventsTaken(const Multicast* multicast);
// Until the program has acknowledged so many events; `acked` counts them, the identifier's own or
// those of a membership of it. rdma_ack_cm_event wakes it. A cancellation point.
void AwaitAcks(Id* id, const uint64_t* acked, uint64_t events);
// With the daemon all NICs have gone. An identifier of the channel that has had one and has not
// been told of it yet, which it now is; nullptr: there is none.
Id* TakeRemoved(const Channel* channel);
// Has been told so by the daemon.
void NoteRemoved(Id* id);
// nullptr: to a channel of its own.
int MigrateId(Id* id, rdma_event_channel* channel);
// Puts addresses, NIC and GIDs into the public structure, and the path where `with_path`.
int QueryId(Id* id, bool with_path);
// Of a synchronous identifier: waits for the event of what was begun. 0, or -1 and errno.
int AwaitCompletion(Id* id);

int NewChannel(Channel** out);

// --- queue pairs --------------------------------------------------------------------------------

// The QP's way, where the identifier has one: 0 or errno.
int ModifyToRtr(Id* id, uint8_t responder_resources);
int ModifyToRts(Id* id, uint8_t initiator_depth);
int ModifyToErr(Id* id);
// What a request or response of an active side does to the QP, then the RTU.
int FinishConnecting(Id* id);
int FinishConnectingWithEce(Id* id, uint32_t vendor_id, uint32_t options);
int InitQpAttr(Id* id, ibv_qp_attr* attr, int* mask);
// The CQs that rdma_create_qp makes where the program names none. 0, or -1 and errno.
int CreateCqs(rdma_cm_id* id, uint32_t send_entries, uint32_t receive_entries);
void DestroyCqs(rdma_cm_id* id);

// --- address information ------------------------------------------------------------------------

// As rdma_getaddrinfo; 0, -1 and errno, or an EAI_ code.
int GetAddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                rdma_addrinfo** out);

}  // namespace verbena::rdmacm

// MSG endpoints: RC QPs that rdma_cm connects, and the passive endpoints that listen for them.
#pragma once

#include <atomic>
#include <cstdint>

#include "fi_shim/cm_channel.h"
#include "fi_shim/cm_data.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/list.h"

namespace verbena::fi {

struct ConnectionRequest;

// What a listener's requests that come to one NIC are told with.
struct InfoOfNic {
  uint32_t nic;  // its index
  fi_info* info;
};

struct PassiveEndpoint {
  fid_pep fid;
  Fabric* fabric = nullptr;
  fi_info* info = nullptr;
  Eq* eq = nullptr;
  CmChannel* channel = nullptr;
  CmId id;
  int backlog = 0;
  bool is_listening = false;
  ConnectionRequest* requests = nullptr;  // one mutex guards all lists of requests
  List<InfoOfNic> infos;                  // the mutex of its channel guards them
};

// What an active endpoint opened by its handle has from then on: the address that it has reserved.
// It is free until the endpoint connects. -FI_ENOMEM.
int AcquireAddress(PassiveEndpoint* pep, fi_info* info);

// The handle of the fi_info that FI_CONNREQ brings: until it is accepted or rejected, and the
// endpoints that were made of it have let it go.
struct ConnectionRequest {
  struct fid fid;
  PassiveEndpoint* listener = nullptr;  // nullptr: closed, or this is answered
  CmChannel* channel = nullptr;         // the listener's, or its own when that is closed
  shm::CmHandle id = 0;
  uint32_t nic = 0;  // that it came to
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint8_t auth_key[32] = {};
  size_t auth_key_bytes = 0;
  ConnectionRequest* next = nullptr;
  // Under the mutex of all requests.
  bool is_waiting = true;     // for an answer
  bool owns_channel = false;  // a share of it
  // What holds it.
  uint32_t endpoints = 0;    // made of it
  bool is_in_eq = true;      // its event has not been read
  bool is_answered = false;  // or what was made of it is closed: the program needs it no more
};
// From its listener's list, for who accepts it. False: it is none that waits.
bool TakeRequest(ConnectionRequest* request);
void Reject(CmChannel* channel, shm::CmHandle id, const void* data, size_t bytes);
// By an endpoint made of it.
void HoldRequest(ConnectionRequest* request);
// The same, when it needs the request no more; which is refused if nobody has answered it.
void DropRequest(ConnectionRequest* request);
// By an EQ whose FI_CONNREQ of this handle has been read, or (`is_read` false) goes unread.
void ReleaseRequest(fid_t handle, bool is_read);

enum class ConnectionState : uint8_t { kNone, kConnecting, kAccepting, kConnected, kEnded };

struct MsgEndpoint : Endpoint {
  HwQp qp;
  CmChannel* channel = nullptr;
  CmId id;
  ConnectionRequest* request = nullptr;
  shm::CmConnParam connect_param = {};  // of the request, which goes out when the way is known
  bool awaits_address = false;          // the channel's mutex guards it
  std::atomic<ConnectionState> state{ConnectionState::kNone};
  uint8_t max_rd_atomic = 0;
  // As it was connected, for when it is disabled (FI_RM_DISABLED) and enabled anew.
  shm::QpAttr rtr = {}, rts = {};
  uint32_t rtr_mask = 0, rts_mask = 0;
  bool is_disabled = false;
  // Of its CQs, which may be two threads', since it last looked for events of its connection.
  std::atomic<uint32_t> polls{0};
  // The connection has ended: for who reads the CQ of its receives (EndConnection).
  std::atomic<bool> must_flush_receives{false};
  std::atomic<bool> is_closing{false};
};

extern fi_ops_cm msg_cm_ops;  // msg_connect.cc
// Takes a QP that failed back to where its peer's still is. 0 or a negative FI errno.
int Resume(MsgEndpoint* ep);

// --- msg_end.cc
int ShutDown(fid_ep* ep, uint64_t flags);  // fi_shutdown(3)
// Until the peer's NIC has what was posted, or for a while. It may end the connection meanwhile.
void AwaitSends(Endpoint* ep);
// Ends it and tells the peer, but none of who waits here. False: it was not connected any more.
bool Leave(MsgEndpoint* ep);
void EndConnection(MsgEndpoint* ep, bool is_told);
// The peer has asked for it. `peer_psn`: as shm::CmEvent's.
void EndByPeer(MsgEndpoint* ep, uint32_t peer_psn);
// Of one whose QP has failed, as a completion says. The lock of the CQ may be held.
void EndFromCompletion(MsgEndpoint* ep);
// Tells what receives have of a connection that has ended.
void FlushEnded(MsgEndpoint* ep);
// Of a QP in error: until what was posted has completed, or for a while. The NIC flushes a part at
// a time, and not what it still reads.
void AwaitFlush(MsgEndpoint* ep);
// The NIC has nothing of the QP any more, so that no completion comes; those that came are told,
// and what has none has failed. 0 or a negative FI errno.
int ResetQp(MsgEndpoint* ep);

// As fi_getname and fi_getpeer give addresses. -FI_ETOOSMALL: cut off; *bytes says what it takes.
int CopyName(const void* address, size_t address_bytes, void* out, size_t* bytes);
int CopyName(const shm::CmAddress& address, void* out, size_t* bytes);

}  // namespace verbena::fi

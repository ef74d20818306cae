// RDM endpoints: a place, where the NIC accepts what peers send, and lanes, by which the endpoint
// sends (docs/adr/0018).
//
//   rdm.cc         the endpoint as libfabric sees it: opened, enabled, closed; posting
//   place.cc       its receiving half, and who the sources of messages are
//   lanes.cc       a lane's life: made, connected, lost, made anew
//   lane_table.h   which lane leads to which peer
//
// Thread: the endpoint's lock guards lanes and what they refer to; `cm_mutex` who takes events of
// connection management, one at a time. cm_mutex before the lock. No completion is told under
// either.
#pragma once

#include <pthread.h>

#include <cstdint>

#include "core/client/cm_session.h"
#include "core/shm/rdm.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/lane_table.h"

namespace verbena::fi {

struct RdmEndpoint;

// Why what was to go by a lane can't. `error` 0: no reason.
struct LaneFailure {
  int error = 0;  // FI errno
  int provider = 0;
  const char* text = nullptr;
};

// A way to one peer. What is posted before it is connected waits in its send queue.
//
// Operations of a lane complete in the order of its send queue, each with a CQE; so the entries
// [reaped, producer index) are those that are outstanding.
struct Lane {
  enum class State : uint8_t {
    kIdle,        // no QP, no identifier
    kResolving,   // the address, then the route
    kConnecting,  // asked for: the NIC sends what was posted as soon as the peer has accepted
    kReady,
    kDraining,  // its QP is in error: outstanding entries are being flushed
  };

  RdmEndpoint* endpoint = nullptr;
  SockAddress peer = {};
  State state = State::kIdle;
  HwQp qp;
  uint32_t reaped = 0;
  // While it drains: entries from here on, up to `reaped`, were flushed and are to be posted again.
  // Those of which the program was told are before them: the NIC sends in the order of the queue.
  uint32_t kept_from = 0;
  bool keeps = false;         // they are kept: the NIC has not carried them out
  bool is_sent_told = false;  // but what was sent has failed: the peer may have carried it out
  LaneFailure failure;        // else why they fail
  shm::CmHandle id = 0;
  uint32_t number = 0;  // of its connections: cookie of events
  bool has_route = false;
  Linger linger;  // of who closes the endpoint

  uint32_t names = 0;  // LaneTable
  Lane* next = nullptr;
  Lane* next_of_bucket = nullptr;

  bool MayBeRung() const { return state != State::kIdle && state != State::kDraining; }
  uint32_t outstanding() const { return qp.sq.producer_index() - reaped; }
};

// Whose number it was that a message came with.
struct Source {
  uint32_t number = 0;  // 0: an empty slot
  SockAddress address = {};
  fi_addr_t fi_addr = FI_ADDR_NOTAVAIL;
  uint32_t insertions = 0, removals = 0;  // of the AV, when it was looked up
};

struct RdmEndpoint : Endpoint {
  client::CmSession* cm = nullptr;
  shm::CmHandle cm_channel = 0;
  int cm_fd = -1;  // readable while events wait
  SockAddress address = {};
  bool has_address = false;  // its port is reserved

  // The place.
  shm::CmHandle place_id = 0;
  shm::Handle place = 0;
  uint8_t place_token[shm::kPlaceTokenBytes] = {};
  bool is_made = false;  // queues and place exist

  LaneTable lanes;
  Lane* held = nullptr;  // what was posted to it last has FI_MORE: no doorbell was rung
  uint32_t next_number = 1;
  uint32_t seen_removals = 0;                // of the AV
  std::atomic<uint32_t> lanes_unsettled{0};  // that wait for an event, or drain
  pthread_mutex_t cm_mutex = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<uint32_t> idle_looks{0};

  // By a hash of the number; guarded by the lock of `sources_lock`.
  Lock sources_lock;
  Source* sources = nullptr;
  size_t source_slots = 0, source_count = 0;

  bool is_disabled = false;  // by an error; fi_enable lets it go on
  std::atomic<bool> must_cancel_receives{false};
};

inline RdmEndpoint* ToRdm(Endpoint* ep) { return static_cast<RdmEndpoint*>(ep); }

// place.cc. Reserves the address and port that `address` asks for, or any.
// Errors: -FI_EADDRINUSE; -FI_EADDRNOTAVAIL; -FI_ENOMEM; -FI_EMFILE; -FI_EIO; -FI_ENODEV.
int BindAddress(RdmEndpoint* ep);
// The same, of one that may have another address already; which it keeps where this fails.
int Rebind(RdmEndpoint* ep);
int MakePlace(RdmEndpoint* ep);
void UnmakePlace(RdmEndpoint* ep);
// What lanes of the endpoint, and those to it, have to bring.
struct LaneKey {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
};
LaneKey LaneKeyOf(const RdmEndpoint* ep);
// `address` gets the source's, if the AV has no fi_addr_t for it (FI_ADDR_NOTAVAIL); its family is
// 0 if nobody knows it.
fi_addr_t SourceOf(RdmEndpoint* ep, uint32_t number, SockAddress* address);
// For ReceiveContext.source_of.
int NumberOfSource(ReceiveContext* receives, fi_addr_t source, uint32_t* number);

inline constexpr uint8_t kReadsMax = 16;  // outstanding of one lane
// tclass.cc. The TOS byte of the packets that its traffic class asks for; 0: the network's default.
uint8_t TypeOfService(const Endpoint* ep);

// lanes.cc.
// The lane to `dest`; `connecting` gets its number if it begins to be connected. The lock is held.
// Errors: -FI_EINVAL: no such address; -FI_ENOMEM; -FI_EIO.
int LaneTo(RdmEndpoint* ep, fi_addr_t dest, Lane** out, uint32_t* connecting);
int BeginToConnect(Lane* lane);
// Takes events of connection management, and does what they ask for. No lock is held.
void PumpLanes(RdmEndpoint* ep);
// The same, waiting at most so long until the peer of the lane of that number has been asked.
void AwaitResolved(RdmEndpoint* ep, uint32_t number, int timeout_ms);
// A send completed, well or not. No lock is held.
void OnLaneCompletion(RdmEndpoint* ep, Operation* operation, const shm::Cqe& cqe);
// All lanes end; what is outstanding is forgotten.
void CloseLanes(RdmEndpoint* ep);
// What is outstanding fails: the endpoint takes no requests any more.
void DisableLanes(RdmEndpoint* ep);
// The daemon is gone, and no completion will come.
void AbandonLanes(RdmEndpoint* ep);

}  // namespace verbena::fi

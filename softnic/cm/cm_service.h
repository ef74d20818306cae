// rdma_cm's half in the daemon: identifiers, port spaces, addresses and the NICs they belong to,
// and what the connection managers of the NICs (transport/cm) tell about each identifier; what the
// kernel's rdma_cm and rdma_ucm are to librdmacm.
//
// Inputs are requests of clients (core/shm/cm.h), MADs that came to QP1 of a NIC, the NICs as they
// are now, and the time. Outputs are replies, MADs to send, and which channels have events. No I/O,
// no clock.
//
// After any input: drain PollMad, PollChannel, PollLaneOrder and PollLookUp, and call OnTimeout
// when PollTimeout says.
//
// Thread: whoever drives it, one at a time.
// Trust: a session reaches its own handles alone; limits hold per session and in all. MADs are
// anybody's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/instant.h"
#include "core/base/types.h"
#include "core/shm/cm.h"
#include "softnic/device/lanes.h"
#include "transport/cm/engine.h"

namespace verbena::softnic {

struct CmServiceConfig {
  // Where random numbers come from: starting PSNs, ports, and where communication IDs begin.
  // Another one at each start of the daemon, or peers take new connections for old ones.
  uint64_t seed = 1;
  // Services of one daemon number their sessions apart: from the first one, by steps.
  uint32_t first_session = 1, session_step = 1;
  uint32_t channels_per_session_max = 4'096;
  uint32_t ids_per_session_max = 65'536;
  uint32_t memberships_per_session_max = 4'096;
  // Connect requests that wait to be taken, per listener, whatever it asks for.
  uint32_t backlog_max = 1'024;
  // Events that wait to be taken. Beyond, requests that would lead to one fail with ENOMEM and
  // connect requests of peers are dropped; they come again.
  uint32_t events_per_session_max = 65'536;
  uint32_t communications_per_nic_max = 1 << 16;
  // What a peer's CM may take to answer, and how often it is asked again.
  // Spec: IBTA 12.7.4, 12.7.27. 4.3 s and 15 are Linux's CMA_CM_RESPONSE_TIMEOUT, _MAX_CM_RETRIES.
  uint8_t response_timeout_exp = 20;
  uint8_t retry_count_max = 15;
  // Destinations on a network are looked for (PollLookUp) before they count as resolved.
  bool looks_up_destinations = false;
};

// Of a network's interface; all zero: none, or not known.
using CmHardwareAddress = std::array<uint8_t, 6>;

struct CmNic {
  uint32_t index = 0;
  std::string name;
  uint64_t node_guid = 0;                   // big-endian, as NicInfo's
  std::vector<Gid> gids;                    // by index; zero: empty
  std::vector<CmHardwareAddress> hardware;  // of the interface that has each GID's address
  uint32_t active_mtu_bytes = 4096;
  uint8_t rate = 3;  // enum ibv_rate
  bool is_up = true;
  bool is_local_only = true;  // reaches NICs of its instance only
  uint32_t scope_id = 0;      // of link-local addresses on its network; 0: any will do
};

// One identifier for `verbena show cm`; fields in display order.
struct CmShowRow {
  std::vector<std::pair<std::string, std::string>> fields;
};

struct CmCounters {
  uint64_t sessions = 0, channels = 0, ids = 0, communications = 0;
  uint64_t ids_connected = 0;  // or at it: those that a communication belongs to
  uint64_t events_waiting = 0;
  uint64_t requests = 0, requests_refused = 0;
  uint64_t backlog_drops = 0;  // connect requests that found a listener's backlog full
  uint64_t mads_sent = 0, mads_received = 0, mads_refused = 0, mad_retries = 0, mad_duplicates = 0;

  CmCounters& operator+=(const CmCounters& other);
};

class CmCore;

class CmService {
 public:
  explicit CmService(const CmServiceConfig& config);
  ~CmService();
  CmService(const CmService&) = delete;
  CmService& operator=(const CmService&) = delete;

  // The NICs as they are now; before anything else, and whenever something has changed. One that is
  // no more takes its connections along: their identifiers are told DEVICE_REMOVAL. Where an
  // address is now that of an interface with another hardware address, its identifiers are told
  // ADDR_CHANGE.
  void SetNics(Instant now, std::vector<CmNic> nics);
  // Addresses of this host that need not be any NIC's. Peers on this machine find them at the first
  // NIC that is local only; ports do not matter.
  void SetHostAddresses(std::vector<shm::CmAddress> addresses);

  // Never 0.
  uint32_t OpenSession();
  // All that it has goes, and peers are told what the state of each connection asks for. Its
  // channels are not told of by PollChannel any more.
  void CloseSession(Instant now, uint32_t session);
  // The daemon is about to end, and has closed all sessions: peers that have not heard of the end
  // of their connections are told more often from now on.
  void PrepareEnd(Instant now);
  // Whether a peer on another host has yet to say that it knows of a connection's end.
  bool AwaitsPeers() const;
  // Answers at once; all of `reply` is written. Errors as core/shm/cm.h lists them, besides
  // ENOENT: no such handle in this session; EINVAL: the request makes no sense, or not in the state
  // of its identifier; ENOMEM: a limit. The fd of a channel is the caller's business.
  void OnRequest(Instant now, uint32_t session, const shm::CmRequest& request, shm::CmReply* reply);

  // `local` is the GID of NIC `nic` that the MAD was sent to, `remote` whose it is.
  void OnMad(Instant now, uint32_t nic, const Gid& local, const Gid& remote, const std::byte* bytes,
             size_t length);
  // Spurious calls are no-ops.
  void OnTimeout(Instant now);

  struct OutMad {
    uint32_t nic = 0;
    transport::cm::Route route{};
    transport::cm::Mad mad{};
  };
  // From QP1 of the NIC at route.local to QP1 at route.remote.
  bool PollMad(OutMad* out);
  // What the device has to do for lanes: make one for a peer's request, and tell OnLaneMade;
  // connect a QP to one that a peer has made, and tell OnSenderConnected; or drop one.
  struct LaneOrder {
    enum class Kind : uint8_t { kMake, kConnectSender, kDrop };
    Kind kind = Kind::kMake;
    uint32_t nic = 0, comm = 0;  // to be told with the answer
    LaneId lane = 0;             // to drop
    LaneRequest request{};
    LaneSender sender{};
  };
  bool PollLaneOrder(LaneOrder* out);
  // `error`: as Device::ConnectSender's.
  void OnSenderConnected(Instant now, uint32_t nic, uint32_t comm, int error);
  void OnLaneMade(Instant now, uint32_t nic, uint32_t comm, const LaneAnswer& answer);
  // The device has ended it by itself.
  void OnLaneEnded(Instant now, LaneId lane);
  // Whether the host's network leads from `local`, an address of a NIC, to `remote`: to be looked
  // up, for so long. One that never comes back with an answer keeps its identifier waiting.
  struct LookUp {
    uint32_t session = 0;
    shm::CmHandle id = 0;
    uint32_t number = 0;
    Gid local{}, remote{};
    uint32_t scope_id = 0;  // the interface, of link-local addresses
    uint32_t timeout_ms = 0;
  };
  bool PollLookUp(LookUp* out);
  // `error`: 0, or the errno of RDMA_CM_EVENT_ADDR_ERROR. Of an identifier that is no more, or asks
  // for something else by now: a no-op.
  void OnLookedUp(const LookUp& what, int error);
  // There is no way to begin with, so that the request fails: nothing is told.
  void WithdrawLookUp(const LookUp& what);
  struct ChannelState {
    uint32_t session = 0;
    shm::CmHandle channel = 0;
    bool is_readable = false;  // it has events
  };
  // A channel whose queue has become empty or no longer is, since it was told of last. A new one is
  // empty; one that is destroyed is not told of.
  bool PollChannel(ChannelState* out);
  Instant PollTimeout() const;

  // Identifiers of all sessions, in the order of sessions and handles.
  struct SessionRow {
    uint32_t session = 0;
    CmShowRow row;
  };
  std::vector<SessionRow> Show() const;
  CmCounters Counters() const;

 private:
  std::unique_ptr<CmCore> core_;
};

}  // namespace verbena::softnic

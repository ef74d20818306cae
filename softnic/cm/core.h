// The service's inside: sessions and what they have, and one connection manager per NIC.
//
// An identifier's states are those of the kernel's rdma_cm; what its connection is doing is the
// engine's to know (transport/cm). What each request does is in a file of its own concern.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/instant.h"
#include "core/shm/cm.h"
#include "softnic/cm/addresses.h"
#include "softnic/cm/cm_service.h"
#include "softnic/cm/ip_header.h"
#include "softnic/cm/ports.h"
#include "transport/cm/engine.h"

namespace verbena::softnic {

// Values of rdma/rdma_cma.h and rdma/ib_user_verbs.h that requests and events carry.
enum class CmEventType : uint32_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kAddrChange = 14,
  kTimewaitExit = 15,
};
inline constexpr uint16_t kPortSpaceIpoib = 0x0002;
inline constexpr uint16_t kPortSpaceTcp = 0x0106;
inline constexpr uint16_t kPortSpaceUdp = 0x0111;
inline constexpr uint16_t kPortSpaceIb = 0x013f;
inline constexpr uint8_t kQpTypeRc = 2, kQpTypeUc = 3, kQpTypeUd = 4, kQpTypeXrcSend = 9,
                         kQpTypeXrcRecv = 10;
inline constexpr uint32_t kUdpQkey = 0x0123'4567;  // RDMA_UDP_QKEY
inline constexpr uint16_t kDefaultPkey = 0xffff;
// What our NIC may take to acknowledge, as rxe says of itself: 134 ms.
inline constexpr uint8_t kAckDelayExp = 15;

// Spec: sizes of private data, IBTA 12.6; RDMA IP CM takes its header from a request's.
inline constexpr uint8_t kReqDataMax = 92 - kIpHeaderBytes, kRepDataMax = 196, kRejDataMax = 148,
                         kSidrReqDataMax = 216 - kIpHeaderBytes, kSidrRepDataMax = 136;

enum class CmState : uint8_t {
  kIdle,
  kAddrBound,
  kAddrQuery,  // where its destination is, is being looked up
  kAddrResolved,
  kRouteResolved,
  kConnect,  // from the request on, whatever became of it, to the end of the connection
  kDisconnect,
  kListen,
  kDeviceRemoval,
};
const char* NameOf(CmState state);

// What a connection's QPs are to be set to, as REQ and REP have settled it.
struct CmConnection {
  Qpn local_qpn{}, remote_qpn{};
  Psn rq_psn{}, sq_psn{};
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint8_t retry_count = 0, rnr_retry_count = 0;
  uint8_t ack_timeout_exp = 0;
  uint8_t path_mtu = 0;  // enum ibv_mtu
};

// The local ACK timeout of a path: there and back, and what the other NIC takes.
// Spec: IBTA 12.7.34
uint8_t AckTimeoutOf(uint8_t ack_delay_exp, uint8_t life_time_exp);

struct CmPath {
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0, hop_limit = 0, sl = 0;
  uint8_t mtu = 0;  // enum ibv_mtu
  uint8_t life_time_exp = 0;
};

using CommKey = std::pair<uint32_t, uint32_t>;  // NIC, communication

// What an identifier accepts lanes for.
struct CmServedPlace {
  PlaceToken token{};
  std::vector<uint8_t> auth_key{};
  std::set<CommKey> lanes{};
};

// What an identifier connects to a lane.
struct CmSender {
  PlaceToken token{};
  uint8_t rnr_retry = 0;
};

// A lane, from its request on.
struct CmLane {
  CmIdRef place{};
  LaneId lane = 0;  // 0: the device is at it
  Psn rq_psn{};
  uint8_t reads_max = 0;
};

struct CmIdentifier {
  CmIdRef self{};
  shm::CmHandle channel = 0;
  uint64_t cookie = 0;
  bool is_named =
      true;  // a connect request's has no cookie, and so no events, until it is accepted
  uint16_t port_space = 0;
  uint8_t qp_type = 0;
  CmState state = CmState::kIdle;
  shm::CmAddress source{}, destination{};
  // What it asked for: resolving again begins there.
  shm::CmAddress bound{};
  bool has_port = false, is_bound_to_nic = false;
  bool may_share_port = false;
  std::optional<bool> is_family_only{};
  std::optional<uint8_t> tos{}, ack_timeout_exp{};
  // Once it is known which NIC it is of.
  std::optional<CmPlace> place{};
  CmHardwareAddress hardware{};  // of its place, as the program was told last
  Gid remote_gid{};
  shm::CmAddress looked_up{};  // kAddrQuery: the destination it is about to have
  uint32_t look_up = 0;
  bool has_route = false;
  CmPath path{};
  // Once there was a request; `comm` is 0 when the engine has forgotten it.
  bool has_comm = false;
  transport::cm::CommId comm{};
  bool has_asked_to_disconnect = false;
  CmConnection connection{};
  QKey qkey{};
  uint32_t backlog_left = 0;
  shm::CmHandle request_of = 0;  // the listener among whose events the request for it still is
  uint32_t events_taken = 0, events_waiting = 0;
  std::set<shm::CmHandle> memberships{};
  std::optional<CmServedPlace> served{};
  std::optional<CmSender> sender{};
};

struct CmMembership {
  shm::CmHandle handle = 0, id = 0;
  uint64_t cookie = 0;
  shm::CmAddress address{};
  uint32_t events_taken = 0, events_waiting = 0;
};

struct CmQueuedEvent {
  shm::CmHandle id = 0;          // whose it is: of a connect request the listener's
  shm::CmHandle membership = 0;  // or none
  shm::CmHandle connection = 0;  // the identifier that a connect request brings
  shm::CmEvent event{};
};

struct CmChannel {
  std::deque<CmQueuedEvent> events{};
  bool is_told_readable = false, is_in_changes = false;
};

struct CmSession {
  uint32_t number = 0;
  shm::CmHandle next_handle = 1;  // of all kinds
  std::map<shm::CmHandle, CmChannel> channels{};
  std::map<shm::CmHandle, CmIdentifier> ids{};
  std::map<shm::CmHandle, CmMembership> memberships{};
  uint32_t events_waiting = 0;
};

class CmCore {
 public:
  explicit CmCore(const CmServiceConfig& config);

  void SetNics(Instant now, std::vector<CmNic> nics);
  void SetHostAddresses(std::vector<shm::CmAddress> addresses) {
    addresses_.SetHostAddresses(std::move(addresses));
  }
  uint32_t OpenSession();
  void CloseSession(Instant now, uint32_t session);
  void OnRequest(Instant now, uint32_t session, const shm::CmRequest& request, shm::CmReply* reply);
  void OnMad(Instant now, uint32_t nic, const transport::cm::Route& route, const std::byte* bytes,
             size_t length);
  void OnTimeout(Instant now);
  void OnLaneMade(Instant now, uint32_t nic, uint32_t comm, const LaneAnswer& answer);
  void OnLaneEnded(Instant now, LaneId lane);
  void OnSenderConnected(Instant now, uint32_t nic, uint32_t comm, int error);
  bool PollLaneOrder(CmService::LaneOrder* out);
  bool PollLookUp(CmService::LookUp* out);
  void OnLookedUp(const CmService::LookUp& what, int error);
  void WithdrawLookUp(const CmService::LookUp& what);
  void PrepareEnd(Instant now);
  bool AwaitsPeers() const;
  bool PollMad(CmService::OutMad* out);
  bool PollChannel(CmService::ChannelState* out);
  Instant PollTimeout() const;
  std::vector<CmService::SessionRow> Show() const;
  CmCounters Counters() const;

 private:
  struct Port {
    uint64_t node_guid = 0;
    std::unique_ptr<transport::cm::Engine> engine{};
  };
  using Request = shm::CmRequest;
  using Reply = shm::CmReply;
  using EngineEvent = transport::cm::Event;

  // --- requests.cc: NICs, and who is meant -------------------------------------------------------
  void TellOfHardware(CmIdentifier& id);
  int Dispatch(Instant now, CmSession& session, const Request& request, Reply* reply);
  int DispatchToId(Instant now, CmSession& session, CmIdentifier& id, const Request& request,
                   Reply* reply);
  CmIdentifier* Find(const CmIdRef& ref);
  // 0: none left.
  static shm::CmHandle NewHandle(CmSession& session);

  // --- events.cc --------------------------------------------------------------------------------
  int CreateChannel(CmSession& session, Reply* reply);
  int DestroyChannel(Instant now, CmSession& session, shm::CmHandle handle);
  int GetEvent(CmSession& session, shm::CmHandle channel, Reply* reply);
  int WriteEvent(const CmSession& session, CmIdentifier& id, const Request& request);
  int Migrate(CmSession& session, CmIdentifier& id, shm::CmHandle channel, Reply* reply);
  bool HasRoomForEvent(const CmSession& session) const;
  // Fills in whose it is. Of a membership or a new connection, if there is one.
  void Tell(CmIdentifier& id, CmEventType type, int status, shm::CmEvent event = {},
            CmMembership* membership = nullptr, CmIdentifier* connection = nullptr);
  void Queue(CmSession& session, shm::CmHandle channel, CmQueuedEvent event);
  // Takes waiting events of `id` (of `membership`, if not 0) away. Connections that nobody will
  // hear of are given back.
  std::vector<shm::CmHandle> DropEvents(CmSession& session, CmIdentifier& id,
                                        shm::CmHandle membership);
  void DropRequestFor(CmSession& session, CmIdentifier& connection);
  void NoteWaiting(CmSession& session, const CmQueuedEvent& event, int change);
  void NoteChange(CmSession& session, shm::CmHandle channel);

  // --- identifiers.cc ---------------------------------------------------------------------------
  int CreateId(CmSession& session, const Request& request, Reply* reply);
  // -> events that the client took
  uint32_t DestroyId(Instant now, CmSession& session, shm::CmHandle handle);
  int Bind(CmIdentifier& id, const shm::CmAddress& address);
  void Place(CmIdentifier& id, const CmPlace& place) const;
  int Listen(CmIdentifier& id, uint32_t backlog);
  int StartListening(CmIdentifier& id, uint32_t backlog);
  void StopListening(CmIdentifier& id);
  int ResolveAddress(CmSession& session, CmIdentifier& id, const Request& request);
  bool IsOnANetwork(const CmReach& reach) const;
  void HaveAddress(CmIdentifier& id, const CmReach& reach);
  // nullptr: it asks for this no more.
  CmIdentifier* AskerOf(const CmService::LookUp& what);
  int ResolveRoute(CmSession& session, CmIdentifier& id, uint32_t timeout_ms);
  void MakeRoute(CmIdentifier& id);
  int SetOption(CmSession& session, CmIdentifier& id, const Request& request);
  int Query(const CmIdentifier& id, Reply* reply) const;
  CmPortHolder HolderOf(const CmIdentifier& id) const;
  uint8_t MtuOf(uint32_t nic) const;  // enum ibv_mtu
  shm::CmAddressHandle AddressHandleOf(const CmIdentifier& id, const Gid& destination) const;

  // --- mcast.cc ---------------------------------------------------------------------------------
  int JoinMulticast(CmSession& session, CmIdentifier& id, const Request& request, Reply* reply);
  int LeaveMulticast(CmSession& session, shm::CmHandle handle, Reply* reply);

  // --- connect.cc -------------------------------------------------------------------------------
  int Connect(Instant now, CmIdentifier& id, const Request& request);
  int SendReq(Instant now, CmIdentifier& id, const shm::CmConnParam& param);
  int SendSidrReq(Instant now, CmIdentifier& id, const shm::CmConnParam& param);
  int Accept(Instant now, CmIdentifier& id, const Request& request);
  int SendRep(Instant now, CmIdentifier& id, const shm::CmConnParam& param);
  int SendSidrRep(Instant now, CmIdentifier& id, const shm::CmConnParam& param);
  int Reject(Instant now, CmIdentifier& id, const Request& request);
  int Establish(Instant now, CmIdentifier& id);
  int Disconnect(Instant now, CmIdentifier& id, uint32_t done_psn);
  int Notify(Instant now, CmIdentifier& id, uint32_t event);
  // EINVAL: it has another one already.
  static int SetQkey(CmIdentifier& id, QKey qkey);
  transport::cm::Engine* EngineOf(const CmIdentifier& id) const;
  transport::cm::State StateOf(const CmIdentifier& id) const;
  void SetComm(CmIdentifier& id, transport::cm::CommId comm);
  // The engine has forgotten it, or is to.
  void ClearComm(CmIdentifier& id);

  // --- lanes.cc ---------------------------------------------------------------------------------
  int ServePlace(CmIdentifier& id, const Request& request);
  void OnLaneRequest(Instant now, uint32_t nic, const EngineEvent& event,
                     const transport::cm::Req& req, const IpHeader& header, CmIdentifier& place);
  void RejectLane(Instant now, CommKey key, shm::RdmRejectReason reason);
  bool OnLaneEvent(Instant now, CommKey key, const EngineEvent& event);
  void OrderSender(CmIdentifier& id);
  void DropLane(LaneId lane);
  void OrderDrop(LaneId lane);
  void ForgetLane(CommKey key);
  void EndLane(Instant now, CommKey key);
  void EndPlace(Instant now, CmIdentifier& id);

  // --- qp_attr.cc -------------------------------------------------------------------------------
  int InitQpAttr(CmIdentifier& id, uint32_t qp_state, Reply* reply) const;

  // --- engine_events.cc: what the engines tell
  // ----------------------------------------------------
  void Pump(Instant now);
  void OnEngineEvent(Instant now, uint32_t nic, const EngineEvent& event);
  void OnConnectionEvent(Instant now, CmIdentifier& id, const EngineEvent& event);
  void OnDisconnected(CmIdentifier& id, const EngineEvent& event);
  void OnRep(CmIdentifier& id, const transport::cm::Rep& rep);
  void OnSidrRep(CmIdentifier& id, const transport::cm::SidrRep& rep);
  template <typename M>
  void OnRequestOfPeer(Instant now, uint32_t nic, const EngineEvent& event, const M& m);
  CmIdentifier* FindListener(uint32_t nic, transport::cm::ServiceId service, const IpHeader& header,
                             bool* is_there_one);
  CmIdentifier* NewConnection(CmSession& session, const CmIdentifier& listener, uint32_t nic,
                              const EngineEvent& event, const IpHeader& header);
  void Refuse(Instant now, uint32_t nic, const EngineEvent& event,
              transport::cm::RejectReason reason);

  const CmServiceConfig config_;
  std::mt19937_64 random_;
  CmAddressBook addresses_;
  CmPortTable ports_;
  uint32_t last_session_;
  std::map<uint32_t, Port> engines_;  // by NIC
  std::map<uint32_t, CmSession> sessions_;
  // Listeners by service; each engine listens for each of these services.
  std::map<uint64_t, std::vector<CmIdRef>> listeners_;
  std::map<CommKey, CmIdRef> by_comm_;
  std::map<CommKey, CmLane> comm_lanes_;
  std::map<LaneId, CommKey> comm_of_lane_;
  std::deque<CmService::LaneOrder> lane_orders_;
  std::deque<CmService::LookUp> look_ups_;
  uint32_t last_look_up_ = 0;
  std::deque<std::pair<uint32_t, shm::CmHandle>> changes_;  // channels to look at
  CmCounters counters_{};
};

}  // namespace verbena::softnic

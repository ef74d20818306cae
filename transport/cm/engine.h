// Communication management for the ports of a NIC: the state machines of IBTA 12.9, for any number
// of connections and service lookups, without I/O.
//
// Inputs are what a user asks for (verbs of rdma_cm, more or less), MADs that came to QP1, and the
// time; outputs are MADs to send and events. It knows nothing of QPs but their numbers: what state
// they are to be in follows from the events, and is the user's business.
//
// Trust: MADs are anybody's. What they name is looked up; what they say goes to the user as it is.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/instant.h"
#include "core/base/types.h"
#include "transport/cm/message.h"
#include "transport/cm/reactions.h"

namespace verbena::transport::cm {

// Between two QP1s.
struct Route {
  Gid local;
  Gid remote;
  friend auto operator<=>(const Route&, const Route&) = default;
};

struct OutMad {
  Route route;
  Mad mad;
};

enum class EventKind : uint8_t {
  kReqReceived,  // a communication of its own, by the listener's service
  kRepReceived,
  kEstablished,  // an RTU came
  kRejected,
  kMraReceived,
  kDreqReceived,
  kDrepReceived,
  kTimewaitExit,  // the communication is gone, its QP number free
  kReqTimeout,    // no answer: gone
  kRepTimeout,    // likewise
  kDreqTimeout,   // as after a DREP
  kSidrReqReceived,
  kSidrRepReceived,  // gone
  kSidrReqTimeout,   // gone
};
const char* NameOf(EventKind kind);

struct Event {
  EventKind kind{};
  CommId id{};
  Route route{};
  Body body{};  // of the message that came; of a timeout: none (a Rtu)
};

struct EngineConfig {
  uint64_t ca_guid = 0;
  // Numbers count up from here. Another one at each start, or peers take new connections for old.
  uint32_t first_comm_id = 1;
  // Communications, those in timewait included; a REQ beyond is rejected: no resources.
  uint32_t communications_max = 1 << 16;
  // The least that a connection is kept in timewait: its ACK timeout may be nothing.
  Duration timewait_min = Milliseconds(50);
};

// How often the engine has done what nobody saw.
struct EngineCounters {
  uint64_t mads_sent = 0;
  uint64_t mads_received = 0;
  uint64_t mads_refused = 0;  // no CM message, or for nobody
  uint64_t retries = 0;
  uint64_t duplicates = 0;
};

class Engine {
 public:
  explicit Engine(const EngineConfig& config) : config_(config), next_id_(config.first_comm_id) {}
  Engine(const Engine&) = delete;

  // --- asked by the user ------------------------------------------------------------------------
  // Errors are positive errnos. EINVAL: there is no such communication, or not in a state for it.

  // REQs and SIDR_REQs for the service are told from now on. `local`: of this port alone; zero: of
  // all. EADDRINUSE: somebody listens already.
  int Listen(ServiceId service, const Gid& local);
  void EndListening(ServiceId service, const Gid& local);

  // Sends `req`, whose local_comm_id and local_ca_guid are filled in, up to req.max_cm_retries
  // times more. Answered by kRepReceived, kRejected or kReqTimeout.   ENOMEM: too many.
  int SendReq(Instant now, const Route& route, Req req, CommId* out);
  // Answers a REQ; sent again until the RTU comes. Both comm IDs and the GUID are filled in.
  int SendRep(Instant now, CommId id, Rep rep);
  // Answers a REP. Repeated unasked a few times, if the peer was asked to wait (MRA).
  int SendRtu(Instant now, CommId id, const PrivateData<224>& data);
  // As an RTU that came: the QP has received something (IBV_EVENT_COMM_EST).
  int Establish(Instant now, CommId id);
  // Answers a REQ or REP in the negative; the communication is gone.
  int SendRej(Instant now, CommId id, RejectReason reason, const PrivateData<148>& data);
  // The answer to a REQ or REP takes up to 4.096 µs * 2^service_timeout.
  int SendMra(Instant now, CommId id, uint8_t service_timeout);
  // As SendMra, but sends nothing until the peer asks again: most answers come before.
  int PrepareMra(CommId id, uint8_t service_timeout);
  // Ends a connection. Answered by kDrepReceived or kDreqTimeout; then it is in timewait.
  int SendDreq(Instant now, CommId id, const PrivateData<220>& data);
  // Answers a DREQ: timewait.
  int SendDrep(Instant now, CommId id, const PrivateData<224>& data);
  // Sent up to `retries` times more, each 4.096 µs * 2^response_timeout.
  int SendSidrReq(Instant now, const Route& route, SidrReq req, uint8_t response_timeout,
                  uint8_t retries, CommId* out);
  // Answers a SIDR_REQ: gone.
  int SendSidrRep(Instant now, CommId id, SidrRep rep);
  // The user forgets it, in whatever state it is: the peer is told what that state asks for, and no
  // event names it any more.
  void Abandon(Instant now, CommId id);
  // As if the REQ or SIDR_REQ had never come; a repeated one comes as new.
  // EINVAL: it was answered, or is none.
  int Forget(CommId id);

  // The host is about to end and can't wait as long as its peers allow: what was sent and awaits a
  // DREP is sent again in a while that a network takes, not an answering program.
  void HurryDreqs(Instant now);

  // --- inputs -----------------------------------------------------------------------------------
  void OnMad(Instant now, const Route& route, const std::byte* bytes, size_t length);
  void OnTimeout(Instant now);

  // --- outputs ----------------------------------------------------------------------------------
  bool PollMad(OutMad* out);
  bool PollEvent(Event* out);
  Instant PollTimeout() const;

  // --- questions --------------------------------------------------------------------------------
  State StateOf(CommId id) const;  // kGone: there is none
  size_t size() const { return communications_.size(); }
  // The peers whose DREP is awaited.
  std::vector<Gid> PeersToAnswerDreqs();
  const EngineCounters& counters() const { return counters_; }

 private:
  struct Communication {
    State state = State::kGone;
    CommId id{}, remote_id{};
    Route route{};
    uint64_t transaction_id = 0;
    bool is_active = false, is_abandoned = false;
    bool has_asked_for_time = false;  // by an MRA for the peer's REP
    Qpn local_qpn{}, remote_qpn{};
    uint64_t remote_ca_guid = 0;
    uint8_t max_retries = 0;
    uint8_t response_timeout = 0;  // of the peer, as an exponent
    uint8_t ack_timeout = 0;       // of the connection, likewise: what it is in timewait for
    Mad last_sent{};               // but for MRAs
    uint8_t mra_timeout = 0;
    uint8_t retries_left = 0;
    Instant deadline = Instant::Never();
  };
  using RemoteKey = std::tuple<Gid, uint64_t, uint32_t>;  // port, CA GUID, comm ID or QPN

  Communication* Find(CommId id);
  Communication* FindIn(CommId id, std::initializer_list<State> states);
  Communication* New(const Route& route);
  void Remove(CommId id);
  void ForgetRemoteQpn(const Communication& c);
  void SetDeadline(Communication& c, Instant deadline);
  std::vector<CommId> DreqsToAnswer() const;
  Duration ResponseTime(const Communication& c) const;
  void Send(const Route& route, uint64_t transaction_id, const Body& body);
  void SendAndKeep(Instant now, Communication& c, const Body& body, bool awaits_answer);
  void SendMraOf(Communication& c);
  void Tell(EventKind kind, const Communication& c, const Body& body);
  void EnterTimewait(Instant now, Communication& c);

  template <typename M>
  void OnMessage(Instant now, const Route& route, uint64_t transaction_id, const M& m);
  void OnReq(Instant now, const Route& route, uint64_t transaction_id, const Req& req);
  void OnSidrReq(Instant now, const Route& route, uint64_t transaction_id, const SidrReq& req);
  void OnRejOfTimeout(Instant now, const Route& route, const Rej& rej);
  void React(Instant now, Communication& c, const ReactionRow& row, const Message& message);
  bool IsListening(ServiceId service, const Gid& local) const;
  void Reject(const Route& route, uint64_t transaction_id, CommId local, CommId remote, About about,
              RejectReason reason);

  const EngineConfig config_;
  uint32_t next_id_;
  uint64_t next_transaction_id_ = 1;
  std::unordered_map<uint32_t, Communication> communications_;
  std::map<std::pair<uint64_t, Gid>, bool> listeners_;
  std::map<RemoteKey, uint32_t> by_remote_id_;   // of passive sides: finds duplicates of a REQ
  std::map<RemoteKey, uint32_t> by_remote_qpn_;  // of all that have one: finds stale connections
  std::map<std::pair<Instant, uint32_t>, bool> deadlines_;
  std::deque<OutMad> out_;
  std::deque<Event> events_;
  EngineCounters counters_;
};

// 4.096 µs * 2^exponent, of 5 bits.   Spec: IBTA 12.7.4 and others.
Duration TimeOf(uint8_t exponent);

}  // namespace verbena::transport::cm

#include "transport/cm/engine.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "transport/wire/byte_order.h"

namespace verbena::transport::cm {
namespace {

constexpr uint8_t kHurriedResponseTimeout = 15;  // 134 ms
// RTUs that are sent again unasked, each after the time that a peer takes to repeat its REP.
constexpr uint8_t kUnaskedRtus = 3;
// However long an ACK timeout the peers agreed on: nobody waits for a QP number for hours.
constexpr Duration kTimewaitMax = Seconds(60);

// Which message a REJ in this state is about.
About AboutIn(State state) {
  switch (state) {
    case State::kReqRcvd:
    case State::kMraReqSent:
    case State::kReqSent:
    case State::kMraReqRcvd:
      return About::kReq;
    case State::kRepRcvd:
    case State::kMraRepSent:
      return About::kRep;
    default:
      return About::kOther;
  }
}

}  // namespace

Duration TimeOf(uint8_t exponent) { return Nanoseconds(4096ll << std::min<int>(exponent, 31)); }

const char* NameOf(EventKind kind) {
  static constexpr const char* kNames[] = {
      "REQ received",  "REP received",      "established",       "rejected",        "MRA received",
      "DREQ received", "DREP received",     "timewait exit",     "REQ timeout",     "REP timeout",
      "DREQ timeout",  "SIDR_REQ received", "SIDR_REP received", "SIDR_REQ timeout"};
  return kNames[static_cast<size_t>(kind)];
}

// --- communications ------------------------------------------------------------------------------

Engine::Communication* Engine::Find(CommId id) {
  auto found = communications_.find(id.value);
  return found == communications_.end() ? nullptr : &found->second;
}

Engine::Communication* Engine::FindIn(CommId id, std::initializer_list<State> states) {
  Communication* c = Find(id);
  if (c == nullptr || c->is_abandoned) return nullptr;
  return std::find(states.begin(), states.end(), c->state) == states.end() ? nullptr : c;
}

State Engine::StateOf(CommId id) const {
  auto found = communications_.find(id.value);
  return found == communications_.end() ? State::kGone : found->second.state;
}

// nullptr: too many.
Engine::Communication* Engine::New(const Route& route) {
  if (communications_.size() >= config_.communications_max) return nullptr;
  // 0 stands for "not known" in a REJ.
  while (next_id_ == 0 || communications_.contains(next_id_)) ++next_id_;
  Communication& c = communications_[next_id_];
  c.id = CommId{next_id_++};
  c.route = route;
  return &c;
}

void Engine::Remove(CommId id) {
  Communication* c = Find(id);
  if (c == nullptr) return;
  SetDeadline(*c, Instant::Never());
  auto found = by_remote_id_.find({c->route.remote, c->remote_ca_guid, c->remote_id.value});
  if (found != by_remote_id_.end() && found->second == id.value) by_remote_id_.erase(found);
  ForgetRemoteQpn(*c);
  communications_.erase(id.value);
}

void Engine::ForgetRemoteQpn(const Communication& c) {
  auto found = by_remote_qpn_.find({c.route.remote, c.remote_ca_guid, c.remote_qpn.value});
  if (found != by_remote_qpn_.end() && found->second == c.id.value) by_remote_qpn_.erase(found);
}

void Engine::SetDeadline(Communication& c, Instant deadline) {
  if (!c.deadline.IsNever()) deadlines_.erase({c.deadline, c.id.value});
  c.deadline = deadline;
  if (!deadline.IsNever()) deadlines_[{deadline, c.id.value}] = true;
}

// There and back, and what the peer takes to answer.   Spec: IBTA 12.9.8.5
Duration Engine::ResponseTime(const Communication& c) const {
  return TimeOf(c.response_timeout) + TimeOf(c.ack_timeout);
}

void Engine::Tell(EventKind kind, const Communication& c, const Body& body) {
  if (!c.is_abandoned) events_.push_back({kind, c.id, c.route, body});
}

void Engine::EnterTimewait(Instant now, Communication& c) {
  c.state = State::kTimewait;
  // The peer knows when its QP may be connected anew; it keeps a timewait of its own.
  ForgetRemoteQpn(c);
  const Duration stay = std::clamp(TimeOf(c.ack_timeout), config_.timewait_min, kTimewaitMax);
  SetDeadline(c, now + stay);
}

// --- sending ------------------------------------------------------------------------------------

void Engine::Send(const Route& route, uint64_t transaction_id, const Body& body) {
  out_.push_back({route, Encode({transaction_id, body})});
  ++counters_.mads_sent;
}

// What may have to be sent again: until it is answered, or when the peer repeats what it answers.
void Engine::SendAndKeep(Instant now, Communication& c, const Body& body, bool awaits_answer) {
  c.last_sent = Encode({c.transaction_id, body});
  c.retries_left = c.max_retries;
  SetDeadline(c, awaits_answer ? now + ResponseTime(c) : Instant::Never());
  out_.push_back({c.route, c.last_sent});
  ++counters_.mads_sent;
}

void Engine::SendMraOf(Communication& c) {
  c.has_asked_for_time = c.is_active;
  Send(c.route, c.transaction_id,
       Mra{c.id, c.remote_id, c.is_active ? About::kRep : About::kReq, c.mra_timeout, {}});
}

void Engine::Reject(const Route& route, uint64_t transaction_id, CommId local, CommId remote,
                    About about, RejectReason reason) {
  Rej rej;
  rej.local_comm_id = local;
  rej.remote_comm_id = remote;
  rej.about = about;
  rej.reason = reason;
  if (reason == RejectReason::kTimeout) {
    // The peer may not have our number.
    wire::StoreBe64(config_.ca_guid, rej.info.data());
    rej.info_bytes = sizeof config_.ca_guid;
  }
  Send(route, transaction_id, rej);
}

// --- asked by the user --------------------------------------------------------------------------

int Engine::Listen(ServiceId service, const Gid& local) {
  return listeners_.emplace(std::pair(service.value, local), true).second ? 0 : EADDRINUSE;
}

void Engine::EndListening(ServiceId service, const Gid& local) {
  listeners_.erase({service.value, local});
}

bool Engine::IsListening(ServiceId service, const Gid& local) const {
  return listeners_.contains({service.value, local}) || listeners_.contains({service.value, Gid{}});
}

int Engine::SendReq(Instant now, const Route& route, Req req, CommId* out) {
  Communication* c = New(route);
  if (c == nullptr) return ENOMEM;
  c->state = State::kReqSent;
  c->is_active = true;
  c->transaction_id = next_transaction_id_++;
  c->local_qpn = req.local_qpn;
  c->max_retries = req.max_cm_retries;
  c->response_timeout = req.remote_cm_response_timeout;
  c->ack_timeout = req.primary.local_ack_timeout;
  req.local_comm_id = c->id;
  req.local_ca_guid = config_.ca_guid;
  SendAndKeep(now, *c, req, /*awaits_answer=*/true);
  *out = c->id;
  return 0;
}

int Engine::SendRep(Instant now, CommId id, Rep rep) {
  Communication* c = FindIn(id, {State::kReqRcvd, State::kMraReqSent});
  if (c == nullptr) return EINVAL;
  c->state = State::kRepSent;
  c->local_qpn = rep.local_qpn;
  rep.local_comm_id = c->id;
  rep.remote_comm_id = c->remote_id;
  rep.local_ca_guid = config_.ca_guid;
  SendAndKeep(now, *c, rep, /*awaits_answer=*/true);
  return 0;
}

int Engine::SendRtu(Instant now, CommId id, const PrivateData<224>& data) {
  Communication* c = FindIn(id, {State::kRepRcvd, State::kMraRepSent});
  if (c == nullptr) return EINVAL;
  c->state = State::kEstablished;
  SendAndKeep(now, *c, Rtu{c->id, c->remote_id, data}, /*awaits_answer=*/false);
  if (!c->has_asked_for_time) return 0;
  // The peer waits for as long as it was asked to, a minute maybe, before it repeats its REP.
  c->retries_left = std::min(c->max_retries, kUnaskedRtus);
  SetDeadline(*c, now + ResponseTime(*c));
  return 0;
}

int Engine::Establish(Instant now, CommId id) {
  Communication* c = FindIn(id, {State::kRepSent, State::kMraRepRcvd});
  if (c == nullptr) return EINVAL;
  c->state = State::kEstablished;
  SetDeadline(*c, Instant::Never());
  Tell(EventKind::kEstablished, *c, Rtu{});
  return 0;
}

int Engine::SendRej(Instant now, CommId id, RejectReason reason, const PrivateData<148>& data) {
  Communication* c =
      FindIn(id, {State::kReqSent, State::kMraReqRcvd, State::kReqRcvd, State::kMraReqSent,
                  State::kRepRcvd, State::kMraRepSent, State::kRepSent, State::kMraRepRcvd});
  if (c == nullptr) return EINVAL;
  Rej rej;
  rej.local_comm_id = c->id;
  rej.remote_comm_id = c->remote_id;
  rej.about = AboutIn(c->state);
  rej.reason = reason;
  rej.private_data = data;
  Send(c->route, c->transaction_id, rej);
  Remove(id);
  return 0;
}

int Engine::PrepareMra(CommId id, uint8_t service_timeout) {
  Communication* c =
      FindIn(id, {State::kReqRcvd, State::kMraReqSent, State::kRepRcvd, State::kMraRepSent});
  if (c == nullptr) return EINVAL;
  c->state = c->is_active ? State::kMraRepSent : State::kMraReqSent;
  c->mra_timeout = service_timeout;
  return 0;
}

int Engine::SendMra(Instant, CommId id, uint8_t service_timeout) {
  if (int error = PrepareMra(id, service_timeout); error != 0) return error;
  SendMraOf(*Find(id));
  return 0;
}

int Engine::SendDreq(Instant now, CommId id, const PrivateData<220>& data) {
  Communication* c = FindIn(id, {State::kEstablished});
  if (c == nullptr) return EINVAL;
  c->state = State::kDreqSent;
  c->transaction_id = next_transaction_id_++;
  SendAndKeep(now, *c, Dreq{c->id, c->remote_id, c->remote_qpn, data}, /*awaits_answer=*/true);
  return 0;
}

int Engine::SendDrep(Instant now, CommId id, const PrivateData<224>& data) {
  Communication* c = FindIn(id, {State::kDreqRcvd});
  if (c == nullptr) return EINVAL;
  SendAndKeep(now, *c, Drep{c->id, c->remote_id, data}, /*awaits_answer=*/false);
  EnterTimewait(now, *c);
  return 0;
}

int Engine::SendSidrReq(Instant now, const Route& route, SidrReq req, uint8_t response_timeout,
                        uint8_t retries, CommId* out) {
  Communication* c = New(route);
  if (c == nullptr) return ENOMEM;
  c->state = State::kSidrReqSent;
  c->is_active = true;
  c->transaction_id = next_transaction_id_++;
  c->max_retries = retries;
  c->response_timeout = response_timeout;
  req.request_id = c->id;
  SendAndKeep(now, *c, req, /*awaits_answer=*/true);
  *out = c->id;
  return 0;
}

int Engine::SendSidrRep(Instant now, CommId id, SidrRep rep) {
  Communication* c = FindIn(id, {State::kSidrReqRcvd});
  if (c == nullptr) return EINVAL;
  rep.request_id = c->remote_id;
  Send(c->route, c->transaction_id, rep);
  Remove(id);
  return 0;
}

int Engine::Forget(CommId id) {
  if (FindIn(id, {State::kReqRcvd, State::kMraReqSent, State::kSidrReqRcvd}) == nullptr) {
    return EINVAL;
  }
  Remove(id);
  return 0;
}

void Engine::Abandon(Instant now, CommId id) {
  Communication* c = Find(id);
  if (c == nullptr) return;
  std::erase_if(events_, [&](const Event& event) { return event.id == id; });
  switch (c->state) {
    case State::kReqSent:
    case State::kMraReqRcvd:
      Reject(c->route, c->transaction_id, id, c->remote_id, About::kReq, RejectReason::kTimeout);
      return Remove(id);
    case State::kReqRcvd:
    case State::kMraReqSent:
    case State::kRepRcvd:
    case State::kMraRepSent:
    case State::kRepSent:
    case State::kMraRepRcvd:
      Reject(c->route, c->transaction_id, id, c->remote_id, AboutIn(c->state),
             RejectReason::kConsumerDefined);
      return Remove(id);
    case State::kEstablished:
      SendDreq(now, id, {});
      break;
    case State::kDreqRcvd:
      SendDrep(now, id, {});
      break;
    case State::kSidrReqRcvd: {
      SidrRep rep;
      rep.status = SidrStatus::kRejected;
      SendSidrRep(now, id, rep);
      return;
    }
    case State::kSidrReqSent:
      return Remove(id);
    case State::kDreqSent:
    case State::kTimewait:
    case State::kGone:
      break;
  }
  // Goes on by itself to the end of its timewait.
  c->is_abandoned = true;
}

std::vector<CommId> Engine::DreqsToAnswer() const {
  std::vector<CommId> ids;
  for (const auto& [due, armed] : deadlines_) {
    if (StateOf(CommId{due.second}) == State::kDreqSent) ids.push_back(CommId{due.second});
  }
  return ids;
}

void Engine::HurryDreqs(Instant now) {
  for (CommId id : DreqsToAnswer()) {
    Communication& c = *Find(id);
    c.response_timeout = kHurriedResponseTimeout;
    c.ack_timeout = 0;
    SetDeadline(c, now + ResponseTime(c));
  }
}

std::vector<Gid> Engine::PeersToAnswerDreqs() {
  std::vector<Gid> peers;
  for (CommId id : DreqsToAnswer()) peers.push_back(Find(id)->route.remote);
  return peers;
}

// --- time ---------------------------------------------------------------------------------------

Instant Engine::PollTimeout() const {
  return deadlines_.empty() ? Instant::Never() : deadlines_.begin()->first.first;
}

void Engine::OnTimeout(Instant now) {
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now) {
    Communication& c = *Find(CommId{deadlines_.begin()->first.second});
    if (c.state != State::kTimewait && c.retries_left > 0) {
      --c.retries_left;
      ++counters_.retries;
      ++counters_.mads_sent;
      out_.push_back({c.route, c.last_sent});
      SetDeadline(c, now + ResponseTime(c));
      continue;
    }
    switch (c.state) {
      case State::kReqSent:
      case State::kMraReqRcvd:
        Tell(EventKind::kReqTimeout, c, Rtu{});
        Reject(c.route, c.transaction_id, c.id, c.remote_id, About::kReq, RejectReason::kTimeout);
        Remove(c.id);
        break;
      case State::kRepSent:
      case State::kMraRepRcvd:
        Tell(EventKind::kRepTimeout, c, Rtu{});
        Reject(c.route, c.transaction_id, c.id, c.remote_id, About::kOther, RejectReason::kTimeout);
        Remove(c.id);
        break;
      case State::kDreqSent:
        Tell(EventKind::kDreqTimeout, c, Rtu{});
        EnterTimewait(now, c);
        break;
      case State::kEstablished:  // the RTU was repeated
        SetDeadline(c, Instant::Never());
        break;
      case State::kSidrReqSent:
        Tell(EventKind::kSidrReqTimeout, c, Rtu{});
        Remove(c.id);
        break;
      default:
        Tell(EventKind::kTimewaitExit, c, Rtu{});
        Remove(c.id);
        break;
    }
  }
}

// --- outputs ------------------------------------------------------------------------------------

bool Engine::PollMad(OutMad* out) {
  if (out_.empty()) return false;
  *out = out_.front();
  out_.pop_front();
  return true;
}

bool Engine::PollEvent(Event* out) {
  if (events_.empty()) return false;
  *out = std::move(events_.front());
  events_.pop_front();
  return true;
}

}  // namespace verbena::transport::cm

// What messages do to communications.
#include <type_traits>
#include <utility>

#include "transport/cm/engine.h"
#include "transport/wire/byte_order.h"

namespace verbena::transport::cm {
namespace {

EventKind KindOf(Attribute message) {
  switch (message) {
    case Attribute::kRep:
      return EventKind::kRepReceived;
    case Attribute::kRtu:
      return EventKind::kEstablished;
    case Attribute::kDreq:
      return EventKind::kDreqReceived;
    case Attribute::kDrep:
      return EventKind::kDrepReceived;
    case Attribute::kSidrRep:
      return EventKind::kSidrRepReceived;
    default:
      return EventKind::kRejected;
  }
}

}  // namespace

void Engine::OnMad(Instant now, const Route& route, const std::byte* bytes, size_t length) {
  Message message;
  ++counters_.mads_received;
  if (Decode(bytes, length, &message) != DecodeError::kNone) {
    ++counters_.mads_refused;
    return;
  }
  std::visit([&](const auto& m) { OnMessage(now, route, message.transaction_id, m); },
             message.body);
}

template <typename M>
void Engine::OnMessage(Instant now, const Route& route, uint64_t transaction_id, const M& m) {
  if constexpr (std::is_same_v<M, Req>) {
    OnReq(now, route, transaction_id, m);
  } else if constexpr (std::is_same_v<M, SidrReq>) {
    OnSidrReq(now, route, transaction_id, m);
  } else {
    CommId local{}, remote{};
    About about = About::kOther;
    if constexpr (std::is_same_v<M, SidrRep>) {
      local = m.request_id;
    } else {
      local = m.remote_comm_id;
      remote = m.local_comm_id;
    }
    if constexpr (std::is_same_v<M, Mra> || std::is_same_v<M, Rej>) about = m.about;
    Communication* c = Find(local);
    // Its peer's, or nobody's. A REJ may come from one that never gave itself a number.
    const bool is_peers = c != nullptr && c->route == route &&
                          (c->remote_id.value == 0 || remote.value == 0 || c->remote_id == remote);
    if (!is_peers) {
      if constexpr (std::is_same_v<M, Rej>) {
        if (m.reason == RejectReason::kTimeout) return OnRejOfTimeout(now, route, m);
      }
      ++counters_.mads_refused;
      // The peer holds on to what is gone here: it is told, so that it need not wait.
      if constexpr (std::is_same_v<M, Dreq>) Send(route, transaction_id, Drep{local, remote, {}});
      if constexpr (std::is_same_v<M, Rep>) {
        Reject(route, transaction_id, local, remote, About::kRep, RejectReason::kInvalidCommId);
      }
      return;
    }
    if constexpr (std::is_same_v<M, Dreq>) {
      if (m.remote_qpn != c->local_qpn) {
        ++counters_.mads_refused;
        return;
      }
    }
    const ReactionRow* row = FindReaction(c->state, M::kAttribute, about);
    if (row == nullptr) {
      ++counters_.duplicates;
      return;
    }
    React(now, *c, *row, {transaction_id, m});
  }
}

void Engine::React(Instant now, Communication& c, const ReactionRow& row, const Message& message) {
  switch (row.reaction) {
    case Reaction::kNone:
      return;
    case Reaction::kSendAgain:
      ++counters_.duplicates;
      // An established passive side has sent no RTU.
      if (row.message == Attribute::kRep && !c.is_active) return;
      ++counters_.mads_sent;
      out_.push_back({c.route, c.last_sent});
      return;
    case Reaction::kSendMraAgain:
      ++counters_.duplicates;
      return SendMraOf(c);
    case Reaction::kSendDrep:
      ++counters_.duplicates;
      return Send(c.route, message.transaction_id, Drep{c.id, c.remote_id, {}});
    case Reaction::kRejectStale:
      ++counters_.duplicates;
      return Reject(c.route, message.transaction_id, c.id, c.remote_id, About::kReq,
                    RejectReason::kStaleConnection);
    case Reaction::kRefuseLap: {
      Apr apr;
      apr.local_comm_id = c.id;
      apr.remote_comm_id = c.remote_id;
      apr.status = AprStatus::kNotSupported;
      return Send(c.route, message.transaction_id, apr);
    }
    case Reaction::kExtend: {
      const auto& mra = std::get<Mra>(message.body);
      c.state = row.next;
      SetDeadline(c, now + TimeOf(mra.service_timeout) + ResponseTime(c));
      return Tell(EventKind::kMraReceived, c, message.body);
    }
    case Reaction::kTell:
      break;
  }
  if (const Rep* rep = std::get_if<Rep>(&message.body)) {
    const RemoteKey key{c.route.remote, rep->local_ca_guid, rep->local_qpn.value};
    if (by_remote_qpn_.contains(key)) {
      // That QP is connected to another one of ours, as far as we know.   Spec: IBTA 12.9.8.4
      Reject(c.route, message.transaction_id, c.id, rep->local_comm_id, About::kRep,
             RejectReason::kStaleConnection);
      Rej own;
      own.reason = RejectReason::kStaleConnection;
      own.about = About::kRep;
      Tell(EventKind::kRejected, c, own);
      return Remove(c.id);
    }
    c.remote_id = rep->local_comm_id;
    c.remote_qpn = rep->local_qpn;
    c.remote_ca_guid = rep->local_ca_guid;
    by_remote_qpn_[key] = c.id.value;
  }
  if (std::holds_alternative<Dreq>(message.body)) c.transaction_id = message.transaction_id;
  c.state = row.next;
  SetDeadline(c, Instant::Never());
  const EventKind kind = KindOf(row.message);
  Tell(kind, c, message.body);
  if (c.state == State::kTimewait) return EnterTimewait(now, c);
  if (c.state == State::kGone) return Remove(c.id);
  // Nobody is there to answer.
  if (c.is_abandoned && c.state == State::kDreqRcvd) {
    c.is_abandoned = false;
    SendDrep(now, c.id, {});
    c.is_abandoned = true;
  }
}

void Engine::OnReq(Instant now, const Route& route, uint64_t transaction_id, const Req& req) {
  const RemoteKey id_key{route.remote, req.local_ca_guid, req.local_comm_id.value};
  if (auto found = by_remote_id_.find(id_key); found != by_remote_id_.end()) {
    Communication& c = *Find(CommId{found->second});
    const ReactionRow* row = FindReaction(c.state, Attribute::kReq, About::kOther);
    if (row == nullptr) {
      ++counters_.duplicates;
      return;
    }
    return React(now, c, *row, {transaction_id, req});
  }
  const RemoteKey qpn_key{route.remote, req.local_ca_guid, req.local_qpn.value};
  if (auto found = by_remote_qpn_.find(qpn_key); found != by_remote_qpn_.end()) {
    // The peer has begun anew with a QP that we take for connected: both hear of it.
    Communication& stale = *Find(CommId{found->second});
    if (stale.state == State::kEstablished) {
      stale.state = State::kDreqSent;
      stale.transaction_id = next_transaction_id_++;
      SendAndKeep(now, stale, Dreq{stale.id, stale.remote_id, stale.remote_qpn, {}},
                  /*awaits_answer=*/true);
    }
    return Reject(route, transaction_id, CommId{}, req.local_comm_id, About::kReq,
                  RejectReason::kStaleConnection);
  }
  auto refuse = [&](RejectReason reason) {
    ++counters_.mads_refused;
    Reject(route, transaction_id, CommId{}, req.local_comm_id, About::kReq, reason);
  };
  if (!IsListening(req.service_id, route.local)) return refuse(RejectReason::kInvalidServiceId);
  Communication* c = New(route);
  if (c == nullptr) return refuse(RejectReason::kNoResources);
  c->state = State::kReqRcvd;
  c->transaction_id = transaction_id;
  c->remote_id = req.local_comm_id;
  c->remote_qpn = req.local_qpn;
  c->remote_ca_guid = req.local_ca_guid;
  c->max_retries = req.max_cm_retries;
  c->response_timeout = req.local_cm_response_timeout;
  c->ack_timeout = req.primary.local_ack_timeout;
  by_remote_id_[id_key] = c->id.value;
  by_remote_qpn_[qpn_key] = c->id.value;
  Tell(EventKind::kReqReceived, *c, req);
}

void Engine::OnSidrReq(Instant now, const Route& route, uint64_t transaction_id,
                       const SidrReq& req) {
  const RemoteKey key{route.remote, /*no GUID*/ 0, req.request_id.value};
  if (by_remote_id_.contains(key)) {
    ++counters_.duplicates;
    return;
  }
  Communication* c = nullptr;
  SidrRep refusal;
  refusal.request_id = req.request_id;
  refusal.service_id = req.service_id;
  if (!IsListening(req.service_id, route.local)) {
    refusal.status = SidrStatus::kServiceIdNotSupported;
  } else if ((c = New(route)) == nullptr) {
    refusal.status = SidrStatus::kRejected;
  }
  if (c == nullptr) {
    ++counters_.mads_refused;
    return Send(route, transaction_id, refusal);
  }
  c->state = State::kSidrReqRcvd;
  c->transaction_id = transaction_id;
  c->remote_id = req.request_id;
  by_remote_id_[key] = c->id.value;
  Tell(EventKind::kSidrReqReceived, *c, req);
}

// The active side gave up before it knew our number: it names its CA instead.
void Engine::OnRejOfTimeout(Instant now, const Route& route, const Rej& rej) {
  const uint64_t ca_guid = wire::LoadBe64(rej.info.data());
  auto found = by_remote_id_.find({route.remote, ca_guid, rej.local_comm_id.value});
  if (found == by_remote_id_.end() || rej.info_bytes < sizeof ca_guid) {
    ++counters_.mads_refused;
    return;
  }
  Communication& c = *Find(CommId{found->second});
  if (c.state != State::kReqRcvd && c.state != State::kMraReqSent && c.state != State::kRepSent &&
      c.state != State::kMraRepRcvd) {
    ++counters_.duplicates;
    return;
  }
  Tell(EventKind::kRejected, c, rej);
  Remove(c.id);
}

}  // namespace verbena::transport::cm

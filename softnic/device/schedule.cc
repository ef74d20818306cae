// Turns, draining of outputs, and timers.
//
// Fairness: a session gets kPdusPerSessionTurn PDUs, a QP of it kPdusPerQpTurn, then the next one's
// turn comes. What a QP has to say after one input is drained at most kOutputsPerDrain at a time:
// flushing a full ring takes turns too.
#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/check.h"
#include "core/base/prefetch.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

constexpr uint32_t kPdusPerSessionTurn = 32;
constexpr uint32_t kPdusPerQpTurn = 8;
constexpr uint32_t kOutputsPerDrain = 256;
// How many QPs ahead their lines are asked for, in steps.
constexpr uint32_t kFar = 8, kMiddle = 5, kNear = 2;
constexpr Duration kHeldUpMax = Milliseconds(10'000);

}  // namespace

bool DeviceCore::OnDoorbell(Instant now, SessionId id, uint32_t doorbell) {
  return OnDoorbells(now, id, &doorbell, 1) == 0;
}

// False: nothing will come of it.
bool DeviceCore::OnRung(DeviceQp& qp) {
  qp.transport->OnDoorbell(now_);
  if (qp.transport->HasRequestWork()) may_be_streaming_ = is_streaming_ = false;
  // As a rule nothing comes of it before the QP's turn.
  if (qp.transport->state() == QpState::kRts && qp.waiting.empty() && MaySend(qp)) {
    MakeReady(qp);
    return true;
  }
  AfterInput(qp);
  Settle();
  return qp.transport->state() != QpState::kErr;
}

void DeviceCore::ExpectDoorbell(SessionId id, uint32_t doorbell) const {
  const Session* session = FindSession(id);
  if (session == nullptr) return;
  DeviceQp* qp = session->doorbells.Find(doorbell);
  if (qp == nullptr) return;
  qp->send_ring.PrefetchNext();
}

// With many QPs each has been out of cache since its last turn. The lines that the next ones take
// come while one is worked on: here those that a doorbell touches, the others by Lookahead. (Asked
// for all at once they would not come any sooner, and nothing would be done meanwhile.)
uint32_t DeviceCore::OnDoorbells(Instant now, SessionId id, const uint32_t* doorbells,
                                 uint32_t count) {
  AdvanceTo(now);
  const Session* session = FindSession(id);
  if (session == nullptr || session->is_closing) return count;
  const bool looks_ahead = session->qps.size() >= config_.limits.many_qps;
  const uint32_t ahead = looks_ahead ? kFar : 1;
  std::array<DeviceQp*, kFar> qps;
  uint32_t far = 0, near = 0, fruitless = 0;
  for (uint32_t i = 0; i < count; ++i) {
    for (; far < std::min(count, i + ahead); ++far) {
      DeviceQp* qp = qps[far % kFar] = session->doorbells.Find(doorbells[far]);
      if (looks_ahead && qp != nullptr) qp->ExpectDoorbell();
    }
    for (; looks_ahead && near < std::min(far, i + kNear); ++near) {
      const DeviceQp* qp = qps[near % kFar];
      if (qp != nullptr) qp->transport->ExpectDoorbell();
    }
    // nullptr: rung before a destroy, or at random.
    DeviceQp* qp = qps[i % kFar];
    if (qp == nullptr || !OnRung(*qp)) ++fruitless;
  }
  return fruitless;
}

// The QPs of a session that take their turns next.
class DeviceCore::Lookahead {
 public:
  Lookahead(const DeviceCore* core, const Session& session) : core_(core) {
    if (session.qps.size() < core->config_.limits.many_qps) return;
    session.ready.ForFirst(kPdusPerSessionTurn, [this](DeviceQp& qp) { qps_[count_++] = &qp; });
    for (uint32_t i = 0; i < kFar; ++i) Look(i);
  }
  // Another turn begins.
  void Advance() { Look(turn_++ + kFar); }

 private:
  // The QP at `place` is the last that is looked at, one step further are those before it: each
  // step asks for what the one before it has made known.
  void Look(uint32_t place) {
    if (place < count_) qps_[place]->Expect();
    if (const uint32_t index = place - (kFar - kMiddle); index < count_) {
      DeviceQp& qp = *qps_[index];
      if (!qp.transport->Expect()) qp.ExpectRest();
      qp.send_ring.PrefetchNext();
      const DeviceQp* peer = peers_[index] = core_->FindQp(qp.peer);
      if (peer != nullptr && peer != &qp) peer->Expect();
    }
    if (const uint32_t index = place - (kFar - kNear); index < count_) {
      DeviceQp& qp = *qps_[index];
      qp.transport->ExpectRecord();
      const DeviceQp* peer = peers_[index];
      if (peer == nullptr) return;
      if (peer != &qp && !peer->transport->Expect()) peer->ExpectRest();
      qp.ExpectMove(*peer);
    }
  }

  const DeviceCore* const core_;
  uint32_t count_ = 0, turn_ = 0;
  std::array<DeviceQp*, kPdusPerSessionTurn> qps_;
  std::array<const DeviceQp*, kPdusPerSessionTurn> peers_;
};

void DeviceCore::MarkForDrain(DeviceQp& qp) {
  if (qp.is_in_drain) return;
  qp.is_in_drain = true;
  drain_.push_back(&qp);
}

// Has the client ring for receives that it posts to a QP in the error state, where they are to be
// flushed. Returns whether it is in that state.
bool DeviceCore::AskForReceives(DeviceQp& qp) {
  const bool is_failed = qp.transport->state() == QpState::kErr;
  if (is_failed != qp.asks_for_receives && qp.srq == nullptr) {
    qp.asks_for_receives = is_failed;
    qp.recv_ring.AskForDoorbells(is_failed);
  }
  return is_failed;
}

void DeviceCore::Drain(DeviceQp& qp) {
  qp.has_more_output = false;
  const bool has_network = HasNetwork();
  if (has_network) CountUnacked(qp);
  uint32_t budget = kOutputsPerDrain;
  transport::Pdu& pdu = blank_response_;
  while (budget > 0 && (!has_network || HasTxRoom(qp.tx_responses)) &&
         qp.transport->PollResponse(now_, pdu)) {
    Deliver(qp, pdu);
    pdu = {};
    --budget;
    ++outputs_;
  }
  if (has_network && !HasTxRoom(qp.tx_responses)) qp.waits_for_tx = true;
  const bool is_failed = AskForReceives(qp);  // before what is there is flushed
  // Failed work completes when nothing reads its buffers any more.
  const bool may_flush = qp.reads_in_flight == 0 || !is_failed || !qp.IsConnectedService();
  while (budget > 0 && may_flush) {
    if (!qp.transport->PollCompletion(blank_completion_)) break;
    PushCompletion(qp);
    --budget;
    ++outputs_;
  }
  EventType event;
  while (qp.transport->PollEvent(event)) PushQpEvent(qp, event);
  const transport::QpCounters& counters = qp.transport->counters();
  uint64_t violations = counters.qkey_violation;
  qp.nic->qkey_violations +=
      static_cast<uint32_t>(violations - std::exchange(qp.counted_qkey_violations, violations));
  uint64_t disabled = counters.access_disabled;
  if (disabled != qp.counted_access_disabled) {
    qp.nic->refusals.Add(shm::VendorErr::kQpAccess,
                         disabled - std::exchange(qp.counted_access_disabled, disabled));
  }
  if (!qp.waiting.empty()) TakeWaiting(qp);
  qp.has_more_output = budget == 0 || AskForReceives(qp) != is_failed;
  if (qp.has_more_output || MaySend(qp)) MakeReady(qp);
  if (has_network) WaitForTxOrPace(qp);
  UpdateTimer(qp);
}

// Draining one QP may give input to others: they join the end of the list.
void DeviceCore::DrainMarked() {
  for (size_t i = 0; i < drain_.size(); ++i) {
    DeviceQp& qp = *drain_[i];
    qp.is_in_drain = false;
    Drain(qp);
  }
  drain_.clear();
}

void DeviceCore::Settle() {
  VERBENA_CHECK(held_writes_.cq == nullptr);
  do {
    DrainMarked();
  } while (PushReleases());
  if (!unwritten_cqs_.empty()) WriteUnwrittenCqes();
  FireArmedCqs();
}

void DeviceCore::MakeReady(DeviceQp& qp) {
  if (qp.ready_hook.IsLinked()) return;
  qp.session->ready.PushBack(qp.ready_hook);
  if (!qp.session->ready_hook.IsLinked()) ready_sessions_.PushBack(qp.session->ready_hook);
}

// A deadline that moved later, or away, is found out when the earlier one comes: so arming and
// disarming the ACK timer of each message costs nothing.
void DeviceCore::UpdateTimer(DeviceQp& qp) {
  Instant deadline = qp.transport->PollTimeout();
  if (deadline.IsNever()) return;
  if (qp.timer.IsSet() && qp.timer.deadline <= deadline) return;
  timers_.Set(qp.timer, deadline);
}

// A copy may take seconds: while its process forks, nobody else gets at its memory. That is no
// loss, and must not cost the connection its retries. Memory that never answers is worse than a
// loss.
bool DeviceCore::IsHeldUp(DeviceQp& qp) {
  const TxPacket* next = qp.tx_requests.front();
  const bool is_held = qp.wire.peer != nullptr ? next != nullptr && !next->is_ready
                                               : qp.is_blocked || qp.moves_in_flight != 0;
  if (!is_held) {
    qp.held_up_since = Instant::Never();
  } else if (qp.held_up_since.IsNever()) {
    qp.held_up_since = now_;
  }
  return is_held && now_ - qp.held_up_since < kHeldUpMax;
}

// Each part of a turn calls it: whoever drives the device need not call all of them.
void DeviceCore::BeginTurn(Instant now) {
  AdvanceTo(now);
  if (now != turn_) turn_before_ = std::exchange(turn_, now);
}

void DeviceCore::OnTimeout(Instant now) {
  BeginTurn(now);
  while (const Timer* timer = timers_.TakeDue(now)) {
    DeviceQp& qp = *static_cast<DeviceQp*>(timer->owner);
    if (qp.transport->PollTimeout() <= now) {
      if (IsHeldUp(qp)) qp.transport->OnHeldUp(now);
      qp.transport->OnTimeout(now);
      AfterInput(qp);
    } else {
      UpdateTimer(qp);
    }
  }
  FireDueHeld();
  EndRests();
  GiveUpHeldAcks();
  for (const auto& nic : nics_) {
    if (nic->port != nullptr && nic->port->PollTimeout() <= now) nic->port->OnTimeout(now);
  }
  Settle();
}

Instant DeviceCore::PollTimeout() const {
  Instant due = Instant::Never();
  for (const TimerHeap* heap : {&timers_, &event_timers_, &rate_timers_}) {
    if (const Timer* timer = heap->Earliest()) due = std::min(due, timer->deadline);
  }
  if (!HasNetwork()) return due;
  if (!held_acks_.empty()) due = std::min(due, held_acks_.front().due());
  for (const auto& nic : nics_) {
    if (nic->port != nullptr) due = std::min(due, nic->port->PollTimeout());
    if (!paced_.empty()) due = std::min(due, nic->pace.PollTimeout());
  }
  return due;
}

// One turn of a QP. Returns how many PDUs it sent or what else it cost, at least 1, so that every
// turn costs something.
uint32_t DeviceCore::RunTurn(DeviceQp& qp, uint32_t max_pdus) {
  if (qp.has_more_output) {
    PublishHeld();
    MarkForDrain(qp);
    DrainMarked();
  }
  uint32_t steps = 0;
  bool has_progress = true;
  // What goes to a network is no input to a QP here: it is enough to look at the end what else came
  // of it.
  const bool is_remote = qp.wire.peer != nullptr;
  bool is_undrained = false;
  while (steps < max_pdus && has_progress && MaySend(qp)) {
    if (const uint32_t sent = SendDirect(qp, max_pdus - steps); sent != 0) {
      steps += sent;
      continue;
    }
    PublishHeld();  // what follows takes longer
    uint64_t outputs_before = outputs_;
    bool has_pdu = qp.transport->PollRequest(now_, blank_request_);
    if (has_pdu) {
      Deliver(qp, blank_request_);
      blank_request_ = {};
    }
    is_undrained = has_pdu && is_remote;
    if (!is_undrained) {
      AfterInput(qp);
      DrainMarked();
    }
    // Without a PDU there may still be progress: work that failed, or needs no peer.
    has_progress = has_pdu || outputs_ != outputs_before;
    ++steps;
  }
  if (is_undrained) AfterInput(qp);
  bool has_work = has_progress && MaySend(qp);
  if (has_work || qp.has_more_output) {
    MakeReady(qp);
  } else {
    qp.ready_hook.Unlink();  // until its next input
    WaitForPeer(qp);
    if (HasNetwork()) WaitForTxOrPace(qp);
  }
  return std::max(steps, 1u);
}

bool DeviceCore::Run(Instant now, uint32_t max_pdus) {
  BeginTurn(now);
  if (HasNetwork()) BeginPace();
  if (!held_acks_.empty()) BeginHolding();
  uint32_t left = max_pdus;
  while (left > 0) {
    Session* session = ready_sessions_.PopFront();
    if (session == nullptr) break;
    uint32_t turn = std::min(left, kPdusPerSessionTurn);
    session->BeginTurn();
    Lookahead ahead(this, *session);
    while (turn > 0) {
      DeviceQp* qp = session->ready.PopFront();
      if (qp == nullptr) break;
      ahead.Advance();
      const uint32_t used = RunTurn(*qp, std::min(turn, kPdusPerQpTurn));
      turn -= std::min(turn, used);
      left -= std::min(left, used);
    }
    PublishHeld();
    if (session->ready.IsEmpty()) {
      session->ready_hook.Unlink();
    } else if (!session->ready_hook.IsLinked()) {
      ready_sessions_.PushBack(session->ready_hook);
    }
  }
  // What was sent leaves before a look at what else came of it.
  for (size_t i = 0; i < nics_.size() && !drain_.empty(); ++i) {
    if (nics_[i]->port != nullptr) nics_[i]->port->Flush(now);
  }
  Settle();
  return !ready_sessions_.IsEmpty() || HasPacedWork();
}

}  // namespace verbena::softnic

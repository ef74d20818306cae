#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/base/check.h"
#include "transport/wire/packet.h"

namespace verbena::simulation {

using transport::sim::Fold;
using transport::sim::SimPacket;
using transport::sim::SimPacketFate;

namespace {

// A run that does more has gone round in circles; good ones need a hundredth.
constexpr uint64_t kStepsMax = 3'000'000;
constexpr uint32_t kPacketsPerTurn = 64;
constexpr uint32_t kPdusPerTurn = 64;
constexpr uint32_t kWqesPerPost = 6;
constexpr uint32_t kWqesPerDeepPost = 64;
constexpr size_t kTraceLines = 60;
constexpr uint32_t kWakeNsMax = 8'000;

}  // namespace

void World::Violate(const std::string& what) {
  if (!violation_.empty()) return;  // the first tells most
  char at[48];
  std::snprintf(at, sizeof(at), " (at %lld ns)", static_cast<long long>(now_.ns));
  violation_ = what + at;
  Trace("VIOLATION " + violation_);
}

void World::Trace(const std::string& line) {
  if (!options_.keeps_trace) return;
  char at[32];
  std::snprintf(at, sizeof(at), "%12lld ns  ", static_cast<long long>(now_.ns));
  trace_.push_back(at + line);
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void World::ObservePackets() {
  stage_->network.set_observer(
      [this](Instant, SimPacketFate fate, const SimPacket& packet, uint32_t to) {
        if (options_.keeps_trace) TracePacket(fate, packet, to);
        wire_watch_.OnPacket(fate, packet);
      });
}

void World::TracePacket(SimPacketFate fate, const SimPacket& packet, uint32_t to) {
  transport::Pdu pdu;
  const auto error = transport::wire::Decode(packet.bytes, packet.length, &pdu);
  Trace(std::string(NameOf(fate)) + " port " + std::to_string(packet.sender) + "->" +
        std::to_string(to) + " " +
        (error == transport::wire::DecodeError::kNone ? transport::wire::Describe(pdu)
                                                      : transport::wire::NameOf(error)));
}

// --- the clock -----------------------------------------------------------------------------------

bool World::Run() {
  for (auto& host : hosts_) host->wake = now_;
  const Instant end = plan_.quiet_at + LivenessBound(plan_);
  while (violation_.empty() && !IsFinished()) {
    if (++stats_.steps > kStepsMax) {
      Violate("no end: " + Unfinished());
      break;
    }
    if (!Advance()) {
      Violate("nothing will ever happen again: " + Unfinished());
    } else if (is_quiet_ && now_ > end) {
      Violate("not done long after the faults stopped: " + Unfinished());
    } else if (stats_.steps >= checked_steps_ + kStepsPerCheck) {
      CheckNow();
    }
  }
  if (violation_.empty()) CheckEnd();
  CloseAll();
  stats_.end = now_;
  stats_.network = stage_->network.counters();
  for (auto& end : ends_) {
    stats_.wqes += end->flow->posted();
    stats_.succeeded += end->flow->succeeded();
    stats_.failed_ends += end->has_failed;
    if (end->own_receiver != nullptr) stats_.receive_wqes += end->own_receiver->posted();
  }
  for (auto& state : clients_) {
    if (state->srq_receiver != nullptr) stats_.receive_wqes += state->srq_receiver->posted();
  }
  for (auto& host : hosts_) {
    for (const softnic::NicStatus& nic : host->device.ListNicStatuses()) {
      stats_.icrc_errors += nic.wire.rx_icrc_errors;
    }
  }
  digest_ = Fold(digest_, stage_->network.digest());
  digest_ = Fold(digest_, static_cast<uint64_t>(now_.ns));
  return violation_.empty();
}

Instant World::NextIncident() const {
  return incidents_done_ == incidents_.size() ? Instant::Never() : incidents_[incidents_done_].at;
}

// To the next thing that happens. False: there is none.
bool World::Advance() {
  transport::sim::SimNetwork& network = stage_->network;
  Instant next = std::min(network.NextArrival(), NextIncident());
  for (auto& host : hosts_) {
    Instant due = std::min({host->device.PollTimeout(), host->dma.NextDue(), host->wake});
    if (due.IsNever()) continue;
    next = std::min(next, std::max(due, host->paused_until));
  }
  if (next.IsNever()) return false;
  now_ = std::max(now_, next);
  ApplyIncidents();
  if (has_crashed_) PoisonCrashed();
  network.Advance(now_);
  for (auto& host : hosts_) {
    if (now_ < host->paused_until) continue;
    const bool has_packets = std::any_of(host->ports.begin(), host->ports.end(),
                                         [](const auto* port) { return port->has_packets(); });
    const Instant due = std::min({host->device.PollTimeout(), host->dma.NextDue(), host->wake});
    if (has_packets || due <= now_) DriveHost(*host);
    if (!violation_.empty()) break;
  }
  return true;
}

void World::ApplyIncidents() {
  using Kind = Incident::Kind;
  for (; incidents_done_ < incidents_.size() && incidents_[incidents_done_].at <= now_;
       ++incidents_done_) {
    const Incident& incident = incidents_[incidents_done_];
    Host& host = *hosts_[incident.host];
    switch (incident.kind) {
      case Kind::kQuiet: {
        transport::sim::SimNetworkOptions quiet;
        quiet.delay = plan_.network.delay;
        quiet.quantum = plan_.network.quantum;
        quiet.ip_id_mode = plan_.network.ip_id_mode;
        quiet.receive_buffer_bytes = plan_.network.receive_buffer_bytes;  // no fault
        stage_->network.set_options(quiet);
        is_quiet_ = true;
        Trace("faults stop");
        break;
      }
      case Kind::kPause:
        host.paused_until = std::max(host.paused_until, incident.until);
        Trace("host " + std::to_string(host.index) + " pauses");
        break;
      case Kind::kResume:
        host.wake = now_;
        break;
      case Kind::kPortDown:
      case Kind::kPortUp: {
        const bool is_up = incident.kind == Kind::kPortUp;
        host.ports[incident.nic]->set_is_up(is_up);
        host.device.SetPortState(now_, incident.nic, is_up);
        host.wake = now_;
        Trace(std::string("port ") + (is_up ? "up" : "down") + ", host " +
              std::to_string(host.index));
        break;
      }
      case Kind::kStop:
        Stop(*ends_[plan_.stopped_end]);
        break;
      case Kind::kCrash:
        Crash(*clients_[plan_.crashed_client]);
        break;
    }
  }
}

// A program dies: its session closes in the middle of everything.
void World::Crash(ClientState& state) {
  Trace("program " + std::to_string(state.client->index) + " dies");
  has_crashed_ = true;
  state.is_crashed = true;
  Host& host = *state.client->host;
  host.now = now_;
  host.dma.set_now(now_);
  state.client->Close(now_);
  host.wake = now_;
  for (End* end : state.ends) {
    end->flow->Abandon();
    if (end->receiver != nullptr) end->receiver->Stop();
    end->has_failed = true;
  }
}

void World::Stop(End& end) {
  if (end.client_state->is_crashed) return;
  Trace("the program of QP " + std::to_string(end.number) + " moves it to the error state");
  Host& host = *end.client->host;
  host.now = now_;
  host.dma.set_now(now_);
  host.wake = now_;
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kErr);
  end.client->Modify(end.qp, attr, shm::qp_mask::kState);
  end.has_reason = true;
  if (end.own_receiver != nullptr) end.own_receiver->Stop();
  OnEndFailed(&end);
}

// Nothing may touch the memory of a program that is gone.
void World::PoisonCrashed() {
  ClientState& state = *clients_[plan_.crashed_client];
  if (state.is_poisoned || !state.client->host->device.SessionIsGone(state.client->session)) return;
  state.is_poisoned = true;
  for (const Region& region : state.client->regions) {
    std::memset(region.memory, kPoison, region.bytes);
  }
}

void World::DriveHost(Host& host) {
  host.now = now_;
  host.wake = Instant::Never();
  host.dma.set_now(now_);
  if (host.device.PollTimeout() <= now_) host.device.OnTimeout(now_);
  transport::sim::SimNetwork& network = stage_->network;
  for (bool moved = true; moved && violation_.empty();) {
    if (++stats_.steps > kStepsMax) return;
    moved = false;
    for (auto* port : host.ports) {
      if (!port->has_packets()) continue;
      moved |= host.device.PollPorts(now_, kPacketsPerTurn);
      break;
    }
    moved |= host.device.Run(now_, kPdusPerTurn);
    while (host.dma.Step(host.device, now_)) moved = true;
    const uint64_t refused = network.counters().no_room;
    moved |= host.device.FlushPorts(now_);
    moved |= network.counters().no_room != refused;
    moved |= DriveClients(host);
    if (!moved || !is_paced()) continue;
    // Others may wait for what was received or made ready to be.
    for (auto& other : hosts_) other->wake = std::min(other->wake, now_ + Nanoseconds(100));
  }
  if (!host.dma.violation().empty()) Violate(host.dma.violation());
}

// --- programs ------------------------------------------------------------------------------------

bool World::DriveClients(Host& host) {
  bool moved = false;
  for (auto& client : host.clients) {
    ClientState& state = *clients_[client->index];
    if (state.is_crashed) continue;
    if (state.is_lazy && !random_.Chance(300)) {
      // Looks later, unless there is nothing to see.
      if (client->cq.Peek() != nullptr || WantsToPost(state)) {
        host.wake = std::min(host.wake, now_ + Nanoseconds(1 + random_.Below(kWakeNsMax)));
      }
      continue;
    }
    moved |= PollCq(state);
    CheckEvents(state);
    moved |= PostWork(state);
    if (WantsToPost(state)) {
      host.wake = std::min(host.wake, now_ + Nanoseconds(1 + random_.Below(kWakeNsMax)));
    }
  }
  return moved;
}

bool World::PollCq(ClientState& state) {
  bool any = false;
  CqConsumer& cq = state.client->cq;
  while (const shm::Cqe* cqe = cq.Peek()) {
    any = true;
    OnCqe(state, *cqe);
    cq.Consume();
    if (!violation_.empty()) return false;
  }
  if (any) cq.Publish();
  return any;
}

void World::OnCqe(ClientState& state, const shm::Cqe& cqe) {
  ++stats_.completions;
  const uint64_t kind = static_cast<uint64_t>(cqe.status) << 8 | cqe.opcode;
  digest_ = Fold(digest_, cqe.wr_id << 16 | kind);
  digest_ = Fold(digest_, uint64_t{cqe.byte_len} << 32 | cqe.qpn);
  digest_ = Fold(digest_, static_cast<uint64_t>(now_.ns) << 16 | cqe.wc_flags);
  auto found = std::find_if(state.ends.begin(), state.ends.end(),
                            [&cqe](const End* end) { return end->qp.handle == cqe.qp_handle; });
  if (found == state.ends.end()) return Violate("a completion of nobody's QP");
  End& end = **found;
  if (options_.keeps_trace) {
    char line[160];
    std::snprintf(line, sizeof(line),
                  "completion of QP %u (qpn %u, %s queue): wr %llu status %u opcode %u bytes %u",
                  end.number, cqe.qpn, cqe.is_send != 0 ? "send" : "receive",
                  static_cast<unsigned long long>(cqe.wr_id), cqe.status, cqe.opcode, cqe.byte_len);
    Trace(line);
  }
  if (cqe.is_send != 0) {
    end.flow->OnCompletion(cqe);
  } else {
    ++stats_.receives;
    end.receiver->OnCompletion(end, cqe);
  }
  if (options_.keeps_outcomes) NoteOutcome(end, cqe);
}

// What the program asked for may come only if something was done that brings it.
void World::CheckEvents(ClientState& state) {
  for (const shm::AsyncEventMessage& message : state.client->events) {
    const auto event = static_cast<EventType>(message.event);
    digest_ = Fold(digest_, uint64_t{message.event} << 32 | message.object);
    if (event == EventType::kPortErr || event == EventType::kPortActive) {
      if (plan_.ports_down.empty()) Violate("an event of a port that nothing happened to");
      continue;
    }
    if (event == EventType::kCommEst) continue;
    auto found = std::find_if(state.ends.begin(), state.ends.end(), [&message](const End* end) {
      return end->qp.handle == message.object;
    });
    End* end = found == state.ends.end() ? nullptr : *found;
    Trace("event " + std::to_string(message.event) + " of object " +
          std::to_string(message.object));
    const bool is_peers_fault = end != nullptr && end->HasFaultyPeer();
    switch (event) {
      case EventType::kQpLastWqeReached:
        if (end == nullptr || !end->has_srq) {
          Violate("last WQE reached on a QP without a shared queue");
        } else {
          end->must_fail = true;
        }
        break;
      case EventType::kQpReqErr:
      case EventType::kQpAccessErr:
        if (!is_peers_fault) Violate("an event of a fault that was not there");
        end->has_reason = true;
        OnEndFailed(end);
        break;
      default:
        Violate("an event that nothing brought: " + std::to_string(message.event));
    }
  }
  state.client->events.clear();
}

bool World::PostWork(ClientState& state) {
  bool any = false;
  if (state.srq_receiver != nullptr) any |= state.srq_receiver->Post(now_) != 0;
  for (End* end : state.ends) {
    if (end->own_receiver != nullptr && end->own_receiver->MayPost() && random_.Chance(600)) {
      any |= end->own_receiver->Post(now_) != 0;
    }
    if (end->flow->MayPost() && random_.Chance(400)) {
      const uint32_t most = end->flow->is_deep() ? kWqesPerDeepPost : kWqesPerPost;
      any |= end->flow->Post(now_, 1 + random_.Below(most)) != 0;
    }
  }
  return any;
}

bool World::WantsToPost(const ClientState& state) const {
  if (state.srq_receiver != nullptr && state.srq_receiver->MayPost()) return true;
  return std::any_of(state.ends.begin(), state.ends.end(), [](const End* end) {
    return end->flow->MayPost() || (end->own_receiver != nullptr && end->own_receiver->MayPost());
  });
}

bool World::IsLossy(const End& end) const {
  if (plan_.MayLose()) return true;
  // Nobody there to answer.
  return end.peer != nullptr && (end.peer->has_failed || end.peer->client_state->is_crashed ||
                                 end.peer->flow->bad_is_posted() || end.flow->bad_is_posted());
}

void World::NoteShared(End* end, uint32_t word, uint64_t original) {
  SharedWord& shared = end->client_state->words[word];
  if (original >= shared.seen.size()) shared.seen.resize(original + 16);
  if (shared.seen[original]) Violate("two atomics were told the same original");
  shared.seen[original] = true;
  ++shared.succeeded;
}

void World::OnEndFailed(End* end) {
  if (end->has_failed) return;
  end->has_failed = true;
  Trace("QP " + std::to_string(end->number) + " has failed");
  // What a dead QP is given is only flushed: a few of it will do, unless there is little else.
  uint64_t wqes = 0;
  for (const Flow* flow : flows_) {
    const bool may_crash = plan_.has_crash && flow->from()->plan.client == plan_.crashed_client;
    wqes += may_crash || flow == end->flow.get() ? flow->posted() : flow->planned();
  }
  if (wqes >= kWqesMin) end->flow->CutShort();
  // The unreliable services go on receiving in SQE.
  if (end->service == Service::kRc && end->own_receiver != nullptr) end->own_receiver->Stop();
}

}  // namespace verbena::simulation
